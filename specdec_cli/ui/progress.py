"""Downloads as they go: bars in a terminal, a line for every 5 % elsewhere, or nothing."""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from specdec_cli.ui import words
from specdec_cli.ui.clean import printable
from specdec_cli.ui.terminal import Terminal

LINE_EVERY = 0.05
_NAME_WIDTH = 34


class NoProgress:
    """Notes only, or not even those."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def expect(self, n_bytes: int) -> None:
        pass

    def begin(self, name: str, size: int, have: int) -> None:
        pass

    def advance(self, n: int) -> None:
        pass


class LineProgress(NoProgress):
    """For pipes and logs: a line per file and for each further 5 % of it."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(write)
        self._write = write
        self._clock = clock
        self._name = ""
        self._size = self._have = self._came = 0
        self._began = 0.0
        self._next_share = 0.0

    def begin(self, name: str, size: int, have: int) -> None:
        self._name, self._size, self._have, self._came, self._began = name, size, have, 0, self._clock()
        self._next_share = self._share + LINE_EVERY
        there = "is already downloaded" if have >= size else f"resumes at {words.download(have)}" if have else "starts"
        self._write(f"{name} ({words.download(size)}) {there}.")

    def advance(self, n: int) -> None:
        self._have += n
        self._came += max(n, 0)
        if n < 0:
            self._next_share = self._share + LINE_EVERY
        if self._share >= self._next_share or (n > 0 and self._have >= self._size):
            self._write(self._line())
            self._next_share = (int(self._share / LINE_EVERY) + 1) * LINE_EVERY

    @property
    def _share(self) -> float:
        return self._have / self._size if self._size else 1.0

    def _line(self) -> str:
        seconds = max(self._clock() - self._began, 1e-9)
        rate = self._came / seconds
        left = (self._size - self._have) / rate
        return f"{self._name}: {self._share:4.0%} of {words.download(self._size)}, {words.download(int(rate))}/s" + (
            f", {left:.0f} s left" if left > 0 else ""
        )


class BarProgress(NoProgress):
    """One bar for each file and, for several, one for all."""

    def __init__(self, terminal: Terminal) -> None:
        self._console = Console(file=terminal.stream, no_color=not terminal.color, highlight=False, markup=False)
        super().__init__(self._print)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
            console=self._console,
            expand=True,
        )
        self._total: TaskID | None = None
        self._file: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _print(self, text: str) -> None:
        self._bars.console.print(Text(printable(text)))

    def expect(self, n_bytes: int) -> None:
        if n_bytes:
            self._total = self._bars.add_task("in all", total=n_bytes)

    def begin(self, name: str, size: int, have: int) -> None:
        label = printable(name)
        label = label if len(label) <= _NAME_WIDTH else f"...{label[3 - _NAME_WIDTH :]}"
        self._file = self._bars.add_task(label, total=size, completed=have)

    def advance(self, n: int) -> None:
        for task in (self._file, self._total):
            if task is not None:
                self._bars.advance(task, n)


def open_progress(terminal: Terminal, *, quiet: bool, say: Callable[[str], None]) -> NoProgress:
    """The progress that suits where it is shown. Quiet ones show only what is asked of the user."""
    if quiet:
        return NoProgress(lambda _: None)
    return BarProgress(terminal) if terminal.can_draw and terminal.utf8 else LineProgress(say)
