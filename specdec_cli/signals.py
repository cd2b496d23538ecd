"""Ctrl-C while native code runs: the signal reaches a flag at once, not after the pass."""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from specdec_cli.errors import Interrupted


def raise_on_sigterm() -> None:
    """Let SIGTERM end the process as an error does: everything is closed, the exit code is 143."""
    signal.signal(signal.SIGTERM, _raise)


def _raise(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not break off what the first one closes
    raise Interrupted(number)


class SignalWatch:
    """While active, SIGINT and SIGTERM call `on_signal(number)` from a small thread.

    Python runs signal handlers only between bytecodes of the main thread, which sits inside
    llama_decode for seconds on a long prompt. The interpreter's wake-up descriptor is written at
    once by the C-level handler; the thread that reads it can act while the main thread computes.
    A second SIGINT, `patience` seconds after the first or later, raises KeyboardInterrupt the ordinary way, for
    whoever hangs elsewhere.
    """

    def __init__(self, on_signal: Callable[[int], None], *, patience: float = 0.0) -> None:
        self._on_signal = on_signal
        self._patience = patience
        self._previous: dict[int, Any] = {}
        self._first: float | None = None

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="signal-watch", daemon=True)
        self._thread.start()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._writer.close()  # ends the thread
        self._thread.join()
        self._reader.close()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._reader.recv(16):
                for number in data:
                    if number in (signal.SIGINT, signal.SIGTERM):
                        self._on_signal(number)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            return
        now = time.monotonic()
        if self._first is None:
            self._first = now
        elif now - self._first >= self._patience:
            raise KeyboardInterrupt
