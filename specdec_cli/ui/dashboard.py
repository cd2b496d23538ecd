"""The live view: the answer as ordinary text, and the figures below it while it grows."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleDimensions, ConsoleRenderable
from rich.live import Live
from rich.segment import ControlType, Segment, SegmentLines, Segments
from rich.style import Style

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.text_stream import Span
from specdec_cli.decode.types import FinishReason, Origin
from specdec_cli.ui.clean import Cleaner, printable
from specdec_cli.ui.paint import DIM, PLAIN, Line, Palette
from specdec_cli.ui.panel import panel
from specdec_cli.ui.summary import introduction, one_line, summary, warnings
from specdec_cli.ui.terminal import Terminal
from specdec_cli.ui.view import Header
from specdec_cli.ui.wrap import Wrapper, wrapped

LEAST_SECONDS_BETWEEN_DRAWS = 0.1
SECONDS_PER_DRAWING_SECOND = 400
"""Drawing may take a quarter of a hundredth of the time."""
SECONDS_BETWEEN_PANELS = 0.4
"""Figures that change more often cannot be read, and to work them out is more than half of a drawing."""

# From the cursor to the end of the screen. Not in one go: tmux takes "erase all below", given in
# the top left corner, for a cleared screen, and keeps what was there in its history.
_ERASE_BELOW = "\r\x1b[K\x1b[C\x1b[J\r"
# Synchronised output shows a frame at once where it is known. Without automatic wrapping a
# character that this terminal draws wider than expected cannot push the frame down a row.
_FRAME_START = "\x1b[?2026h\x1b[?7l" + _ERASE_BELOW
_FRAME_END = "\r\x1b[?7h\x1b[?2026l"


class Region(Live):
    """Rich's Live, with the cursor parked at the region's first character between frames.

    Everything from the cursor on is ours, however many rows a resize has made of it: erasing
    needs no count of rows, neither in terminals that reflow their lines nor in those that do not.
    Only what a terminal itself moves out of its window while it reflows is out of reach.
    """

    def __init__(self, console: Console, *, redirect_stderr: bool) -> None:
        super().__init__(console=console, auto_refresh=False, redirect_stderr=redirect_stderr)
        self.lines: list[Line] = []

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """A frame: what is printed for good, then the region, then the way back to its start."""
        content: list[Segment] = []
        for number, line in enumerate(self.lines):
            content += line if number == 0 else [Segment.line(), *line]
        rows_up = len(self.lines) - 1
        park = f"\x1b[{rows_up}A" if rows_up > 0 else ""
        return [_control(_FRAME_START), *renderables, Segments(content), _control(park + _FRAME_END)]


class LiveView:
    """Finished rows of the answer are printed once and belong to the terminal's history from then on.

    The region holds only the row being written and the panel, so it never outgrows the window.
    """

    def __init__(
        self,
        header: Header,
        terminal: Terminal,
        *,
        redirect_stderr: bool = False,
        verbose: bool = False,
        introduce: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._header = header
        self._verbose = verbose
        self._introduce = introduce
        self._terminal = terminal
        self._clock = clock
        self._palette = Palette.of(color=terminal.color, utf8=terminal.utf8)
        self._styles = text_styles(self._palette)
        self._cleaner = Cleaner(ascii_only=not terminal.utf8)
        self._wrapper = Wrapper(terminal.size()[0])
        self._stats = RunStats()
        self._pending: deque[Span] = deque()
        self._finished = False
        self._noticed: set[str] = set()
        self._draw_seconds = {is_new: deque([0.0, 0.0, 0.0], maxlen=3) for is_new in (False, True)}
        self._next_draw = float("-inf")
        self._panel: list[Line] = []
        self._panel_shows: tuple[int, int, bool, str | None] | None = None
        self._next_panel = float("-inf")
        self._panel_is_new = False
        self._console = console_for(terminal)
        self._region = Region(self._console, redirect_stderr=redirect_stderr)

    def __enter__(self) -> Self:
        try:
            self._region.start()
            self._draw(news=self._introduction())
        except BaseException:
            self._restore_terminal()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._finished:
                self._end([])
        finally:
            self._restore_terminal()

    def show(self, spans: Sequence[Span], stats: RunStats) -> None:
        self._pending += spans
        self._stats = stats
        started = self._clock()
        if started < self._next_draw:
            return
        self._draw()
        ended = self._clock()
        # Each draw is paid for by the pause after it. The median, so that one draw during which the system was busy
        # elsewhere does not stop the picture; of draws like this one, since those with new figures are dear and rarer.
        alike = self._draw_seconds[self._panel_is_new]
        alike.append(ended - started)
        pause = SECONDS_PER_DRAWING_SECOND * median(alike)
        self._next_draw = started + max(LEAST_SECONDS_BETWEEN_DRAWS, pause)

    def notice(self, text: str) -> None:
        if text in self._noticed:
            return
        self._noticed.add(text)
        self._draw(news=self._rows([(text, self._palette.notice)]))

    def finish(self, spans: Sequence[Span], stats: RunStats, reason: FinishReason, notes: Sequence[str] = ()) -> None:
        self._pending += spans
        self._stats = stats
        self._end(self._summary(reason, notes))

    def _restore_terminal(self) -> None:
        """Nothing is left to draw, so that showing the cursor is the last thing written."""
        self._region.lines = []
        self._region.stop()

    def _introduction(self) -> list[Line]:
        lines = introduction(self._header, self._palette.draft_name) if self._introduce else []
        return self._rows([(text, DIM) for text in lines])

    def _summary(self, reason: FinishReason, notes: Sequence[str]) -> list[Line]:
        glance = one_line(self._header, self._stats, reason, utf8=self._palette.utf8)
        texts = [("", DIM), (glance, DIM)]
        texts += [(text, DIM) for text in (summary(self._stats, reason) if self._verbose else [])]
        texts += [(text, self._palette.off) for text in warnings(self._stats)]
        texts += [(text, self._palette.notice) for text in notes]
        return self._rows(texts)

    def _rows(self, texts: Sequence[tuple[str, Style]]) -> list[Line]:
        columns, _ = self._terminal.size()
        return [
            row
            for text, style in texts
            for row in wrapped(printable(text, ascii_only=not self._palette.utf8), style, columns)
        ]

    def _end(self, last_lines: list[Line]) -> None:
        """All of the text stays on the screen, the panel goes."""
        self._finished = True
        self._draw(news=last_lines)

    def _draw(self, news: Sequence[Line] = ()) -> None:
        columns, rows = self._terminal.size()
        self._console.size = ConsoleDimensions(columns, rows)
        self._wrapper.resize(columns)
        self._take_in_text()
        self._region.lines = self._region_lines(columns, rows)
        with self._console.capture() as frame:
            self._console.print(SegmentLines([*self._wrapper.rows, *news], new_lines=True))
        # In this order, and in one call: a KeyboardInterrupt must not make the next frame repeat these rows.
        self._wrapper.rows.clear()
        self._terminal.write(frame.get())

    def _take_in_text(self) -> None:
        while self._pending:
            span = self._pending.popleft()
            self._wrapper.push(self._cleaner.push(span.text), self._styles[span.origin])
        if self._finished:
            self._wrapper.push(self._cleaner.close(), PLAIN)
            if self._wrapper.tail:
                self._wrapper.push("\n", PLAIN)

    def _region_lines(self, columns: int, rows: int) -> list[Line]:
        if self._finished or not self._region.is_started:
            return []
        return [self._wrapper.tail, *self._panel_lines(columns, rows)][: rows - 1]

    def _panel_lines(self, columns: int, rows: int) -> list[Line]:
        """Those of before, for a while, unless something has changed that should be seen at once."""
        shows = (columns, rows, self._stats.passes > 0, self._stats.off_reason)
        now = self._clock()
        self._panel_is_new = now >= self._next_panel or shows != self._panel_shows
        if self._panel_is_new:
            self._panel = panel(self._header, self._stats, self._palette, columns, rows)
            self._panel_shows, self._next_panel = shows, now + SECONDS_BETWEEN_PANELS
        return self._panel


def text_styles(palette: Palette) -> dict[Origin, Style]:
    """How the answer shows where its tokens came from."""
    return {"draft": palette.draft, "target": PLAIN}


def console_for(terminal: Terminal) -> Console:
    """Colours are the terminal's own sixteen, so that they suit its background."""
    return Console(
        file=terminal.stream,
        force_terminal=True,
        force_jupyter=False,
        color_system="standard",
        no_color=not terminal.color,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
        _environ=terminal.environ,
    )


def _control(codes: str) -> Segments:
    # Some control code, whichever, tells Rich that the text takes no room; the text is what is written.
    return Segments([Segment(codes, None, [(ControlType.CARRIAGE_RETURN,)])])
