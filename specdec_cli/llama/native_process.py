"""Runs llama.cpp in a separate process, because it can crash or hang."""

import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from specdec_cli.child_process import Child, ChildDied, StopFlag
from specdec_cli.errors import ModelError, OutOfMemory
from specdec_cli.llama.log import capture_log, log

Args = ParamSpec("Args")
T = TypeVar("T")

DAMAGED = "The file is damaged or invalid. Use another; --log FILE saves llama.cpp's messages."
_STEP = "\x1e"
"""Begins a line that says what is done next."""
_KILLED = -9
"""The exit status of a process that the system ended for want of memory."""
_LONGEST_REASON = 200
_TELLING = re.compile(r"GGML_ASSERT|GGML_ABORT|fatal error|what\(\)|[Ee]rror: |failed|not supported|insufficient")
_NO_MEMORY = re.compile(r"bad_alloc|out of memory|insufficient memory|(failed to|cannot) allocate", re.IGNORECASE)
_FOLDERS = re.compile(r"(?:[A-Za-z]:)?(?:[\w.~+-]*[/\\])+(?=[\w.+-]+:\d+:)")
"""In front of the source file that an assertion names."""


class Apart:
    """How to run a function in a process of its own, and how to speak of it.

    `doing` says in a participle what is being done ("reading the tokenizer of x.gguf"); the child can be more precise
    with `step`. After `patience` seconds of computing, or a multiple of them on the clock, the child counts as hanging;
    None waits for ever. `calm` is the child's (Child).
    """

    def __init__(
        self, doing: str, *, hint: str, patience: float | None, abort: StopFlag | None = None, calm: bool = True
    ) -> None:
        self._doing, self._hint, self._patience, self._abort, self._calm = doing, hint, patience, abort, calm

    def call(self, function: Callable[Args, T], *args: Args.args, **kwargs: Args.kwargs) -> T:
        """What `function` returns. It is found by its name, and it and its arguments must be picklable.

        Raises what it raises; ModelError when the child crashes or hangs, OutOfMemory when it is killed for memory,
        Interrupted when `abort` is set. The child never outlives the call.
        """
        try:
            call = partial(_with_log, partial(function, *args, **kwargs))
            with Child(call, patience=self._patience, stop=self._abort, calm=self._calm) as child:
                return child.result()
        except ChildDied as died:
            log.note(died.words)
            raise self._crashed(died) from None

    def _crashed(self, died: ChildDied) -> ModelError:
        status, words = died.status, died.words
        reason = _last_words(words)
        if status == _KILLED or _NO_MEMORY.search(reason):
            return OutOfMemory(
                f"Not enough memory for {self._step(words)} ({reason or _name_of(status)}).",
                hint="Use a smaller model, or close other programs.",
            )
        if died.was_too_slow and self._patience is not None:
            return ModelError(
                f"llama.cpp did not finish {self._step(words)} within {self._patience:.0f} seconds of CPU time.",
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


def _name_of(status: int) -> str:
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"exit status {status}"


def _last_words(words: str) -> str:
    """The last line that sounds like an error; empty without one, for the lines before a crash are no reason for it."""
    telling = [line.strip() for line in words.split("\n") if _TELLING.search(line) and not line.startswith(_STEP)]
    return _FOLDERS.sub("", telling[-1])[:_LONGEST_REASON].rstrip(".") if telling else ""


def _with_log(call: Callable[[], T]) -> T:
    """In the child: what llama.cpp says is told as it is said."""
    capture_log()
    log.write_to(sys.stderr)
    return call()
