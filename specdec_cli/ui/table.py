"""Rows in columns, as wide as the terminal in one and as they are in a pipe."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specdec_cli.ui.clean import printable
from specdec_cli.ui.terminal import Terminal

PIPE_WIDTH = 400
"""Nothing is cut where nobody's window sets a limit."""


def write_table(headers: Sequence[str], rows: Sequence[Sequence[str]], terminal: Terminal, *, right: str = "") -> None:
    """A table without lines. Columns named in `right` (with blanks between) are numbers. Cells are never markup."""
    table = Table(box=None, pad_edge=False, header_style="bold" if terminal.color else "")
    for header in headers:
        is_last = header == headers[-1]
        is_number = header in right.split()
        table.add_column(
            header,
            justify="right" if is_number else "left",
            no_wrap=not is_last,
            overflow="fold" if is_last else "ellipsis",
        )
    for row in rows:
        table.add_row(*(Text(printable(cell, ascii_only=not terminal.utf8)) for cell in row))
    width = terminal.size()[0] if terminal.is_tty else PIPE_WIDTH
    console = Console(
        file=terminal.stream, width=width, no_color=not terminal.color, force_terminal=terminal.color, highlight=False
    )
    console.print(table)
