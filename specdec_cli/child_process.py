"""Functions in a process of their own: native code may end its process, and some of it never returns.

The child is this interpreter with this process's module path; what lies in its working folder is never imported. It
reads a pickled call from stdin and writes the pickled answer to stdout. Only such an answer counts as one. What native
code says (stderr) is read as it is said, so that its last words survive a crash, and only the end of it is kept.
"""

import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import BinaryIO, Generic, Protocol, Self, TypeVar

from specdec_cli.errors import Interrupted

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

T = TypeVar("T")

PATIENCE_SECONDS = 10.0
"""Of computing, for what usually takes one or two."""
_NO_DEBUGGER = {"GGML_NO_BACKTRACE": "1"}
"""Else an abort of llama.cpp starts one, which takes a second and writes to the terminal."""
_CALM = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Else threads that wait for each other take the processor from whoever else computes."""
_POLL_SECONDS = 0.05
_TOO_LONG = -24
"""The exit status of a process that has computed longer than it may (SIGXCPU)."""
_SLOWEST = 5
"""On the clock a child may take so many times as long as it may compute: disks are slow, and processors shared."""
_LONGEST_WORDS = 1 << 20
"""Bytes that are kept of what a child says."""


class StopFlag(Protocol):
    """Tells that the user wants to stop, and by which signal."""

    @property
    def is_set(self) -> bool: ...

    @property
    def signal_number(self) -> int: ...


class ChildDied(Exception):
    """The child ended without an answer: with `status` (minus the signal's number), and `words` as its last."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"exit status {status}")
        self.status = status
        self.words = words

    @property
    def was_too_slow(self) -> bool:
        return self.status == _TOO_LONG


def python_command(module: str) -> list[str]:
    """The command of a child that runs `main` of `module`, found where this process finds its modules."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main()"]


class Child(Generic[T]):
    """A call that has begun. Close it, or use it as a context manager: the child then ends.

    `call` must be picklable: a function is found by its name. After `patience` seconds of computing,
    or a multiple of them on the clock, the child counts as hanging; None waits for ever. Without `calm` its threads
    wait as this process's do, which is what measuring wants.
    """

    def __init__(
        self, call: Callable[[], T], *, patience: float | None, stop: StopFlag | None, calm: bool = True
    ) -> None:
        self._patience, self._stop = patience, stop
        self._began = time.monotonic()
        self._words = bytearray()
        reading, writing = os.pipe()
        self._reader = threading.Thread(target=_keep_end, args=(os.fdopen(reading, "rb"), self._words), daemon=True)
        try:
            with tempfile.TemporaryFile() as job:
                pickle.dump((patience, call), job)
                job.seek(0)
                self._process = subprocess.Popen(
                    python_command(__name__),
                    stdin=job,
                    stdout=subprocess.PIPE,
                    stderr=writing,
                    env={**os.environ, **_NO_DEBUGGER, **(_CALM if calm else {})},
                )
        finally:
            os.close(writing)
            self._reader.start()

    def result(self) -> T:
        """What the call returns. Raises what it raises; ChildDied when there is no answer, Interrupted when the
        stop flag is set, or the child got the signal."""
        status, answer = self._waited()
        if status == 0 and answer:
            is_result, found = pickle.loads(answer)  # written by ourselves, below
            if not is_result:
                raise found
            return found  # type: ignore[no-any-return]
        self.close()
        raise ChildDied(status, self._words.decode("utf-8", "replace"))

    def _waited(self) -> tuple[int, bytes]:
        """The exit status, and what was answered."""
        while True:
            try:
                answer, _ = self._process.communicate(timeout=_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if self._stop is not None and self._stop.is_set:
                    raise Interrupted(self._stop.signal_number) from None
                if self._patience is not None and time.monotonic() - self._began > _SLOWEST * self._patience:
                    return _TOO_LONG, b""
                continue
            status = self._process.wait()
            if status in (-signal.SIGINT, -signal.SIGTERM):  # meant for both of us
                raise Interrupted(-status)
            return status, answer

    def close(self) -> None:
        """End the child; calling it again does nothing."""
        self._process.kill()
        self._process.communicate()
        self._reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _keep_end(stream: BinaryIO, kept: bytearray) -> None:
    with stream:
        while some := os.read(stream.fileno(), 1 << 16):
            kept += some
            del kept[:-_LONGEST_WORDS]


def main() -> None:
    """The child's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever native code prints is no answer
    patience, call = pickle.load(sys.stdin.buffer)
    _limit(patience)
    found: tuple[bool, object]
    try:
        found = True, call()
    except Exception as error:
        found = False, error
    with answer:
        pickle.dump(found, answer)
    os._exit(0)  # nothing is left to do, and native clean-up may crash as well


def _limit(patience: float | None) -> None:
    """No core file, and an end even when nobody is left to wait for it."""
    if resource is None:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if patience is not None:
        most = math.ceil(patience)
        signal.alarm(_SLOWEST * most + 5)
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
