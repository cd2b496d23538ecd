"""A stop flag that llama.cpp itself reads while it computes."""

import ctypes
import sys

import llama_cpp

_libc = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)


class AbortFlag:
    """Set from any thread; a running llama_decode then ends within one graph node, on CPU backends.

    llama.cpp asks its callback before every node, over a thousand times a pass, so a Python
    callback would cost several per cent. The C library's `strlen` is the callback instead: it
    answers 0 (false) for the empty string in the flag's buffer and 1 (true) once a byte is there.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        self.signal_number = 0
        self.callback = ctypes.cast(_libc.strlen, llama_cpp.ggml_abort_callback)
        self.data = ctypes.cast(self._buffer, ctypes.c_void_p)

    def set(self, signal_number: int) -> None:
        """Ask running and coming passes to stop."""
        self.signal_number = signal_number
        self._buffer[0] = b"x"

    def clear(self) -> None:
        """Let passes run again."""
        self._buffer[0] = b"\0"

    @property
    def is_set(self) -> bool:
        return self._buffer[0] != b"\0"
