"""Questions typed at the keyboard: the prompt, line editing, history, and what signals do to a half-typed line."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from specdec_cli.paths import write_whole
from specdec_cli.signals import continuation_let_through
from specdec_cli.untrusted_files import read_file

try:
    import readline
except ImportError:  # Windows, whose console edits lines by itself
    readline = None  # type: ignore[assignment]

_PROMPT = "> "
_MOST_LINES, _MOST_BYTES = 1000, 1 << 20


class _AskAgain(Exception):
    """The prompt is to be drawn anew, with `text` typed already."""

    def __init__(self, text: str) -> None:
        self.text = text


class Questions:
    """Asks for lines. What was asked is kept in the file `history`, which only its owner can read, if there is one."""

    def __init__(self, history: Path | None) -> None:
        self._history = history
        self._asked: list[str] = []
        if readline is not None:
            for line in _lines(history):
                readline.add_history(line)

    def ask(self) -> str | None:
        """A line from the user; None at the end of input. Raises KeyboardInterrupt for Ctrl-C at an empty prompt."""
        typed = ""
        while True:
            try:
                with _signals():
                    text = _input(typed).strip()
            except _AskAgain as again:
                typed = again.text
            except EOFError:
                print(file=sys.stderr)
                return None
            except KeyboardInterrupt:
                print(file=sys.stderr)
                raise
            else:
                self._asked += [text] if text else []
                return text

    def keep(self) -> None:
        """Add what was asked to the history. One that cannot be written is no reason to end a chat with an error."""
        if self._history is not None and self._asked:
            lines = [*_lines(self._history), *self._asked][-_MOST_LINES:]
            with suppress(OSError):
                write_whole(self._history, "".join(f"{line}\n" for line in lines), private=True)


def _lines(history: Path | None) -> list[str]:
    """Of an earlier chat, the oldest first; none where they cannot be read."""
    if history is None:
        return []
    try:
        return read_file(history, _MOST_BYTES).decode("utf-8", "replace").split("\n")[:-1]
    except (OSError, ValueError):
        return []


def _input(typed: str) -> str:
    question = _PROMPT
    if not sys.stdout.isatty():  # input() would write it among the answers, and does not edit
        print(question, end="", file=sys.stderr, flush=True)
        question = ""
    if readline is None:
        return input(question)
    readline.set_startup_hook(lambda: readline.insert_text(typed))
    try:
        return input(question)
    finally:
        readline.set_startup_hook()


@contextmanager
def _signals() -> Iterator[None]:
    """Ctrl-C clears a line that is half typed, and after `fg` the prompt and the line are drawn again."""
    before = signal.signal(signal.SIGINT, _clear)
    try:
        with continuation_let_through(_resume):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


def _typed() -> str:
    return readline.get_line_buffer() if readline is not None and sys.stdout.isatty() else ""


def _clear(_number: int, _frame: FrameType | None) -> None:
    if not _typed():
        raise KeyboardInterrupt
    print()
    raise _AskAgain("")


def _resume(_number: int, _frame: FrameType | None) -> None:
    print(end="\r", flush=True)
    raise _AskAgain(_typed())
