"""Whose terminal it is: only the process in front may change its settings.

One in the background (`&`, `timeout`, a job that was stopped and goes on with `bg`) would be stopped for trying, by
SIGTTOU, and one without a terminal of its own (`setsid`) would change those that a shell is using.
"""

import os
from contextlib import suppress
from typing import Any, TextIO

try:
    import termios
except ImportError:  # Windows, which has no such settings
    termios = None  # type: ignore[assignment]


def is_in_front(stream: TextIO | None) -> bool:
    """Whether this process is in the foreground of the terminal that the stream is."""
    if termios is None or stream is None or stream.closed or not stream.isatty():
        return False
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except OSError:  # it is not this session's terminal
        return False


def modes_of(stream: TextIO | None) -> list[Any] | None:
    """The terminal's settings; None where they are not for this process to change."""
    if stream is None or not is_in_front(stream):
        return None
    with suppress(termios.error):
        return termios.tcgetattr(stream)
    return None


def set_modes(stream: TextIO, modes: list[Any]) -> None:
    """Change the settings, if this process is still in front."""
    if is_in_front(stream):
        with suppress(termios.error):  # a signal came in between, or the terminal has gone
            termios.tcsetattr(stream, termios.TCSADRAIN, modes)


def without_echo(modes: list[Any]) -> list[Any]:
    """These settings, but what is typed is not shown."""
    return [*modes[:3], modes[3] & ~termios.ECHO, *modes[4:]]
