"""What a server shows: a line for each request, and below them the state of things, where that can be drawn."""

from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from specdec_cli.ui.clean import printable
from specdec_cli.ui.terminal import Terminal

_FRAMES_A_SECOND = 4


class ServingView:
    """Draws on `terminal`; `status` is asked for the last line several times a second. With `plain`, or where nothing
    can be drawn, there are only the lines, written by `say`."""

    def __init__(
        self, terminal: Terminal, status: Callable[[], str], *, plain: bool, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._live: Live | None = None
        if terminal.can_draw and terminal.utf8 and not plain:
            console = Console(file=terminal.stream, no_color=not terminal.color, highlight=False)
            self._live = Live(
                console=console,
                get_renderable=lambda: Text(printable(status()), style="bold", overflow="ellipsis", no_wrap=True),
                refresh_per_second=_FRAMES_A_SECOND,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, line: str) -> None:
        """One more line above the last one."""
        if self._live is None:
            self._say(line)
        else:
            self._live.console.print(Text(printable(line)), soft_wrap=True)
