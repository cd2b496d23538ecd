"""A terminal around a command: what a person would see on it, and whether it is left as it was."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import pyte

from tests.cli import CALM, COMMAND, PATIENCE
from tests.ui_fakes import FakeTty, everything

ESCAPE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")
SHOW_CURSOR, HIDE_CURSOR, FRAME = b"\x1b[?25h", b"\x1b[?25l", b"\x1b[?2026h"
PANEL = ("first token", "last pass", "per pass", "ms per pass", "ms: draft", "tok/s")
"""Words of the panel that are no words of a planted model, nor of what stands before an answer."""
LEGEND = re.compile(r"plain\s+text\s+is\s+the\s+target's\s+own\n")
"""The end of what is said before an answer; windows break it anywhere."""
SUMMARY = re.compile(r"^\d+ tokens?(?: ·|, |$)", re.MULTILINE)
"""The beginning of what is said after one."""


class Terminal:
    """A command with a terminal of its own around it. `screen` is what a person sees.

    `before` is a command that runs this one.
    Ctrl-C reaches only what `leads` the terminal's session. With such a leader's death the terminal goes, too.
    """

    def __init__(
        self,
        *arguments: object,
        columns: int = 80,
        rows: int = 24,
        stdin: int | None = None,
        stdout: int | None = None,
        leads: bool = True,
        before: Sequence[str] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        self.raw = b""
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self.environ: dict[str, str] = {}
        self._stream = pyte.ByteStream(self.screen)
        self._master, self._slave = pty.openpty()
        self._set_size(columns, rows)
        modes = termios.tcgetattr(self._slave)
        modes[3] |= termios.NOFLSH  # else Ctrl-C drops what nobody has read yet
        termios.tcsetattr(self._slave, termios.TCSANOW, modes)
        self.modes = termios.tcgetattr(self._slave)
        neutral = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*before, *COMMAND, *map(str, arguments)],
            stdin=self._slave if stdin is None else stdin,
            stdout=self._slave if stdout is None else stdout,
            stderr=self._slave,
            env={**neutral, **CALM, "TERM": "xterm-256color", **(env or {})},
            preexec_fn=self._take_terminal if leads else None,
            start_new_session=leads,
        )

    def _take_terminal(self) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSCTTY, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def wait_for(self, what: bytes | Callable[[], object]) -> None:
        """Read until `what` was written after the last wait, or until it holds."""
        start = len(self.raw)
        found = what if callable(what) else lambda: what in self.raw[start:]
        self._read_until(found, f"{what!r} in {self.raw[-2000:]!r}")

    def send(self, data: bytes) -> None:
        """What a person types; b"\\x03" is Ctrl-C, b"\\x04" Ctrl-D."""
        os.write(self._master, data)

    def end(self) -> int:
        """Read until the command has ended; its exit code, negative if a signal ended it."""
        self._read_until(lambda: self.process.poll() is not None, "the end")
        while self._read(0.1):
            pass
        return self.process.returncode

    def read_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._read(left)

    def resize(self, columns: int, rows: int) -> None:
        """The window changes as xterm's does; the kernel sends SIGWINCH."""
        FakeTty.resize(self, columns, rows)
        self._set_size(columns, rows)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read_until(self, done: Callable[[], object], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < until, f"waited too long for {what}"
            self._read(0.05)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return False
        data = os.read(self._master, 1 << 16)
        self.raw += data
        self._stream.feed(data)
        return True

    @property
    def lines(self) -> list[str]:
        """Everything that can be seen by scrolling up, too."""
        return everything(self.screen)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def answer(self) -> list[str]:
        """The words above the summary of the last answer."""
        text = LEGEND.split(self.text)[-1]
        found = SUMMARY.search(text)
        assert found, self.text
        return text[: found.start()].replace("^C", "").split()  # the terminal's echo

    @property
    def n_answers(self) -> int:
        """Answers that have ended."""
        return len(SUMMARY.findall(self.text))

    @property
    def modes_now(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def set_modes(self, modes: list[Any]) -> None:
        """As a shell does when it takes the terminal back."""
        termios.tcsetattr(self._slave, termios.TCSANOW, modes)

    def assert_clean(self) -> None:
        """The cursor is back, with the last escape of all; the terminal is as it was; no panel is left."""
        assert [found[0] for found in ESCAPE.finditer(self.raw)][-1:] in ([], [SHOW_CURSOR])
        assert self.modes_now == self.modes
        assert [word for word in PANEL if word in SUMMARY.split(self.text)[0]] == []
        assert "Traceback" not in self.text
