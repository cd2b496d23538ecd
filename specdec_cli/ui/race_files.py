"""A race as a file: a picture of its end, an animation, or a recording for asciinema players."""

import io
import json
from collections.abc import Sequence

from rich.console import Console
from rich.segment import SegmentLines
from rich.terminal_theme import MONOKAI

from specdec_cli.ui.paint import Line, Palette
from specdec_cli.ui.race import Lane, frame, frame_times, length

COLUMNS, ROWS = 100, 22
END_SECONDS = 3.0
"""For which the last frame stays."""


def race_svg(lanes: Sequence[Lane], verdict: str, title: str) -> str:
    """The end of the race, as an SVG."""
    palette = Palette.of(color=True, utf8=True)
    lines = frame(lanes, length(lanes), palette, COLUMNS, ROWS, verdict=verdict)
    return svg(lines, COLUMNS, title)


def svg(lines: Sequence[Line], columns: int, title: str) -> str:
    """Lines of a terminal as a picture."""
    console = Console(record=True, width=columns, file=io.StringIO(), color_system="standard", force_terminal=True)
    console.print(SegmentLines(lines, new_lines=True))
    return console.export_svg(title=title, theme=MONOKAI)


def race_cast(lanes: Sequence[Lane], verdict: str, title: str) -> str:
    """Version 2 of asciinema's format (docs.asciinema.org/manual/asciicast/v2).

    A header, then a line [seconds, "o", output] for each frame.
    """
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": title, "env": {"TERM": "xterm-256color"}}
    events = [[round(seconds, 3), "o", output] for seconds, output in _outputs(lanes, verdict)]
    return "".join(json.dumps(part) + "\n" for part in [header, *events])


def _outputs(lanes: Sequence[Lane], verdict: str) -> list[tuple[float, str]]:
    """What is written to the terminal, and when: a frame over the one before, if it is another."""
    outputs, before = list[tuple[float, str]](), ""
    for seconds, lines in race_frames(lanes, verdict):
        drawn = "\x1b[H\x1b[?25l" + "\r\n".join(f"{_ansi(content)}\x1b[K" for content in lines) + "\x1b[J"
        if drawn != before:
            outputs.append((seconds, drawn))
        before = drawn
    return [*outputs, (length(lanes) + END_SECONDS, "\x1b[?25h\r\n")]


def race_frames(lanes: Sequence[Lane], verdict: str, step: int = 1) -> list[tuple[float, list[Line]]]:
    """Every `step`th frame with its time in seconds, and the last with the verdict."""
    palette = Palette.of(color=True, utf8=True)
    *times, end = frame_times(lanes)
    frames = [(seconds, frame(lanes, seconds, palette, COLUMNS, ROWS)) for seconds in times[::step]]
    return [*frames, (end, frame(lanes, end, palette, COLUMNS, ROWS, verdict=verdict))]


def _ansi(content: Line) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=COLUMNS, legacy_windows=False)
    console.print(SegmentLines([content]), end="")
    return out.getvalue()
