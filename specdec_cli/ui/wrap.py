"""Growing text, broken into rows of the terminal."""

from itertools import groupby

from rich.cells import get_character_cell_size
from rich.segment import Segment
from rich.style import Style

from specdec_cli.ui.paint import Line

TAB = 4
EMOJI_STYLE = "\ufe0f"


class Wrapper:
    """Words are kept whole where they fit. A finished row never changes when more text comes.

    `rows` are the finished rows; whoever prints them clears the list. `tail` is the row being
    written. Spaces at the end of a row may hang over the edge; they are never drawn.
    """

    def __init__(self, columns: int) -> None:
        self.rows: list[Line] = []
        self._columns = max(2, columns)
        self._row: list[tuple[str, Style]] = []
        self._used = 0
        self._break_at = 0

    @property
    def tail(self) -> Line:
        return _segments(self._row)

    def resize(self, columns: int) -> None:
        """Only the row being written is broken again: the others are the terminal's now."""
        columns = max(2, columns)
        if columns == self._columns:
            return
        self._columns = columns
        row = self._row
        self._start_row([])
        for character, style in row:
            self._add(character, style)

    def push(self, text: str, style: Style) -> None:
        for character in text:
            if character == "\n":
                self._break(len(self._row))
            elif character == "\t":
                for _ in range(TAB - self._used % TAB):
                    self._add(" ", style)
            else:
                self._add(character, style)

    def _add(self, character: str, style: Style) -> None:
        width = cells(character)
        if character != " " and self._used + width > self._columns:
            self._break(self._break_before(character, width))
        joins_break = width == 0 and self._break_at == len(self._row)
        self._row.append((character, style))
        self._used += width
        if character == " " or width == 2 or joins_break:
            self._break_at = len(self._row)

    def _break_before(self, character: str, width: int) -> int:
        """Where to break when `character` does not fit: after the last space or wide character, if any."""
        if character == EMOJI_STYLE:
            return len(self._row) - 1
        indent_only = all(c == " " for c, _ in self._row[: self._break_at])
        return len(self._row) if indent_only or width == 2 else self._break_at

    def _break(self, at: int) -> None:
        self.rows.append(_segments(self._row[:at]))
        self._start_row(self._row[at:])

    def _start_row(self, row: list[tuple[str, Style]]) -> None:
        self._row = row
        self._used = sum(cells(c) for c, _ in row)
        self._break_at = 0


def wrapped(text: str, style: Style, columns: int) -> list[Line]:
    """A whole text in rows."""
    wrapper = Wrapper(columns)
    wrapper.push(text + "\n", style)
    return wrapper.rows


def cells(character: str) -> int:
    """The most cells that some terminal gives to a character.

    Terminals differ where a character joins the one before it (flags, skin tones, emoji style).
    A row that is too short looks the same everywhere; one that is too long does not.
    """
    if character == EMOJI_STYLE:
        return 1
    if "\U0001f1e6" <= character <= "\U0001f1ff" or "\U0001f3fb" <= character <= "\U0001f3ff":
        return 2
    return get_character_cell_size(character)


def _segments(row: list[tuple[str, Style]]) -> Line:
    end = len(row)
    while end and row[end - 1][0] == " ":
        end -= 1
    runs = groupby(row[:end], key=lambda cell: cell[1])
    return [Segment("".join(c for c, _ in run), style) for style, run in runs]
