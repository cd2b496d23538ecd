"""Findings line by line: the verdict, what was looked at, what was found, and a command below it."""

import textwrap

from rich.console import Console
from rich.style import Style
from rich.text import Text

from specdec_cli.ui.clean import printable
from specdec_cli.ui.paint import BOLD, DIM
from specdec_cli.ui.terminal import Terminal

_VERDICT, _NAME, _NARROW = 9, 12, 60
"""Columns of the verdict and of the name, and of a window in which texts stand below them."""
_STYLES = {
    "ok": Style(color="green"),
    "warning": Style(color="yellow", bold=True),
    "problem": Style(color="red", bold=True),
    "skipped": DIM,
}


class Findings:
    """Writes them to a terminal as wide as it is, and to a pipe a line each."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._console = Console(
            file=terminal.stream, no_color=not terminal.color, force_terminal=terminal.color, highlight=False
        )

    def write(self, name: str, verdict: str, text: str, command: str | None) -> None:
        """One finding; of what is right no command is shown."""
        text = " ".join(printable(text, ascii_only=not self._terminal.utf8).split())
        columns = self._terminal.size()[0]
        is_narrow = self._terminal.is_tty and columns < _NARROW
        indent = 2 if is_narrow else _VERDICT + _NAME
        width = max(columns - indent, 20) if self._terminal.is_tty else 10**6
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
        head = Text.assemble((f"{verdict:<{_VERDICT}}", _STYLES[verdict]), (f"{name:<{_NAME}}", BOLD))
        if is_narrow:
            self._print(head)
        else:
            self._print(head + Text(lines.pop(0) if lines else ""))
        for line in lines:
            self._print(Text(f"{' ' * indent}{line}"))
        if command is not None and verdict in ("warning", "problem"):
            self._print(Text(f"{' ' * indent}{printable(command)}", BOLD))

    def end(self, sentence: str, command: str) -> None:
        """What all of it comes to, and the one thing to do next."""
        self._print(Text())
        self._print(Text(printable(sentence)))
        self._print(Text.assemble("Next: ", (printable(command), BOLD)))

    def _print(self, line: Text) -> None:
        line.rstrip()
        if self._terminal.color:
            self._console.print(line, soft_wrap=True)
        else:
            self._terminal.stream.write(f"{line.plain}\n")
        self._terminal.stream.flush()
