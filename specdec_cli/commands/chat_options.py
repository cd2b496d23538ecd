"""The options of a chat: what `/set` can change, by the names that the command line has for it."""

import dataclasses
import difflib
import shlex
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from specdec_cli.commands.drafting_options import DraftingOptions, DraftOptions
from specdec_cli.commands.options import quoted
from specdec_cli.commands.placement_options import PlacementOptions
from specdec_cli.commands.sampling_options import GrammarOptions, SamplingOptions, TempOpt
from specdec_cli.commands.text_options import TextOptions
from specdec_cli.errors import UsageError

if TYPE_CHECKING:
    from specdec_cli.planning.profile import Profile
    from specdec_cli.planning.request import PairRequest, Placement
    from specdec_cli.presets.resolve import Resolved

_OF_TEXT = ("n", "stop", "think")
_OF_DRAFTING = ("look_up", "p_min", "verify", "strict")
_OTHER_NAMES = {"temp": "temperature", "num-predict": "n", "max-tokens": "n", "dry-last-n": "dry-penalty-last-n"}
"""Names of the command line and of other tools."""
_SWITCHES = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """All that a run was asked for. `files` are those of `model` with the draft that is named."""

    model: str
    pairing: DraftOptions
    drafting: DraftingOptions
    text: TextOptions
    temp: float | None
    sampling: SamplingOptions
    grammar: GrammarOptions
    placed: "Placement"
    files: "Resolved"
    profile: "Profile | None"
    seed: int
    """Where none was given."""

    def request(self) -> "PairRequest":
        """What is to be opened. Raises UsageError."""
        from specdec_cli.planning.drafting import decide
        from specdec_cli.planning.request import PairRequest

        params = self.sampling.over(self.files.sampling, self.temp)
        return PairRequest(
            self.files.target,
            decide(self.drafting.asked(), self.files, self.profile, self.placed.longest_draft),
            self.sampling.asked(params, seed=self.seed, grammar=self.grammar.source()),
            self.placed,
            self.files.adapters,
        )

    def with_draft(self, draft: str | None) -> "RunOptions":
        """With another drafter or draft, None for the model's own. Raises UsageError, ModelError, NotHere."""
        pairing = replace(self.pairing, draft=draft, offline=True)
        self.drafting.check(draft)
        files = pairing.files_for(self.model)
        return replace(self, pairing=pairing, files=files, profile=self.drafting.profile_of(files, draft))

    def with_length(self, k: str) -> "RunOptions":
        """With another length of drafts. Raises UsageError."""
        drafting = replace(self.drafting, k=k)
        drafting.check(self.pairing.draft)
        return replace(self, drafting=drafting)

    def changed(self, setting: "Setting", value: Any) -> "RunOptions":
        """With another value of a setting. Raises UsageError."""
        if not setting.group:
            return replace(self, temp=value)
        group = replace(getattr(self, setting.group), **{setting.field: value})
        return replace(self, **{setting.group: group})


