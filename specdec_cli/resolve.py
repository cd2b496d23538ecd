"""From what the user typed to model files: a path, or a preset with its own draft and settings."""

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.derive import Quantize, derived_model
from specdec_cli.errors import UsageError
from specdec_cli.folders import cache_folder
from specdec_cli.presets import ModelSource, Preset, load_preset

DRAFTER_NAMES = ("ngram", "none")
"""What `--draft` can name instead of a model file."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The files to open, who drafts, and the preset they came from."""

    target: Path
    draft: Path | None
    drafter: str
    preset: Preset | None


def resolve(model: str, draft: str | None, quantize: Quantize, say: Callable[[str], None]) -> Resolved:
    """`model` is a preset's name or a GGUF path; `draft` overrides the preset's own.

    Raises UsageError for an unknown name, ModelError when a preset's file cannot be made.
    """
    preset = None if looks_like_path(model) else load_preset(model)
    source = preset.target if preset else ModelSource(path=model)
    own_draft = preset.draft if preset and draft is None else None
    if draft is not None and draft not in DRAFTER_NAMES:
        own_draft = ModelSource(path=_draft_path(draft))
    drafter = "model" if own_draft else draft or "none"
    return Resolved(
        target=model_file(source, quantize, say),
        draft=model_file(own_draft, quantize, say) if own_draft else None,
        drafter=drafter,
        preset=preset,
    )


def _draft_path(draft: str) -> str:
    if looks_like_path(draft):
        return draft
    near = difflib.get_close_matches(draft, DRAFTER_NAMES, n=1)
    raise UsageError(
        f"There is neither a file nor a drafter called {draft!r}.",
        hint=f"Did you mean {near[0]!r}?" if near else f"Give --draft a GGUF file, {' or '.join(DRAFTER_NAMES)}.",
    )


def model_file(source: ModelSource, quantize: Quantize, say: Callable[[str], None]) -> Path:
    """The file of one source, made first if it is a derived one. Raises UsageError, ModelError."""
    if source.path is not None:
        return Path(os.path.expanduser(source.path))
    if source.derive is not None:
        return derived_model(source.derive, cache_folder() / "derived", quantize, say)
    raise UsageError("The preset names no file for one of its models.", hint="Give it `path:` or `derive:`.")


def looks_like_path(model: str) -> bool:
    """Whether this is a file rather than a preset's name."""
    return "/" in model or "\\" in model or model.lower().endswith(".gguf") or os.path.isfile(model)
