"""Stand-ins for what a view sees: a terminal, a clock, a run."""

import io
from collections.abc import Iterator, Sequence

import pyte

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.text_stream import Span
from specdec_cli.decode.types import Round
from specdec_cli.ui.dashboard import LiveView
from specdec_cli.ui.terminal import Terminal
from specdec_cli.ui.view import Header, ModelLine, View

HEADER = Header(
    target=ModelLine("big-Q4_K_M", 4_683_000_000, 235_000_000, (29, 29)),
    draft=ModelLine("small-Q8_0", 531_000_000, 50_000_000, (25, 25)),
    drafter="model",
    sampling="greedy",
    n_ctx=4096,
    prompt_tokens=37,
)

FRAME = "\x1b[?2026h"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeTty(io.StringIO):
    """A terminal as a stream, with a pyte screen behind it. A frame costs time on the clock."""

    encoding = "utf-8"

    def __init__(self, columns: int = 80, rows: int = 24, *, clock: Clock | None = None, cost: float = 0.0):
        super().__init__()
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self.environ = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
        self._parser = pyte.Stream(self.screen)
        self._clock = clock or Clock()
        self._cost = cost

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        text.encode(self.encoding)
        self._clock.now += self._cost * text.count(FRAME)
        self._parser.feed(text.replace("\n", "\r\n"))
        return super().write(text)

    @property
    def terminal(self) -> Terminal:
        return Terminal(self, self.environ)

    @property
    def frames(self) -> int:
        return self.getvalue().count(FRAME)

    def display(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def everything(self) -> list[str]:
        """History and screen, one string per row, without the empty rows at the end."""
        return everything(self.screen)

    def resize(self, columns: int, rows: int) -> None:
        """As xterm does it: nothing reflows; rows below the cursor go first, then the top ones go up."""
        screen = self.screen
        while screen.cursor.y >= rows:
            y, screen.cursor.y = screen.cursor.y, screen.lines - 1
            screen.index()
            screen.cursor.y = y - 1
        for y in range(rows, screen.lines):
            screen.buffer.pop(y, None)
        screen.lines = rows
        screen.resize(columns=columns)
        screen.set_margins()
        self.environ.update(COLUMNS=str(columns), LINES=str(rows))


def everything(screen: pyte.HistoryScreen) -> list[str]:
    above = ["".join(row[x].data for x in range(max(row, default=-1) + 1)) for row in screen.history.top]
    rows = [row.rstrip() for row in (*above, *screen.display)]
    while rows and not rows[-1]:
        rows.pop()
    return rows


def a_round(n_accepted: int = 0, *, drafted: int = 3, own: int | None = 9, seconds: float = 0.02) -> Round:
    """A round whose draft tokens are 0, 1, 2, ..."""
    return Round(
        drafted=tuple(range(drafted)),
        n_accepted=n_accepted,
        own=own,
        k=drafted,
        draft_seconds=0.2 * seconds,
        verify_seconds=0.7 * seconds,
        seconds=seconds,
    )


def spans_of(round_: Round, texts: Sequence[str]) -> list[Span]:
    return [Span(text, origin) for text, origin in zip(texts, round_.origins, strict=True)]


def say(view: View, stats: RunStats, text: str, *, n_accepted: int = 1) -> None:
    """One round, all of whose text comes with its last token."""
    round_ = a_round(n_accepted)
    stats.add(round_)
    view.show(spans_of(round_, [""] * n_accepted + [text]), stats)


def sentences(n: int) -> Iterator[str]:
    """Short numbered pieces, with a line end now and then."""
    for i in range(n):
        yield f"word{i:03d}" + ("\n" if i % 17 == 16 else " ")


def live(tty: FakeTty, clock: Clock | None = None, *, introduce: bool = True) -> LiveView:
    return LiveView(HEADER, tty.terminal, introduce=introduce, clock=clock or Clock())
