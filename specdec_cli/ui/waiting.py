"""One line that tells what is being waited for, at a terminal only; it is gone when there is something to read."""

from collections.abc import Callable
from typing import Self

from specdec_cli.ui.clean import printable
from specdec_cli.ui.terminal import Terminal


class Waiting:
    """Used as a context manager, which takes the line away. No escapes: blanks overwrite it on any terminal."""

    def __init__(self, terminal: Terminal, say: Callable[[str], None]) -> None:
        self._terminal = terminal
        self._say = say
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hide()

    def show(self, text: str) -> None:
        """Replace the line. Cut to the window, so that it stays one."""
        self.hide()
        if self._terminal.is_tty:
            one_line = " ".join(printable(text, ascii_only=True).split())
            self._shown = one_line[: max(0, self._terminal.size()[0] - 1)]
            self._terminal.write(self._shown)

    def hide(self) -> None:
        if self._shown:
            self._terminal.write(f"\r{' ' * len(self._shown)}\r")
            self._shown = ""

    def say(self, text: str) -> None:
        """A note for good, above the line."""
        shown = self._shown
        self.hide()
        self._say(text)
        if shown:
            self.show(shown)