@dataclass(frozen=True, slots=True)
class Setting:
    """An option that can change without loading anything: where it stands, its type, its bounds and its default."""

    name: str
    group: str
    field: str
    kind: Any
    least: float | None = None
    most: float | None = None
    default: Any = None

    def read(self, text: str) -> Any:
        """The value that a text names. Raises UsageError."""
        if text == "default":
            return self.default
        value = _read(self.kind, text)
        if value is None or not self._is_within(value):
            raise UsageError(f"Invalid {self.name}: {quoted(text)}.", hint=f"Give {self._wanted}, or default.")
        return value

    def checked(self, value: Any) -> Any:
        """A value from a file. Raises UsageError."""
        if value is None or value == self.default:
            return self.default
        if isinstance(value, list):
            return self.read(shlex.join(map(str, value)))
        if isinstance(value, bool):
            return self.read("on" if value else "off")
        return self.read(str(value))

    def _is_within(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return True
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def _wanted(self) -> str:
        if get_origin(self.kind) is Literal:
            return " or ".join(get_args(self.kind))
        wanted = {bool: "on or off", int: "a whole number", float: "a number", Path: "a file", str: "a text"}
        bounds = [f"{self.least:g} or more"] if self.least is not None and self.most is None else []
        bounds += [f"from {self.least:g} to {self.most:g}"] if self.least is not None and self.most is not None else []
        return " ".join([wanted.get(self.kind, "values separated by blanks"), *bounds])


def _read(kind: Any, text: str) -> Any:
    """None for a text that is no value of this type."""
    try:
        if get_origin(kind) is list:
            values = [_read(get_args(kind)[0], word) for word in shlex.split(text)]
            return None if None in values or not values else values
        if get_origin(kind) is Literal:
            return text if text in get_args(kind) else None
        if kind is bool:
            return _SWITCHES.get(text.lower())
        if kind is Path:
            return Path(text).expanduser()
        return kind(text)
    except (ValueError, OverflowError):
        return None


@cache
def settings() -> Mapping[str, Setting]:
    """By name."""
    groups: tuple[tuple[str, type, Callable[[str], bool]], ...] = (
        ("sampling", SamplingOptions, lambda _: True),
        ("text", TextOptions, lambda name: name in _OF_TEXT),
        ("drafting", DraftingOptions, lambda name: name in _OF_DRAFTING),
        ("grammar", GrammarOptions, lambda _: True),
    )
    found = [_setting("temperature", "", "temp", TempOpt, None)]
    for group, kind, wanted in groups:
        hints = get_type_hints(kind, include_extras=True)
        for one in dataclasses.fields(kind):
            if wanted(one.name):
                found.append(_setting("", group, one.name, hints[one.name], one.default))
    return {one.name: one for one in found}


def _setting(name: str, group: str, field_name: str, hint: Any, default: Any) -> Setting:
    kind, option = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
    # What is declared first stands in typer's `default`.
    declarations = (getattr(option, "default", None), *(getattr(option, "param_decls", None) or ()))
    declared = [one for one in declarations if isinstance(one, str) and one.startswith("-")]
    spelt = declared[-1].partition("/")[0] if declared else f"--{field_name.replace('_', '-')}"
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    bounds = getattr(option, "min", None), getattr(option, "max", None)
    return Setting(name or spelt.lstrip("-"), group, field_name, kind, *bounds, default)


def setting_named(name: str) -> Setting:
    """The setting of this name, or one that other tools have for it. Raises UsageError."""
    spelt = name.lower().lstrip("-").replace("_", "-")
    found = settings().get(_OTHER_NAMES.get(spelt, spelt))
    if found is not None:
        return found
    placed = {one.name.replace("_", "-") for one in dataclasses.fields(PlacementOptions)}
    if spelt in placed or spelt in ("num-ctx", "model"):
        raise UsageError(f"{name} needs the model to be loaded again.", hint="Leave, and give it to specdec run.")
    near = difflib.get_close_matches(spelt, [*settings(), *_OTHER_NAMES], n=1)
    raise UsageError(
        f"There is no setting {quoted(name)}.",
        hint=f"Did you mean {near[0]}?" if near else "/set lists them.",
    )


def values(options: RunOptions, request: "PairRequest") -> dict[str, Any]:
    """Every setting as it is in force: what was not given as the preset or llama.cpp has it."""
    found: dict[str, Any] = {}
    for name, one in settings().items():
        given = options.temp if not one.group else getattr(getattr(options, one.group), one.field)
        in_force = getattr(request.sampling.params, "temperature" if one.field == "temp" else one.field, given)
        found[name] = request.sampling.seed if name == "seed" else in_force
    return found


def usual(setting: Setting) -> Any:
    """What is in force where nobody says otherwise."""
    from specdec_cli.decode.sampling import SamplingParams

    return getattr(SamplingParams(), setting.field, setting.default)
