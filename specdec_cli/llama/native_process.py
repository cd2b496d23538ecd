"""Native code in a process of its own: llama.cpp ends its process over some files, and some of its calls never return.

The child is this interpreter with this process's module path. It reads a pickled call from stdin and writes the pickled
result to stdout. What llama.cpp says goes to a file as it is said, so that its last words survive a crash.
"""

import math
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import BinaryIO, ParamSpec, TypeVar

from specdec_cli.errors import Interrupted, ModelError, OutOfMemory
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.log import capture_log, log

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

Args = ParamSpec("Args")
T = TypeVar("T")

DAMAGED = "The file is damaged or made up; use another. --log FILE keeps all that llama.cpp said."
_START = "import sys; sys.path[:] = {path!r}; from specdec_cli.llama.native_process import main; main()"
_CALM = {"GGML_NO_BACKTRACE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Else an abort starts a debugger, which takes a second and writes to the terminal; and threads that wait for each
other take the processor from whoever else computes."""
_POLL_SECONDS = 0.05
_STEP = "\x1e"
"""Begins a line that says what is done next."""
_KILLED = -9
"""The exit status of a process that the system ended for want of memory."""
_TOO_LONG = -24
"""That of a process which has computed longer than it may (SIGXCPU)."""
_SLOWEST = 5
"""On the clock a child may take so many times as long as it may compute: disks are slow, and processors shared."""
_LONGEST_REASON = 200
_TELLING = re.compile(r"GGML_ASSERT|GGML_ABORT|fatal error|what\(\)|[Ee]rror: |failed|not supported|insufficient")
_NO_MEMORY = re.compile(r"bad_alloc|out of memory|insufficient memory|(failed to|cannot) allocate", re.IGNORECASE)
_FOLDERS = re.compile(r"(?:[A-Za-z]:)?(?:[\w.~+-]*[/\\])+(?=[\w.+-]+:\d+:)")
"""In front of the source file that an assertion names."""


class Apart:
    """How to run a function in a process of its own, and how to speak of it.

    `doing` says in a participle what is being done ("reading the tokenizer of x.gguf"); the child can be more precise
    with `step`. After `patience` seconds of computing, or a multiple of them on the clock, the child counts as hanging;
    None waits for ever.
    """

    def __init__(self, doing: str, *, hint: str, patience: float | None, abort: AbortFlag | None = None) -> None:
        self._doing, self._hint, self._patience, self._abort = doing, hint, patience, abort

    def call(self, function: Callable[Args, T], *args: Args.args, **kwargs: Args.kwargs) -> T:
        """What `function` returns. It is found by its name, and it and its arguments must be picklable.

        Raises what it raises; ModelError when the child crashes or hangs, OutOfMemory when it is killed for memory,
        Interrupted when `abort` is set. The child never outlives the call.
        """
        with tempfile.TemporaryFile() as job, tempfile.TemporaryFile() as said:
            pickle.dump((self._patience, function, args, kwargs), job)
            job.seek(0)
            status, answer = self._run(job, said)
            said.seek(0)
            words = said.read().decode("utf-8", "replace")
        if status == 0 and answer:
            is_result, found = pickle.loads(answer)  # written by ourselves, below
            if not is_result:
                raise found
            return found  # type: ignore[no-any-return]
        log.note(words)
        raise self._crashed(status, words)

    def _run(self, job: BinaryIO, said: BinaryIO) -> tuple[int, bytes]:
        """The child's exit status (minus the signal's number) and what it answered."""
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=sys.path)],
            stdin=job,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, **_CALM},
        )
        try:
            while True:
                try:
                    return _status(process, process.communicate(timeout=_POLL_SECONDS)[0])
                except subprocess.TimeoutExpired:
                    if self._abort is not None and self._abort.is_set:
                        raise Interrupted(self._abort.signal_number) from None
                    if self._patience is not None and time.monotonic() - began > _SLOWEST * self._patience:
                        return _TOO_LONG, b""
        finally:
            process.kill()
            process.communicate()

    def _crashed(self, status: int, words: str) -> ModelError:
        reason = _last_words(words)
        if status == _KILLED or _NO_MEMORY.search(reason):
            return OutOfMemory(
                f"There was not enough memory for {self._step(words)} ({reason or _name_of(status)}).",
                hint="Use a smaller model, or close other programs.",
            )
        if status == _TOO_LONG and self._patience is not None:
            return ModelError(
                f"llama.cpp did not finish {self._step(words)} within {self._patience:.0f} seconds of computing.",
                hint=self._hint,
            )
        what = f"llama.cpp crashed while {self._step(words)} ({_name_of(status)})"
        return ModelError(f"{what}: {reason}." if reason else f"{what}.", hint=self._hint)

    def _step(self, words: str) -> str:
        steps = [line for line in words.split("\n") if line.startswith(_STEP)]
        return steps[-1].removeprefix(_STEP) if steps else self._doing


def step(doing: str) -> None:
    """In the child: what is done from here on, for the words of an error."""
    print(f"\n{_STEP}{doing}", file=sys.stderr, flush=True)


def _status(process: subprocess.Popen[bytes], answer: bytes) -> tuple[int, bytes]:
    status = process.wait()
    if status in (-signal.SIGINT, -signal.SIGTERM):  # meant for both of us
        raise Interrupted(-status)
    return status, answer


def _name_of(status: int) -> str:
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"exit status {status}"


def _last_words(words: str) -> str:
    """The last line that sounds like an error; empty without one, for the lines before a crash are no reason for it."""
    telling = [line.strip() for line in words.split("\n") if _TELLING.search(line) and not line.startswith(_STEP)]
    return _FOLDERS.sub("", telling[-1])[:_LONGEST_REASON].rstrip(".") if telling else ""


def main() -> None:
    """The child's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever native code prints is no answer
    patience, function, args, kwargs = pickle.load(sys.stdin.buffer)
    _limit(patience)
    capture_log()
    log.write_to(sys.stderr)
    found: tuple[bool, object]
    try:
        found = True, function(*args, **kwargs)
    except Exception as error:
        found = False, error
    with answer:
        pickle.dump(found, answer)
    os._exit(0)  # nothing is left to do, and llama.cpp's own clean-up may crash as well


def _limit(patience: float | None) -> None:
    """No core file, and an end even when nobody is left to wait for it."""
    if resource is None:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if patience is not None:
        most = math.ceil(patience)
        signal.alarm(_SLOWEST * most + 5)
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
