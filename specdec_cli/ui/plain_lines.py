"""Lines as the terminal itself edits them, where nothing can be drawn."""

import signal
from collections.abc import Callable
from typing import TextIO


class Cleared(Exception):
    """Ctrl-C: what was typed is dropped."""

    def __init__(self, *, was_empty: bool) -> None:
        self.was_empty = was_empty


class PlainLines:
    """Reads one text after the other. `is_whole` says whether a line end ends what was typed."""

    def __init__(self, stdin: TextIO, stderr: TextIO, prompt: str, *, is_whole: Callable[[str], bool]) -> None:
        self._stdin, self._stderr, self._prompt, self._is_whole = stdin, stderr, prompt, is_whole

    def ask(self) -> str | None:
        """A text; None at the end of input. Raises Cleared for Ctrl-C."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            text = self._line(self._prompt)
            while text is not None and not self._is_whole(text):
                more = self._line("." * (len(self._prompt) - 1) + " ")
                text = None if more is None else f"{text}\n{more}"
        except KeyboardInterrupt:
            print(file=self._stderr)
            raise Cleared(was_empty=True) from None
        finally:
            signal.signal(signal.SIGINT, before)
        return text

    def close(self) -> None:
        """Nothing was changed."""

    def _line(self, prompt: str) -> str | None:
        print(prompt, end="", file=self._stderr, flush=True)
        line = self._stdin.readline()
        if not line:
            print(file=self._stderr)
            return None
        return line.removesuffix("\n")
