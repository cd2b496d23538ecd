"""Takes pictures of the real program in terminals of three sizes.

    python -m scripts.checks.screens MODEL FOLDER [--draft FILE] [--only run,chat,race,bench]

Each scene runs in a pseudo-terminal of its own; what a person would see there is written to
FOLDER/SCENE-COLUMNSxROWS.svg. `run` is taken in the middle of an answer, the others at their end.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte
from rich.segment import Segment
from rich.style import Style

from specdec_cli.ui.paint import Line
from specdec_cli.ui.race_files import svg
from tests.terminals import Terminal

SIZES = ((80, 24), (40, 10), (120, 40))
_QUESTION = "Write a Python function that returns the n-th Fibonacci number."
_WORDS_SEEN = 60
"""Of an answer, before its picture is taken."""
_PATIENCE = 240.0
_COLORS = {"brown": "yellow", "default": None}
"""pyte's names for Rich's."""


def run(terminal: Terminal) -> None:
    _until(terminal, lambda: terminal.text.count(" ") > 6 * _WORDS_SEEN)


def to_the_end(terminal: Terminal) -> None:
    _until(terminal, lambda: terminal.process.poll() is not None)


def chat(terminal: Terminal) -> None:
    for question in (b"What is a hash table? Answer in one sentence.\r", b"/set temperature 0\r", b"And a set?\r"):
        before = terminal.raw.count(b"\x1b[?2004h")
        terminal.send(question)
        _until(terminal, lambda before=before: terminal.raw.count(b"\x1b[?2004h") > before)
    terminal.send(b"/sta")
    terminal.read_for(1.0)


SCENES: Mapping[str, tuple[Sequence[object], Callable[[Terminal], None]]] = {
    "run": (("run", _QUESTION, "-n", 400), run),
    "chat": (("run", "-n", 60, "--no-history"), chat),
    "race": (("race", _QUESTION, "-n", 120), to_the_end),
    "bench": (("bench", "-k", "2,auto", "--kinds", "code,chat", "-n", 32, "--repeats", 1, "--budget", 0.5), to_the_end),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draft")
    parser.add_argument("--only", default=",".join(SCENES))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.only.split(","):
        (command, *more), play = SCENES[name]
        draft = ["--draft", options.draft] if options.draft else []
        for columns, rows in SIZES:
            words = [command, options.model, *more, *draft]
            with Terminal(*words, columns=columns, rows=rows, env={"COLORTERM": "", "NO_COLOR": ""}) as terminal:
                if name == "chat":
                    _until(terminal, lambda terminal=terminal: b"\x1b[?2004h" in terminal.raw)
                play(terminal)
                picture = svg(drawn(terminal.screen), columns, f"specdec {command}")
            file = options.folder / f"{name}-{columns}x{rows}.svg"
            file.write_text(picture, encoding="utf-8")
            print(file, flush=True)


def drawn(screen: pyte.Screen) -> list[Line]:
    """The rows of a window, without the empty ones at its end."""
    rows = [[_segment(screen.buffer[y][x]) for x in range(screen.columns)] for y in range(screen.lines)]
    while rows and not "".join(segment.text for segment in rows[-1]).strip():
        rows.pop()
    return rows


def _segment(char: pyte.screens.Char) -> Segment:
    color = _COLORS.get(char.fg, char.fg)
    style = Style(color=color, bold=char.bold, underline=char.underscore, reverse=char.reverse, italic=char.italics)
    return Segment(char.data, style)


def _until(terminal: Terminal, happened: Callable[[], object]) -> None:
    end = time.monotonic() + _PATIENCE
    while not happened() and time.monotonic() < end:
        terminal.read_for(0.05)
    terminal.read_for(0.3)


if __name__ == "__main__":
    main()
