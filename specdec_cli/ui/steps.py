"""A long piece of work in equal steps: a bar with the time left, or a line for every tenth."""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from specdec_cli.ui.terminal import Terminal

_LINES = 10


class Steps:
    """Counts `n` steps; `say` is for where no bar can be drawn, and may be silent."""

    def __init__(
        self,
        n: int,
        label: str,
        terminal: Terminal,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._n, self._done, self._label, self._say, self._clock = n, 0, label, say, clock
        self._began = clock()
        self._bar: Progress | None = None
        if terminal.can_draw and terminal.utf8:
            console = Console(file=terminal.stream, no_color=not terminal.color)
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task(label, total=n)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self) -> None:
        """One more is done."""
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._task)
        elif self._done * _LINES // self._n > (self._done - 1) * _LINES // self._n:
            left = (self._clock() - self._began) / self._done * (self._n - self._done)
            self._say(f"{self._label}: {self._done} of {self._n}" + (f", {left:.0f} s left" if left >= 1 else ""))
