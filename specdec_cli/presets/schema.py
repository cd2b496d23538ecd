"""Named pairs: YAML files checked into frozen values. Unknown keys are errors, with the nearest known one."""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.errors import UsageError
from specdec_cli.paths import config_folder, write_whole
from specdec_cli.presets.strict_yaml import read_yaml, write_yaml
from specdec_cli.settings import FORMATS
from specdec_cli.untrusted import (
    is_commit,
    is_path,
    is_portable,
    is_repo,
    is_revision,
    is_unicode,
    one_line,
    stays_inside,
)

_PACKAGE = Path(__file__).parent.parent
_IN_WHEEL = _PACKAGE / "_presets"
SHIPPED = _IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parent / "presets"
"""Inside an installed wheel, or else in a checkout."""


@dataclass(frozen=True, slots=True)
class Derive:
    """A model made once, on this machine, from a file inside an installed Python package.

    `package` is the distribution's name, `file` the path inside it, `extra` the extra of specdec-cli
    that installs it, `quantize` the format to write.
    """

    package: str
    file: str
    sha256: str
    quantize: str
    extra: str

    def __post_init__(self) -> None:
        if self.quantize not in FORMATS:
            raise UsageError(
                f"quantize has an invalid value: {self.quantize!r}.", hint=f"Use one of {', '.join(FORMATS)}."
            )


@dataclass(frozen=True, slots=True)
class HubFile:
    """A GGUF file of a model repository on the Hub; of a split model, its first part.

    `revision` should be a commit (40 hex digits), so that everybody gets the same bytes. `bytes` is the size
    of all parts together, `sha256` that of a file in one part; both None where no source gives them. `gated`
    files need a token whose owner has accepted their licence on the Hub.
    """

    repo: str
    file: str
    revision: str = "main"
    bytes: int | None = None
    sha256: str | None = None
    gated: bool = False

    def __post_init__(self) -> None:
        if not is_repo(self.repo):
            raise UsageError(f"repo has an invalid value: {self.repo!r}.", hint="Write it as OWNER/NAME.")
        if not is_revision(self.revision):
            raise UsageError(
                f"revision has an invalid value: {self.revision!r}.", hint="Give a commit, a branch or a tag."
            )
        if not self.file.lower().endswith(".gguf") or not (stays_inside(self.file) and is_portable(self.file)):
            raise UsageError(f"file has an invalid value: {self.file!r}.", hint="Give a .gguf file of the repository.")
        if self.sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise UsageError(
                f"sha256 has an invalid value: {self.sha256!r}.", hint="Give 64 hexadecimal digits, or omit it."
            )
        if self.bytes is not None and self.bytes <= 0:
            raise UsageError(
                f"bytes has an invalid value: {self.bytes}.", hint="Give the size of the file, or omit it."
            )

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, and so never means other bytes."""
        return is_commit(self.revision)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where one model comes from: a file on this machine, one to be derived, or one of the Hub's."""

    path: str | None = None
    derive: Derive | None = None
    hub: HubFile | None = None

    def __post_init__(self) -> None:
        if sum(place is not None for place in (self.path, self.derive, self.hub)) != 1:
            raise UsageError(
                "path, derive, hub: exactly one is required.",
                hint="Give the model's location in one of these ways.",
            )
        if self.path is not None and not is_path(self.path):
            raise UsageError(
                f"path has an invalid value: {self.path!r}.", hint="Give the name of a file on this machine."
            )


@dataclass(frozen=True, slots=True)
class Report:
    """What somebody measured with this pair: not our figure, and on their machine.

    `acceptance` is accepted / drafted tokens (0 to 1), `k` the draft length used, `speed` in their words,
    `source` where it can be read.
    """

    hardware: str
    source: str
    speed: str | None = None
    acceptance: float | None = None
    k: int | None = None


@dataclass(frozen=True, slots=True)
class Preset:
    """A pair with its settings. `k` and `p_min` are the suggested draft length and confidence.

    With `cross` the draft has another vocabulary. `chat` names the family of its chat format (the file's own template
    is what is used), `note` warns, and `unconfirmed` says which facts nobody of this project has checked.
    """

    name: str
    description: str
    licence: str
    target: ModelSource
    draft: ModelSource | None = None
    chat: str | None = None
    cross: bool = False
    k: int | None = None
    p_min: float | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    system: str | None = None
    note: str | None = None
    unconfirmed: str | None = None
    reports: tuple[Report, ...] = ()

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 0:
            raise UsageError(f"k has an invalid value: {self.k}.", hint="Use 0 (no draft) or more.")
        if self.p_min is not None and not 0 <= self.p_min <= 1:
            raise UsageError(f"p_min has an invalid value: {self.p_min}.", hint="Use a value from 0 to 1.")


def hub_files(preset: Preset) -> tuple[HubFile, ...]:
    """The models of a preset that come from the Hub."""
    sources = (preset.target, preset.draft)
    return tuple(source.hub for source in sources if source is not None and source.hub is not None)


def preset_names(folders: Iterable[Path] | None = None) -> dict[str, Path]:
    """Name to file; a preset of the user's hides a shipped one of the same name."""
    found: dict[str, Path] = {}
    for folder in (config_folder() / "presets", SHIPPED) if folders is None else folders:
        for file in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
            found.setdefault(file.stem, file)
    return found


def unread_files() -> list[Path]:
    """What lies in the user's folder of presets and is none by its name."""
    folder = config_folder() / "presets"
    return sorted(path for path in folder.iterdir() if _may_be_meant(path)) if folder.is_dir() else []


