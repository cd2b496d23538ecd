"""llama.cpp's log: written to a file on request, never to the terminal; the last lines explain failures."""

import ctypes
import re
from collections import deque
from typing import TextIO

import llama_cpp

# GGML_LOG_LEVEL_*: the last means more of the line before.
_DEBUG, _ERROR, _CONTINUED = 1, 4, 5
_NOISE = re.compile(
    r"^(?:[\w:]+|error loading model): *"
)  # "llama_model_load: " and the like: function names help nobody


class LlamaLog:
    """Keeps the last lines of llama.cpp's log. There is one in a process, as there is one callback."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=400)
        self._errors: deque[str] = deque(maxlen=20)
        self._file: TextIO | None = None
        self._level = 0

    def write_to(self, file: TextIO) -> None:
        """Send everything from here on to `file` as well."""
        self._file = file

    def note(self, text: str) -> None:
        """Write what llama.cpp said in another process to the file, if there is one."""
        self._write(text)

    def start_afresh(self) -> None:
        """Forget the lines so far, so that a failure is explained by its own lines only."""
        self.lines.clear()
        self._errors.clear()

    def reason(self) -> str | None:
        """The first error since `start_afresh`: it names the cause, later ones only pass it on."""
        for line in self._errors:
            text = line
            while (shorter := _NOISE.sub("", text, count=1)) != text and shorter:
                text = shorter
            if text:
                return text
        return None

    def add(self, level: int, text: str) -> None:
        """Take one message as llama.cpp gives it: with its line end, or a continuation of the last."""
        self._write(text)
        line = text.rstrip("\n")
        if level == _CONTINUED and self._level != _DEBUG and self.lines:
            self.lines[-1] += line
            return
        self._level = self._level if level == _CONTINUED else level
        if self._level == _DEBUG or not line.strip(". "):
            return
        self.lines.append(line)
        if self._level == _ERROR:
            self._errors.append(line)

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
            self._file.flush()
        except OSError:  # a full disk: llama.cpp, which is calling, cannot be told
            self._file = None


log = LlamaLog()


def _take(level: int, text: bytes, _user_data: object) -> None:
    log.add(level, text.decode("utf-8", "replace"))


_callback = llama_cpp.llama_log_callback(_take)  # must live as long as the process


def capture_log() -> None:
    """Take the log over from llama_cpp, which prints it to stderr."""
    llama_cpp.llama_log_set(_callback, ctypes.c_void_p(0))
