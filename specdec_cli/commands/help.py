"""Help as plain text: options under their headings, beside a column that leaves their text room; words stay whole."""

import shutil
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from specdec_cli.errors import UsageError

WIDEST = 100
_NAMES, _GAP, _NARROW = 24, 2, 60
"""Columns of the names, of the gap after them, and of a window in which texts stand below their names."""
_ELSEWHERE = {
    "chat": "run MODEL",
    "generate": "run MODEL PROMPT",
    "ls": "list",
    "ps": "list",
    "show": "presets NAME",
    "info": "check TARGET DRAFT",
    "download": "pull NAME",
    "get": "pull NAME",
    "remove": "rm NAME",
    "delete": "rm NAME",
    "create": "draft make",
    "benchmark": "bench",
    "convert": "draft make",
    "diagnose": "doctor",
    "serve": "run MODEL",
    "stop": "list",
}
"""Commands of other tools, and what does the same here."""

USUAL = {
    "run": "--draft -k --temp --top-p --seed -n -f --system --think --json-schema --ctx --ngl --threads --plain --json",
    "bench": "--compare --draft --drafter -k --temp -n --repeats --kinds --prompts --budget --tune --json --md --plot",
    "audit": "--draft --drafter --rules -k --temp --tokens --prompts --budget --json --ctx --ngl --threads",
    "doctor": "--draft --offline --ctx --kv --ngl --device --threads --json",
    "make": "--out --temp -n --prompts --keep-anyway --ctx --ngl --threads --json",
    "trim": "--target --out --temp -n --prompts --keep-anyway --ctx --threads --json",
}
"""Options that matter, of commands with more of them than a window has rows: `-h` shows these alone."""

_SHORT = "specdec.short"
"""In what a context remembers: whether a page was asked for by -h."""

Entry = tuple[str, str]
"""Names of an option or a command, and its text."""


class Command(TyperCommand):
    """A command whose help is plain text: `-h` shows the options that matter, `--help` all of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        before = args[: args.index("--")] if "--" in args else args
        ctx.meta[_SHORT] = "-h" in before and "--help" not in before
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(_page(self, ctx)) + "\n")


class Commands(TyperGroup):
    """Commands whose help is plain text. Raises UsageError for one that does not exist."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(_page(self, ctx)) + "\n")

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            print(ctx.get_help())
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in _ELSEWHERE and args[0] not in self.commands and ctx.parent is None:
            raise UsageError(f"No such command {args[0]!r}.", hint=f"Use: specdec {_ELSEWHERE[args[0]]}")
        return super().resolve_command(ctx, args)


def columns() -> int:
    """How wide a page of help is here."""
    return max(20, min(WIDEST, shutil.get_terminal_size().columns))


def _page(command: Any, ctx: Any) -> Iterator[str]:
    width = columns()
    yield from folded(f"Usage: {ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}", width, "", " " * 7)
    for paragraph in (command.help or "").split("\n\n"):
        yield ""
        yield from folded(" ".join(paragraph.split()), width, "", "")
    parameters = command.get_params(ctx)
    usual = USUAL[command.name].split() if ctx.meta.get(_SHORT) and command.name in USUAL else None
    records = [(_heading(one), one.get_help_record(ctx)) for one in parameters if _is_shown(one, usual)]
    shown = sorted(((heading, entry) for heading, entry in records if entry), key=lambda one: one[0] != "Arguments")
    order = list(dict.fromkeys(heading for heading, _ in shown))
    for heading, entries in groupby(sorted(shown, key=lambda one: order.index(one[0])), key=lambda one: one[0]):
        yield from _section(heading, (entry for _, entry in entries), width)
    if isinstance(command, TyperGroup):
        found: list[Any] = [command.get_command(ctx, name) for name in command.list_commands(ctx)]
        yield from _section("Commands", ((one.name, _first(one.help)) for one in found if not one.hidden), width)
    if usual is not None:
        n_options = sum(one.param_type_name == "option" for one in parameters)
        yield ""
        yield from folded(f"All {n_options} options: {ctx.command_path} --help", width, "", "")
    if command.epilog:
        yield ""
        yield from folded(command.epilog, width, "", "")


def _is_shown(parameter: Any, usual: list[str] | None) -> bool:
    is_option = usual is not None and parameter.param_type_name == "option"
    return not is_option or any(name in parameter.opts for name in [*(usual or ()), "--help"])


def _heading(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or "Options"


def _first(text: str | None) -> str:
    """The first sentence."""
    line = " ".join((text or "").split("\n\n")[0].split())
    return line.partition(". ")[0].rstrip(".") + "."


def _section(heading: str, entries: Iterable[Entry], width: int) -> Iterator[str]:
    yield ""
    yield from folded(f"{heading}:", width, "", "")
    for names, text in entries:
        yield from entry(names, text, width)


def entry(names: str, text: str, width: int) -> Iterator[str]:
    """Lines with a name and its text beside it, or below it in a narrow window."""
    if width < _NARROW:
        yield from folded(names, width, "  ", "    ")
        yield from folded(text, width, "      ", "      ")
        return
    room = " " * (2 + _NAMES + _GAP)
    if len(names) > _NAMES:
        yield from folded(names, width, "  ", "    ")
        yield from folded(text, width, room, room)
    else:
        yield from folded(text, width, f"  {names:<{_NAMES + _GAP}}", room)


def folded(text: str, width: int, first: str, then: str) -> list[str]:
    """Lines of whole words; one that is longer than a line stays whole, too."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
