"""From what the user typed to model files: a path, or a preset with its own draft and settings."""

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.drafters import NAMED
from specdec_cli.errors import NotHere, UsageError
from specdec_cli.models.gguf import first_part
from specdec_cli.paths import cache_folder
from specdec_cli.presets.derive import Quantize, derived_model
from specdec_cli.presets.schema import HubFile, ModelSource, Preset, load_preset
from specdec_cli.settings import Adapters
from specdec_cli.untrusted import is_repo

Find = Callable[[HubFile], Path | None]
"""The first part of a Hub file that is on this machine, or None."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The files to open, who drafts, and the preset they came from. `head` are Medusa heads for the target itself.
    With `cross` the draft may have another vocabulary."""

    target: Path
    draft: Path | None
    drafter: str
    preset: Preset | None
    head: Path | None = None
    cross: bool = False
    adapters: Adapters = field(default_factory=Adapters)

    @property
    def sampling(self) -> SamplingParams:
        """The preset's samplers, or llama.cpp's defaults."""
        return self.preset.sampling if self.preset is not None else SamplingParams()

    @property
    def paths(self) -> tuple[Path | None, ...]:
        return self.target, self.draft, self.head

    @property
    def has_model(self) -> bool:
        """Whether a model or a head drafts: one of its own file, or the layers for that in the target's."""
        return self.draft is not None or self.drafter == "mtp"


def named_preset(model: str) -> Preset | None:
    """The preset of this name, None for a path. Raises UsageError, and NotHere for a model of the Hub."""
    _check_is_here(model)
    return None if looks_like_path(model) else load_preset(model)


def resolve(
    model: str,
    preset: Preset | None,
    draft: str | None,
    quantize: Quantize,
    find: Find,
    say: Callable[[str], None],
) -> Resolved:
    """The files of a preset, or of the GGUF path `model` without one (`named_preset` tells which it is); `draft` (a
    file, heads, or a drafter's name) overrides the preset's own. Asks no network.

    Raises UsageError for an unknown name, ModelError when a preset's file cannot be made, NotHere when it was not
    pulled.
    """
    source = preset.target if preset else ModelSource(path=model)
    own_draft = preset.draft if preset and draft is None else None
    if draft is not None and draft not in NAMED:
        own_draft = ModelSource(path=_draft_path(draft))
    drafter = "model" if own_draft else draft or "none"
    head = None
    if own_draft is not None and own_draft.path is not None and _is_head(own_draft.path):
        head, own_draft, drafter = Path(os.path.expanduser(own_draft.path)), None, "medusa"

    def file(source: ModelSource) -> Path:
        if source.hub is not None:
            return _pulled(source.hub, model, find)
        return first_shard(model_file(source, quantize, say), say)

    return Resolved(
        target=file(source),
        draft=file(own_draft) if own_draft else None,
        drafter=drafter,
        preset=preset,
        head=head,
        cross=preset is not None and preset.cross and draft is None,
    )


def _is_head(path: str) -> bool:
    """Heads come as a safetensors file, or as a folder with one."""
    return path.lower().endswith(".safetensors") or os.path.isdir(os.path.expanduser(path))


def _check_is_here(model: str) -> None:
    """A model of the Hub by its name there is no file here. Raises NotHere."""
    if (
        is_repo(model.partition(":")[0].partition("@")[0])
        and not os.path.exists(model)
        and ".gguf" not in model.lower()
    ):
        raise NotHere(
            f"File not found: {model}. Models from the Hub run as presets.",
            hint=f"Download it with specdec pull --target {model} --save NAME, then run specdec run NAME",
        )


def _draft_path(draft: str) -> str:
    if looks_like_path(draft) or _is_head(draft):
        return draft
    near = difflib.get_close_matches(draft, NAMED, n=1)
    raise UsageError(
        f"Invalid --draft: {draft!r} is neither a file nor a drafter.",
        hint=f"Did you mean {near[0]!r}?"
        if near
        else f"Give --draft a GGUF file, Medusa heads, or one of {', '.join(NAMED)}.",
    )


def _pulled(file: HubFile, preset: str, find: Find) -> Path:
    place = find(file)
    if place is None:
        raise NotHere(f"{file.file} of {file.repo} is not on this machine.", hint=f"Download it: specdec pull {preset}")
    return place


def model_file(source: ModelSource, quantize: Quantize, say: Callable[[str], None]) -> Path:
    """The file of one source, made first if it is a derived one. Raises UsageError, ModelError."""
    if source.path is not None:
        return Path(os.path.expanduser(source.path))
    if source.derive is None:
        raise UsageError("This model is on the Hub.", hint="Give it `path:` or `derive:`.")
    return derived_model(source.derive, derived_folder(), quantize, say)


def first_shard(path: Path, say: Callable[[str], None]) -> Path:
    """The file by which a split model is opened. The user is told if another of its parts was named."""
    first = path.with_name(first_part(path.name))
    if first != path:
        say(shard_note(path.name, first.name))
    return first


def shard_note(named: str, first: str) -> str:
    return f"{named} is a later part of a split model; opening its first part, {first}."


def looks_like_path(model: str) -> bool:
    """Whether this is a file rather than a preset's name."""
    return "/" in model or "\\" in model or model.lower().endswith(".gguf") or os.path.isfile(model)


def derived_folder() -> Path:
    """Where models that are made on this machine lie."""
    return cache_folder() / "derived"
