"""Runs the chat template worker: started when first needed, shared, with a deadline."""

import atexit
import json
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from specdec_cli.child_process import python_command
from specdec_cli.errors import Interrupted, UsageError

SECONDS = 5.0
"""Of computing, for one request. Templates of real models take a few milliseconds."""
BUSY_FACTOR = 5.0
"""By so much longer a request may take on the clock, where other programs want the processor."""
START_SECONDS = 60.0
"""Until Python has started and imported jinja2: a tenth of a second on an idle machine."""
_WORKER = "specdec_cli.generation.template_worker"


class TemplateProcess:
    """Sends requests to `template_worker` and starts it again after it had to be ended.

    It gets Ctrl-C with everybody else at the terminal and ends; a request under way is then Interrupted.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self._is_ready = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process, None while there is none."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process if there is none, and do not wait until it is ready."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._process = subprocess.Popen(
            python_command(_WORKER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self._is_ready = False

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The worker's answer (see `template_worker.answer`). Raises UsageError when it takes too long or the process
        dies of it, Interrupted after Ctrl-C."""
        line = json.dumps({**request, "seconds": self._seconds}) + "\n"
        with self._lock:
            # A process may have died since the last request; one that dies again died of this one.
            answer = self._exchange(line) or self._exchange(line)
        if not answer:
            raise unusable("it crashed the process that renders it")
        return cast(dict[str, Any], json.loads(answer))

    def _exchange(self, request: str) -> str:
        """A line in return for a line; empty if the process died."""
        self.start()
        line = ""
        try:
            line = self._send(cast("subprocess.Popen[str]", self._process), request)
        finally:
            if not line.endswith("\n"):
                self.close()
        return line

    def _send(self, process: "subprocess.Popen[str]", request: str) -> str:
        stdin, stdout = cast(TextIO, process.stdin), cast(TextIO, process.stdout)
        if not self._is_ready:
            with self._deadline(process, START_SECONDS):
                self._is_ready = stdout.readline() == "ready\n"
        with self._deadline(process, BUSY_FACTOR * self._seconds) as is_late:
            line = ""
            with suppress(BrokenPipeError):
                stdin.write(request)
                stdin.flush()
                line = stdout.readline()
        if line.endswith("\n"):
            return line
        died_of = -process.wait()
        if died_of == signal.SIGINT:
            raise Interrupted(signal.SIGINT)
        if is_late.is_set() or died_of == getattr(signal, "SIGPROF", None):
            raise unusable(f"it takes more than {self._seconds:g} seconds")
        return ""

    @contextmanager
    def _deadline(self, process: "subprocess.Popen[str]", seconds: float) -> Iterator[threading.Event]:
        """Kill the process after so many seconds; the event tells that it was."""
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield is_late
        finally:
            timer.cancel()

    def close(self) -> None:
        """End the process, if there is one; a later request starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # part of a request was still to be written
                    stream.close()


def unusable(reason: str, kind: type[UsageError] = UsageError) -> UsageError:
    """The error for every way in which a template fails."""
    return kind(
        f"The model's chat template cannot be used: {reason}.",
        hint="Use --raw to send the prompt without a template.",
    )


shared = TemplateProcess()
"""One for the whole run: starting it costs more than all its answers."""
atexit.register(shared.close)
