"""Options that several commands share, written once."""

import math
import os
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from specdec_cli.commands.completion import models
from specdec_cli.errors import Interrupted, TextDiffers, UsageError
from specdec_cli.outputs import open_output
from specdec_cli.settings import AUTO
from specdec_cli.ui.clean import printable

if TYPE_CHECKING:
    from specdec_cli.presets.schema import HubFile
    from specdec_cli.ui.waiting import Waiting

T = TypeVar("T")

LARGEST_NUMBER = 2**31 - 1
"""Of tokens, layers and draft lengths: llama.cpp counts them in 32 bits."""
_LARGEST_SIZE = 2**60
"""Bytes."""
_LONGEST_QUOTE = 40

SEED = 1
"""Of runs that are compared with each other, unless the user gives one."""

MODEL = typer.Argument(help="A preset (such as demo), or the path of the target's GGUF file.", autocompletion=models)

JsonOpt = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]

LogOpt = Annotated[Path | None, typer.Option(help="Write llama.cpp's log to this file.", rich_help_panel="Output")]


def in_panel(name: str) -> Callable[..., Any]:
    """typer.Option, listed under this heading in the help."""
    return partial(typer.Option, rich_help_panel=name)


def draft_length(text: str) -> int | None:
    """A number of draft tokens, None for auto. Raises UsageError."""
    if text == AUTO:
        return None
    number = whole_number(text)
    if number is None:
        raise UsageError(f"Invalid -k: {quoted(text)}.", hint="Give a number of draft tokens, or auto.")
    return number


def whole_number(text: str) -> int | None:
    """0 to LARGEST_NUMBER in ASCII digits; None for anything else, however long."""
    number = int(text) if re.fullmatch(r"[0-9]{1,10}", text) else LARGEST_NUMBER + 1
    return number if number <= LARGEST_NUMBER else None


def quoted(text: str) -> str:
    """What was given, in quotes; its beginning, if it does not fit in a sentence."""
    return repr(text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}...")


_lines: "list[Waiting]" = []
"""The line that may be on the screen: a terminal has room for one."""


def say(text: str) -> None:
    """A note for the user: on stderr, so that stdout stays the model's, and above the line that is shown."""
    if _lines:
        _lines[0].say(text)
    else:
        _print(text)


def _print(text: str) -> None:
    from specdec_cli.ui.sentences import write_sentences
    from specdec_cli.ui.terminal import Terminal

    write_sentences([text], Terminal(sys.stderr, os.environ))


def waiting(text: str | None = None) -> "Waiting":
    """The line on stderr that tells what takes so long, and `text` on it, until it is hidden or something ends it.

    A command that imports much shows it first: the imports take long enough to be noticed.
    """
    from specdec_cli.ui.terminal import Terminal
    from specdec_cli.ui.waiting import Waiting

    stop_waiting()
    line = Waiting(Terminal(sys.stderr, os.environ), _print)
    _lines[:] = [line]
    if text is not None:
        line.show(text)
    return line


def stop_waiting() -> None:
    """Take the line away, if there is one: something else is written now."""
    for line in _lines:
        line.hide()


def loading(*paths: Path | None) -> str:
    """What is told while models are loaded, and tried first if they were never opened here."""
    files = [path for path in paths if path is not None and path.exists()]
    n_bytes = sum(path.stat().st_size for path in files)
    return f"Loading {' + '.join(path.name for path in files)} ({n_bytes / 1e6:,.0f} MB) ..."


def quantize(source: Path, target: Path, file_type: str) -> None:
    """llama.cpp's quantiser on all cores, for presets that make their models here."""
    from specdec_cli.llama.quantize import quantize as write
    from specdec_cli.planning.machine import usable_cores

    write(source, target, file_type, threads=usable_cores())


def find(file: "HubFile") -> Path | None:
    """Where a file of the Hub lies on this machine. Asks no network."""
    from specdec_cli.hub.cache import cached
    from specdec_cli.hub.client import cache_root

    places = cached(cache_root(), file)
    return places[0] if places else None


def layers(text: str, option: str) -> str:
    """auto, all or a number of layers. Raises UsageError."""
    if text in ("auto", "all") or whole_number(text) is not None:
        return text
    raise UsageError(f"Invalid {option}: {quoted(text)}.", hint="Use auto, all or a number of layers.")


def agreed(question: str, *, default: bool) -> bool:
    """Ask the user. Raises Interrupted on Ctrl-C, and on the end of input."""
    stop_waiting()
    try:
        return typer.confirm(printable(question), default=default, err=True)
    except typer.Abort as stop:
        raise Interrupted(signal.SIGINT) from stop


def bytes_in(text: str | None, option: str) -> int | None:
    """A size such as 8G or 512M, in bytes; G is 2**30, as on the box of a graphics card. Raises UsageError."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    size = float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ") if found else math.inf
    if not found or (not found[2] and size != 0) or size > _LARGEST_SIZE:
        raise UsageError(f"Invalid {option}: {quoted(text)}.", hint="Give a size such as 8G or 512M.")
    return int(size)


def first(*values: T | None) -> T:
    """The first value that is given."""
    return next(value for value in values if value is not None)


def write_log(log: Path | None, *models: Path | None) -> None:
    """llama.cpp's log goes to this file from here on. Raises UsageError.

    It tells how models are loaded: without a file of theirs, the last log stays as it is.
    """
    if log is None or not all(path is None or path.exists() for path in models):
        return
    from specdec_cli.llama.log import log as llama_log

    llama_log.write_to(open_output(log))


def words(text: str | None) -> list[str]:
    """Parts between commas."""
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


def numbers(text: str | None, option: str) -> list[float]:
    """Finite numbers between commas. Raises UsageError."""
    try:
        found = [float(part) for part in words(text)]
    except ValueError:
        found = [math.nan]
    if all(map(math.isfinite, found)):
        return found
    raise UsageError(
        f"Invalid {option}: {quoted(text or '')}.", hint="Give numbers separated by commas, such as 0,0.7,1."
    )


def whole_numbers(text: str | None, option: str) -> list[int]:
    """Whole numbers between commas. Raises UsageError."""
    found = [whole_number(part) for part in words(text)]
    numbers = [number for number in found if number is not None]
    if len(numbers) == len(found):
        return numbers
    raise UsageError(
        f"Invalid {option}: {quoted(text or '')}.", hint="Give whole numbers separated by commas, such as 1,2,4."
    )


def text_differs(evidence: str) -> TextDiffers:
    """`evidence` is what a report of the bug should hold."""
    return TextDiffers(
        "A text differs from plain decoding's, and no near tie explains it.",
        hint=f"This is a bug. Please report it with {evidence}.",
    )
