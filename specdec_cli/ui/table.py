"""Rows in columns, as wide as the terminal in one and as they are in a pipe."""

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specdec_cli.ui.clean import printable
from specdec_cli.ui.terminal import Terminal

_LEAST_LAST = 20
"""Columns that a long last cell needs."""
PIPE_WIDTH = 400
"""Nothing is cut where nobody's window sets a limit."""


def write_table(headers: Sequence[str], rows: Sequence[Sequence[str]], terminal: Terminal, *, right: str = "") -> None:
    """A table without lines. Columns named in `right` (with blanks between) are numbers. Cells are never markup.

    Where a terminal is too narrow for that, each row is a paragraph.
    """
    if terminal.is_tty and not _fits(headers, rows, terminal.size()[0]):
        _write_paragraphs(headers, rows, terminal)
        return
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


def _fits(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether all columns are whole, and the last one, which may be folded, has room."""
    *before, last = (max(map(cell_len, column)) for column in zip(headers, *rows, strict=True))
    return sum(before) + len(before) + min(last, _LEAST_LAST) <= width


def _write_paragraphs(headers: Sequence[str], rows: Sequence[Sequence[str]], terminal: Terminal) -> None:
    """The first cell, and below it the others with their names, all of the last."""
    width = terminal.size()[0]
    for row in rows:
        name, *others, last = (printable(cell, ascii_only=not terminal.utf8) for cell in row)
        labelled = [f"{header} {cell}" for header, cell in zip(headers[1:-1], others, strict=True)]
        rest = [*labelled, f"{headers[-1]} {last}"] if len(row) > 1 else []
        for line in [*_folded(name, width, ""), *_folded(", ".join(rest), width, "  ")]:
            terminal.write(f"{line}\n")


def _folded(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
