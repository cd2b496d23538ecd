"""Questions typed at the keyboard: one text after the other, and the file that keeps them for the next chat."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from specdec_cli.paths import write_whole
from specdec_cli.ui.plain_lines import PlainLines
from specdec_cli.ui.terminal import Terminal
from specdec_cli.untrusted_files import read_file

_PROMPT = "> "
_MOST_QUESTIONS, _MOST_BYTES = 1000, 1 << 20
_LARGEST_KEPT = 1 << 16
"""Bytes of a question that the history keeps: one that was pasted must not push all others out."""
_QUOTES = '"""'
_LINE_END = "\u2028"
"""Stands for a line end inside a question in the history, which has one question a line."""


class Question(NamedTuple):
    """What was typed. A quoted text is never a command."""

    text: str
    is_quoted: bool = False


class _Reader(Protocol):
    def ask(self) -> str | None:
        """A text; None for the end of input. Raises Cleared."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class Questions:
    """Asks for texts. What was asked is kept in the file `history`, which only its owner can read, if there is one."""

    def __init__(self, history: Path | None, complete: Callable[[str], Sequence[str]]) -> None:
        self._history = history
        self._reader = _reader(asked_before(history), complete)

    def ask(self) -> Question | None:
        """What the user asks; None at the end of input. Raises Cleared."""
        text = self._reader.ask()
        if text is None:
            return None
        text = text.strip()
        self.keep(text)
        if text.startswith(_QUOTES):
            return Question(text.removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n"), is_quoted=True)
        return Question(text)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._reader.close()

    def keep(self, text: str) -> None:
        """Add it to the history. One that cannot be written is no reason to end a chat with an error."""
        if self._history is None or not text or len(text.encode()) > _LARGEST_KEPT:
            return
        questions = [*asked_before(self._history), text][-_MOST_QUESTIONS:]
        lines = [question.replace("\n", _LINE_END) + "\n" for question in questions]
        while sum(len(line.encode()) for line in lines) > _MOST_BYTES:  # it could not be read again
            del lines[: 1 + len(lines) // 10]
        with suppress(OSError):
            write_whole(self._history, "".join(lines), private=True)


def is_whole(text: str) -> bool:
    '''Whether Enter ends it: a text that begins with """ ends with another one.'''
    text = text.strip()
    return not text.startswith(_QUOTES) or (len(text) >= 2 * len(_QUOTES) and text.endswith(_QUOTES))


def asked_before(history: Path | None) -> list[str]:
    """In earlier chats, the oldest first; nothing where it cannot be read."""
    if history is None:
        return []
    try:
        lines = read_file(history, _MOST_BYTES).decode("utf-8", "replace").split("\n")[:-1]
    except (OSError, ValueError):
        return []
    return [line.replace(_LINE_END, "\n") for line in lines]


def _reader(asked: Sequence[str], complete: Callable[[str], Sequence[str]]) -> _Reader:
    """The line editor where there is a terminal that it can draw on; not among answers that go to a file."""
    for stream in (sys.stdout, sys.stderr):
        terminal = Terminal(stream, os.environ)
        if terminal.is_tty and not terminal.is_dumb:
            from specdec_cli.ui.line_editor import LineEditor

            return LineEditor(stream, _PROMPT, history=asked, is_whole=is_whole, complete=complete)
    return PlainLines(sys.stdin, sys.stderr, _PROMPT, is_whole=is_whole)
