"""Two answers side by side, each at the speed at which it was written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import ConsoleDimensions
from rich.segment import SegmentLines

from specdec_cli.decode.text_stream import Moment
from specdec_cli.ui import words
from specdec_cli.ui.clean import Cleaner
from specdec_cli.ui.dashboard import Region, console_for, text_styles
from specdec_cli.ui.paint import BOLD, DIM, PLAIN, Line, Palette, fit, line, pad
from specdec_cli.ui.terminal import Terminal
from specdec_cli.ui.wrap import Wrapper, wrapped

FRAME_SECONDS = 0.05
SIDE_BY_SIDE = 80
"""Columns of a window from which on the two stand side by side; in narrower ones, one above the other."""
_GAP = 3
_MOST_ROWS = 18
"""Of text, also in higher windows: a picture for a page."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One answer: its name, and when its text came."""

    name: str
    moments: Sequence[Moment]

    @property
    def seconds(self) -> float:
        """Until the end."""
        return self.moments[-1].seconds if self.moments else 0.0


def length(lanes: Sequence[Lane]) -> float:
    """Seconds of the whole race."""
    return max((lane.seconds for lane in lanes), default=0.0)


def frame_times(lanes: Sequence[Lane]) -> Iterator[float]:
    """Seconds at which a frame is drawn; the last one is the end."""
    n = int(length(lanes) / FRAME_SECONDS)
    yield from (i * FRAME_SECONDS for i in range(n + 1))
    yield length(lanes)


def frame(
    lanes: Sequence[Lane], seconds: float, palette: Palette, columns: int, rows: int, *, verdict: str = ""
) -> list[Line]:
    """The window after so many seconds, at most `rows` lines; under it the verdict, which is known at the end."""
    last = wrapped(verdict, BOLD, columns) if verdict else []
    room = rows - max(len(last), 1) - 1
    if columns >= SIDE_BY_SIDE:
        width = (columns - _GAP) // 2
        height = min(room, _MOST_ROWS, _height(lanes, palette, width))
        left, right = (_lane(lane, seconds, palette, width, height) for lane in lanes)
        rule = "│" if palette.utf8 else "|"
        drawn = [[*pad(one, width), *line((f" {rule} ", DIM)), *other] for one, other in zip(left, right, strict=True)]
    else:
        height = min(room // len(lanes), _height(lanes, palette, columns))
        drawn = [row for lane in lanes for row in _lane(lane, seconds, palette, columns, height)]
    return [fit(palette.safe(content), columns) for content in [*drawn, *last]]


def _height(lanes: Sequence[Lane], palette: Palette, width: int) -> int:
    """Rows of the longer answer with its title."""
    return 1 + max(len(_text(lane.moments, palette, width)) for lane in lanes)


def _lane(lane: Lane, seconds: float, palette: Palette, width: int, height: int) -> list[Line]:
    """A title with the speed so far, and the last rows of the text so far; always `height` lines."""
    there = [moment for moment in lane.moments if moment.seconds <= seconds]
    shown = _text(there, palette, width)[-max(height - 1, 1) :]
    return [_title(lane, there, seconds, palette), *shown, *[line()] * (height - 1 - len(shown))][:height]


def _text(moments: Sequence[Moment], palette: Palette, width: int) -> list[Line]:
    styles, text, cleaner = text_styles(palette), Wrapper(width), Cleaner(ascii_only=not palette.utf8)
    for span in (span for moment in moments for span in moment.spans):
        text.push(cleaner.push(span.text), styles[span.origin])
    text.push(cleaner.close(), PLAIN)
    return [*text.rows, text.tail]


def _title(lane: Lane, there: Sequence[Moment], seconds: float, palette: Palette) -> Line:
    n_tokens = there[-1].tokens if there else 0
    first = lane.moments[0].tokens if lane.moments else 0
    elapsed = min(seconds, lane.seconds)
    speed = (n_tokens - first) / elapsed if elapsed > 0 else None
    told = [words.speed(speed), words.count(n_tokens, "token"), f"{elapsed:.1f} s"]
    return line((f"{lane.name}  ", BOLD), (words.listed(told, utf8=palette.utf8), DIM))


class RaceView:
    """Draws frames over one another at a terminal; what `finish` draws stays."""

    def __init__(self, lanes: Sequence[Lane], terminal: Terminal) -> None:
        self._lanes = lanes
        self._terminal = terminal
        self._palette = Palette.of(color=terminal.color, utf8=terminal.utf8)
        self._console = console_for(terminal)
        self._region = Region(self._console, redirect_stderr=False)

    def __enter__(self) -> "RaceView":
        self._region.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._region.lines = []
        self._region.stop()

    def show(self, seconds: float) -> None:
        """The race after so many seconds."""
        columns, rows = self._terminal.size()
        self._draw(frame(self._lanes, seconds, self._palette, columns, rows - 1), [])

    def finish(self, verdict: str) -> None:
        columns, rows = self._terminal.size()
        self._draw([], frame(self._lanes, length(self._lanes), self._palette, columns, rows - 1, verdict=verdict))

    def _draw(self, region: list[Line], last: list[Line]) -> None:
        self._console.size = ConsoleDimensions(*self._terminal.size())
        self._region.lines = region
        with self._console.capture() as drawn:
            self._console.print(SegmentLines(last, new_lines=True))
        self._terminal.write(drawn.get())
