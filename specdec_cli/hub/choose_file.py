"""Chooses the files of the requested model in a repository: never another model, never a side file."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.errors import NotOnHub, UsageError
from specdec_cli.hub.cache import RepoStore
from specdec_cli.hub.client import RemoteFile
from specdec_cli.models.gguf import first_part, parts_of
from specdec_cli.presets.schema import HubFile
from specdec_cli.untrusted import is_portable, is_repo, is_revision, stays_inside

USUAL_QUANT = "Q4_K_M"
"""Taken where nobody says which: what llama.cpp and others take as well."""

_SIDE_FILES = re.compile(
    r"(^|[-_./])(mmproj|imatrix)([-_./]|$)|(^|/)(mtp|eagle3|dflash|dspark)[-_.][^/]*$", re.IGNORECASE
)
"""Parts of other things: vision projectors, calibration data, draft heads."""
_QUANT = re.compile(
    r"(?:^|[-_./])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|FP?16|FP?32|MXFP4(?:_MOE)?|NVFP4))(?=[-./]|$)",
    re.IGNORECASE,
)
_FEW = 12


@dataclass(frozen=True, slots=True)
class HubSpec:
    """What was typed: REPO[:FILE|QUANT][@REVISION]. `choice` is the file or quant."""

    repo: str
    choice: str | None
    revision: str


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model: the path of its first part, which is its name, and the parts that are there, in order."""

    path: str
    parts: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


def parse_spec(text: str) -> HubSpec:
    """Raises UsageError if this is not REPO[:FILE|QUANT][@REVISION]."""
    found = re.fullmatch(r"([^:@]+)(?::([^@:]+))?(?:@(.+))?", text)
    if found:
        repo, choice, revision = found[1], found[2], found[3] or "main"
        if is_repo(repo) and is_revision(revision) and (choice is None or _can_be_a_name(choice)):
            return HubSpec(repo, choice, revision)
    raise UsageError(
        f"{text!r} is not a model on the Hub.", hint="Write OWNER/NAME, OWNER/NAME:QUANT or OWNER/NAME:FILE."
    )


def models_in(files: Sequence[RemoteFile]) -> list[ModelFiles]:
    """The models of a listing, split ones put together, whether or not all their parts are there."""
    groups: dict[str, list[RemoteFile]] = {}
    for file in files:
        if file.path.lower().endswith(".gguf") and not _is_side_file(file.path):
            groups.setdefault(first_part(file.path), []).append(file)
    return [ModelFiles(path, tuple(sorted(parts, key=lambda p: p.path))) for path, parts in groups.items()]


def pick(repo: str, files: Sequence[RemoteFile], choice: str | None) -> ModelFiles:
    """The one model that `choice` (a file, a quant, or nothing) means.

    Raises NotOnHub when there is none or more than one, with the nearest names, and for missing parts.
    """
    models = models_in(files)
    if not models:
        has_others = any(_is_side_file(file.path) for file in files if file.path.lower().endswith(".gguf"))
        raise NotOnHub(
            f"{repo} has no GGUF model" + (", only parts such as projectors or heads." if has_others else "."),
            hint="Look for a repository with a name ending in -GGUF.",
        )
    found = _matching(models, choice)
    if len(found) != 1:
        raise _none_or_several(repo, models, found, choice)
    wanted = parts_of(found[0].path)
    if missing := set(wanted) - {part.path for part in found[0].parts}:
        raise NotOnHub(
            f"{repo} lacks {len(missing)} of the {len(wanted)} parts of {found[0].path}, such as {min(missing)}.",
            hint="Choose another file; the upload of this one is incomplete.",
        )
    return found[0]


def cached_choice(root: Path, spec: HubSpec) -> HubFile | None:
    """The model that `spec` means among the files of the cache, by what its branch meant when it was last looked up.

    None if that is not known. Raises NotOnHub.
    """
    store = RepoStore(root, spec.repo)
    commit = store.commit_of(spec.revision)
    if commit is None:
        return None
    snapshot = store.folder / "snapshots" / commit
    files = [
        RemoteFile(place.relative_to(snapshot).as_posix(), place.stat().st_size, store.etag_of(place) or "")
        for place in sorted(snapshot.rglob("*"))
        if place.is_file()
    ]
    model = pick(spec.repo, files, spec.choice)
    sha256 = model.parts[0].etag if len(model.parts) == 1 and len(model.parts[0].etag) == 64 else None
    return HubFile(spec.repo, model.path, commit, model.size, sha256)


def quant_of(path: str) -> str | None:
    """The number format that a file's name tells, in capitals."""
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", path, flags=re.IGNORECASE)
    found = _QUANT.findall(stem)
    return found[-1].upper() if found else None


def _can_be_a_name(choice: str) -> bool:
    return stays_inside(choice) and is_portable(choice)


def _matching(models: list[ModelFiles], choice: str | None) -> list[ModelFiles]:
    if choice is None:
        return models if len(models) == 1 else [m for m in models if quant_of(m.path) == USUAL_QUANT]
    if choice.lower().endswith(".gguf"):
        return [m for m in models if choice in [part.path for part in m.parts]]
    exact = [m for m in models if quant_of(m.path) == choice.upper()]
    return exact or [m for m in models if _has_word(m.path, choice)]


def _has_word(path: str, word: str) -> bool:
    return re.search(rf"(^|[-_./]){re.escape(word)}([-./]|$)", path, re.IGNORECASE) is not None


def _is_side_file(path: str) -> bool:
    return _SIDE_FILES.search(path[: -len(".gguf")]) is not None


def _none_or_several(repo: str, models: list[ModelFiles], found: list[ModelFiles], choice: str | None) -> NotOnHub:
    names = [m.path for m in models]
    if found:
        return NotOnHub(
            f"{repo}: {choice or USUAL_QUANT} matches several models: {_listed([m.path for m in found])}.",
            hint=f"Give the file, such as {repo}:{found[0].path}",
        )
    if choice is None:
        return NotOnHub(
            f"{repo} has several models: {_listed(names)}.", hint=f"Give one, such as {repo}:{_label(models[0])}"
        )
    labels = {label.lower(): label for m in models for label in (_label(m), m.path, m.path.split("/")[-1])}
    near = [labels[key] for key in difflib.get_close_matches(choice.lower(), labels, n=3, cutoff=0.5)]
    return NotOnHub(
        f"{repo} has no {choice}; it has {_listed(sorted({_label(m) for m in models}))}.",
        hint=f"Did you mean {' or '.join(near)}?" if near else "Choose one of these.",
    )


def _label(model: ModelFiles) -> str:
    return quant_of(model.path) or model.path


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more
