"""The terminal after a death that no Python code sees: a native abort, or the system's killer."""

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from specdec_cli.foreground import modes_of, set_modes

# The death may have come in the middle of a frame: everything that one switches, and the panel below.
_RESTORE = b"\r\n\x1b[?2026l\x1b[?2004l\x1b[?7h\x1b[0m\x1b[J\x1b[?25h"
_LAST_WORDS = (
    b"specdec ended without a chance to clean up: a fault in native code, or it was\r\n"
    b"killed (out of memory?). The text above is what there was.\r\n"
    b"Run again with --log FILE to see what llama.cpp said last.\r\n"
)


def guard_terminal() -> None:
    """Leave a small child behind that gives the cursor back if this process dies without `exit`.

    Call before any library has started threads. Does nothing where there is no fork or no terminal.
    """
    if not hasattr(os, "fork") or not sys.stderr.isatty():
        return
    modes = modes_of(sys.stderr)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        _wait_for_goodbye(reader, modes)
    os.close(reader)
    atexit.register(_goodbye, writer, os.getpid())


def _goodbye(writer: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child of ours must not speak for us
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # everything is over; another Ctrl-C would only be a traceback
        with suppress(OSError):  # somebody may have ended the child
            os.write(writer, b"bye")
            os.close(writer)
            os.wait()


def _wait_for_goodbye(reader: int, modes: list[Any] | None) -> None:
    """The child's whole life. Its pipe closes when the parent dies; empty, it was a bad death."""
    # The last lets a process that is not in front set the modes of the terminal.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    try:
        if not os.read(reader, 3):
            if modes is not None:
                set_modes(sys.stderr, modes)
            os.write(sys.stderr.fileno(), _RESTORE + _LAST_WORDS)
    finally:
        os._exit(0)
