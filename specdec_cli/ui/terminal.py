"""What the terminal can do, read from a stream and an environment that the caller gives."""

import codecs
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from specdec_cli.foreground import modes_of, set_modes, without_echo

FALLBACK_SIZE = (80, 24)
SMALLEST_LIVE_SIZE = (20, 5)
DUMB_TERMS = ("dumb", "unknown")
PIECE = 250
"""Characters, 1,000 bytes at most: Python's buffer for a terminal (1,024 bytes) holds them whole, so that a signal in
the middle of writing loses nothing."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """One output stream as a place to draw."""

    stream: TextIO
    environ: Mapping[str, str]

    @property
    def is_tty(self) -> bool:
        return not self.stream.closed and self.stream.isatty()

    def is_same_as(self, other: "Terminal") -> bool:
        """Whether both lead to the same file or pipe, as after `2>&1`."""
        try:
            return os.path.samestat(os.fstat(self.stream.fileno()), os.fstat(other.stream.fileno()))
        except (OSError, ValueError):  # no descriptor, or closed
            return False

    @property
    def is_dumb(self) -> bool:
        return self.environ.get("TERM", "").lower() in DUMB_TERMS

    @property
    def color(self) -> bool:
        """Colour is wanted and understood (https://no-color.org: any non-empty NO_COLOR forbids it)."""
        return self.is_tty and not self.is_dumb and not self.environ.get("NO_COLOR")

    @property
    def utf8(self) -> bool:
        """Whether any character can be written; otherwise only ASCII is."""
        encoding = getattr(self.stream, "encoding", None) or "ascii"
        try:
            return codecs.lookup(encoding).name == "utf-8"
        except LookupError:
            return False

    @property
    def can_draw(self) -> bool:
        """Whether the live view is possible here."""
        columns, rows = self.size()
        wide_enough = columns >= SMALLEST_LIVE_SIZE[0] and rows >= SMALLEST_LIVE_SIZE[1]
        return self.is_tty and not self.is_dumb and wide_enough

    def write(self, text: str) -> None:
        """Write at once, and to the end even if KeyboardInterrupt comes in the middle: a frame cut short leaves the
        cursor nobody knows where. A second one ends it, for whoever has stopped the terminal (Ctrl-S).
        """
        interrupt = None
        for start in range(0, len(text), PIECE):
            try:
                self.stream.write(text[start : start + PIECE])
                self.stream.flush()
            except KeyboardInterrupt as error:
                if interrupt:
                    raise
                interrupt = error
                self.stream.flush()
        if interrupt:
            raise interrupt

    def size(self) -> tuple[int, int]:
        """Columns and rows now. The window itself knows best: COLUMNS and LINES do not follow a resize."""
        try:
            columns, rows = os.get_terminal_size(self.stream.fileno())
        except (OSError, ValueError):
            columns, rows = 0, 0
        return (
            columns or _number(self.environ.get("COLUMNS")) or FALLBACK_SIZE[0],
            rows or _number(self.environ.get("LINES")) or FALLBACK_SIZE[1],
        )


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


@contextmanager
def quiet_keyboard(stdin: TextIO | None) -> Iterator[None]:
    """Do not echo what is typed meanwhile: it would stand in the middle of the answer. It is kept for later."""
    saved = modes_of(stdin)
    if stdin is None or saved is None:
        yield
        return
    set_modes(stdin, without_echo(saved))
    try:
        yield
    finally:
        set_modes(stdin, saved)
