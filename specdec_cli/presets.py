"""Named pairs: YAML files checked into frozen values. Unknown keys are errors, with the nearest known one."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml

from specdec_cli.errors import UsageError
from specdec_cli.folders import config_folder
from specdec_cli.sampling import SamplingParams
from specdec_cli.settings import FORMATS

_PACKAGE = Path(__file__).parent
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
                f"A model cannot be derived as {self.quantize!r}.", hint=f"Use one of {', '.join(FORMATS)}."
            )


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where one model comes from: a file on this machine, or one to be derived."""

    path: str | None = None
    derive: Derive | None = None


@dataclass(frozen=True, slots=True)
class Preset:
    """A pair that is known to work, with its settings. `k` is the suggested draft length."""

    name: str
    description: str
    licence: str
    target: ModelSource
    draft: ModelSource | None = None
    k: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    system: str | None = None

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 0:
            raise UsageError(f"k cannot be {self.k}.", hint="Use 0 (no draft) or more.")


def preset_names(folders: Iterable[Path] | None = None) -> dict[str, Path]:
    """Name to file; a preset of the user's hides a shipped one of the same name."""
    found: dict[str, Path] = {}
    for folder in (config_folder() / "presets", SHIPPED) if folders is None else folders:
        for file in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
            found.setdefault(file.stem, file)
    return found


def load_preset(name: str, folders: Iterable[Path] | None = None) -> Preset:
    """The preset called `name`. Raises UsageError for an unknown name or a file that is not right."""
    known = preset_names(folders)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"There is neither a file nor a preset called {name!r}.",
            hint=f"Did you mean {near[0]!r}?"
            if near
            else f"Give a path to a GGUF file, or one of: {', '.join(known)}.",
        )
    return read_preset(known[name])


def read_preset(file: Path) -> Preset:
    """One preset from its YAML file; its name is the file's. Raises UsageError."""
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"The preset {file} cannot be read: {error}.", hint="Correct the file.") from error
    given = _mapping(data, file, "")
    if "name" in given:
        raise UsageError(f"{file}: name is not a key of a preset.", hint="A preset is called as its file is.")
    preset: Preset = _build(Preset, {"name": file.stem, **given}, file, "")
    return preset


_NESTED: Mapping[str, type] = {
    "target": ModelSource,
    "draft": ModelSource,
    "derive": Derive,
    "sampling": SamplingParams,
}


def _build(kind: Any, data: Mapping[str, Any], file: Path, where: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in data:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            raise UsageError(
                f"{file}: {where}{key} is not a key of a preset.",
                hint=f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(fields)}.",
            )
    for name, known in fields.items():
        needed = known.default is dataclasses.MISSING and known.default_factory is dataclasses.MISSING
        if needed and name not in data:
            raise UsageError(f"{file}: {where}{name} is missing.", hint="Add it; presets/demo.yaml is an example.")
    values = {
        key: _build(_NESTED[key], _mapping(value, file, key), file, f"{where}{key}.")
        if key in _NESTED
        else _plain(value, fields[key].type, file, f"{where}{key}")
        for key, value in data.items()
    }
    try:
        return kind(**values)
    except UsageError as error:
        raise UsageError(f"{file}: {where}{error}", hint=error.hint) from error


_WORDS: Mapping[type, str] = {
    str: "text (in quotes, if it looks like a number)",
    int: "a whole number",
    float: "a number",
}


def _plain(value: object, kind: Any, file: Path, where: str) -> object:
    """The value, if it is of the field's type: YAML makes numbers, dates and truth values out of plain words."""
    wanted: type = (get_args(kind) or (kind,))[0]  # every optional field is written `type | None`
    if isinstance(value, (int, float) if wanted is float else wanted) and not isinstance(value, bool):
        return value
    raise UsageError(f"{file}: {where} cannot be {value!r}.", hint=f"Give it {_WORDS[wanted]}.")


def _mapping(data: object, file: Path, where: str) -> Mapping[str, Any]:
    if isinstance(data, dict):
        return data
    raise UsageError(
        f"{file}: {where or 'the file'} must be a mapping of keys to values.", hint="presets/demo.yaml is an example."
    )