def _may_be_meant(path: Path) -> bool:
    return path.is_file() and path.suffix != ".yaml" and not path.name.startswith(".") and not path.name.endswith("~")


def load_preset(name: str, folders: Iterable[Path] | None = None) -> Preset:
    """The preset called `name`. Raises UsageError for an unknown name or a file that is not right."""
    known = preset_names(folders)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"No file or preset is called {name!r}.",
            hint=f"Did you mean {near[0]!r}?"
            if near
            else "Give the path of a GGUF file, or a preset (specdec presets lists them).",
        )
    return read_preset(known[name])


def read_preset(file: Path) -> Preset:
    """One preset from its YAML file; its name is the file's. Raises UsageError."""
    given = _mapping(read_yaml(file), file, "")
    if "name" in given:
        raise UsageError(f"{file}: name is not a key of a preset.", hint="A preset is named after its file.")
    preset: Preset = _build(Preset, {"name": file.stem, **given}, file, "")
    return preset


def check_new_name(name: str) -> Path:
    """Where a preset of the user's with this name lies, or would. Raises UsageError for a name that cannot be one."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name.endswith(".gguf"):
        raise UsageError(
            f"Invalid preset name: {name!r}.", hint="Use lowercase letters, digits, dots and dashes, such as my-pair."
        )
    if name in preset_names([SHIPPED]):
        raise UsageError(f"The preset {name!r} already exists.", hint="Choose another name.")
    return config_folder() / "presets" / f"{name}.yaml"


def save_preset(name: str, models: Sequence[ModelSource], licences: Sequence[str | None]) -> Path:
    """Write a preset of the user's; `models` are the target and, if there is one, the draft, `licences` theirs.

    One of this name with the same models is left as it is. Raises UsageError if it has others.
    """
    file = check_new_name(name)
    named = [licence or "unknown" for licence in licences]
    data: dict[str, Any] = {
        "description": " + ".join(_file_name(model) for model in models),
        "licence": named[0] if len(set(named)) == 1 else f"{named[0]} (target) and {named[1]} (draft)",
        "unconfirmed": "Saved from the Hub. Not tested by specdec's authors.",
    }
    for role, model in zip(("target", "draft"), models, strict=False):
        data[role] = _without_none(dataclasses.asdict(model))
    try:
        write_whole(file, write_yaml(data), new=True)
    except FileExistsError as error:
        there = read_preset(file)
        if [model for model in (there.target, there.draft) if model is not None] != list(models):
            raise UsageError(
                f"The preset {name!r} already exists, for another pair.", hint=f"Choose another name, or remove {file}."
            ) from error
    except OSError as error:
        raise UsageError(
            f"Cannot write {file}: {error.strerror}.", hint="Set SPECDEC_CONFIG to a writable folder."
        ) from error
    return file


def _file_name(model: ModelSource) -> str:
    return Path(model.hub.file if model.hub else model.path or "").name.removesuffix(".gguf")


def _without_none(data: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in data.items() if value is not None}
    return {key: _without_none(value) if isinstance(value, dict) else value for key, value in kept.items()}


_NESTED: Mapping[str, type] = {
    "target": ModelSource,
    "draft": ModelSource,
    "derive": Derive,
    "hub": HubFile,
    "sampling": SamplingParams,
    "reports": Report,
}


def _build(kind: Any, data: Mapping[str, Any], file: Path, where: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in data:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            raise UsageError(
                f"{file}: {where}{one_line(str(key))} is not a key of a preset.",
                hint=f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(fields)}.",
            )
    for name, known in fields.items():
        needed = known.default is dataclasses.MISSING and known.default_factory is dataclasses.MISSING
        if needed and name not in data:
            raise UsageError(f"{file}: {where}{name} is missing.", hint="Add it; presets/demo.yaml is an example.")
    values = {key: _value(key, value, fields[key].type, file, f"{where}{key}") for key, value in data.items()}
    try:
        return kind(**values)
    except UsageError as error:
        raise UsageError(f"{file}: {where}{error}", hint=error.hint) from error


def _value(key: str, value: object, kind: Any, file: Path, where: str) -> object:
    if key not in _NESTED:
        return _plain(value, kind, file, where)
    if get_origin(kind) is not tuple:
        return _build(_NESTED[key], _mapping(value, file, where), file, f"{where}.")
    if not isinstance(value, list):
        raise UsageError(f"{file}: {where} must be a list.", hint="Start each entry with a dash.")
    return tuple(_build(_NESTED[key], _mapping(v, file, where), file, f"{where}[{i}].") for i, v in enumerate(value))


_WORDS: Mapping[type, str] = {
    str: "text (in quotes, if it looks like a number)",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _plain(value: object, kind: Any, file: Path, where: str) -> object:
    """The value, if it is of the field's type: YAML makes numbers, dates and truth values out of plain words."""
    wanted: type = (get_args(kind) or (kind,))[0]  # every optional field is written `type | None`
    fits = isinstance(value, (int, float) if wanted is float else wanted)
    is_text = not isinstance(value, str) or is_unicode(value) or where.endswith(".path")  # names of files may be bytes
    if fits and isinstance(value, bool) == (wanted is bool) and is_text:
        return value
    raise UsageError(
        f"{file}: {where} has an invalid value: {one_line(repr(value))}.", hint=f"Give it {_WORDS[wanted]}."
    )


def _mapping(data: object, file: Path, where: str) -> Mapping[str, Any]:
    if isinstance(data, dict):
        return data
    raise UsageError(
        f"{file}: {where or 'the file'} must be a mapping of keys to values.", hint="presets/demo.yaml is an example."
    )
