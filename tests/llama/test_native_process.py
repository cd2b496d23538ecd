"""Native code in a process of its own: whatever becomes of it there is a result, or an error in words."""

import ctypes
import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from specdec_cli.errors import Interrupted, ModelError, OutOfMemory, UsageError
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.log import log
from specdec_cli.llama.native_process import Apart, step

HINT = "Use another."


def apart(patience: float | None = 60, abort: AbortFlag | None = None) -> Apart:
    return Apart("reading x.gguf", hint=HINT, patience=patience, abort=abort)


# --- what the child does: found by name, so at the top of the module -------------------------------------


def answer(number: int, *, noise: str) -> tuple[int, int]:
    ctypes.CDLL(None).puts(noise.encode())
    ctypes.CDLL(None).fflush(None)
    return number + 1, os.getpid()


def refuse() -> None:
    raise UsageError("No such type.", hint="Use f16.")


def has_a_bug() -> None:
    raise KeyError("bug")


def abort_with_words() -> None:
    step("loading y.gguf")
    print("/home/you/ggml/src/ggml.c:12: GGML_ASSERT(n > 0) failed", file=sys.stderr, flush=True)
    os.abort()


def read_nothing() -> None:
    print("llama_model_loader: said before", file=sys.stderr, flush=True)
    ctypes.string_at(0)


def say_much(n_bytes: int) -> None:
    line = "y" * 99 + "\n"
    print("GGML_ASSERT(first) failed", file=sys.stderr, flush=True)
    while n_bytes > 0:
        n_bytes -= sys.stderr.write(line)
    print("GGML_ASSERT(last) failed", file=sys.stderr, flush=True)
    os.abort()


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def throw_bad_alloc() -> None:
    print("terminate called\n  what():  std::bad_alloc", file=sys.stderr, flush=True)
    os.abort()


def hang(pid_file: Path, seconds: float) -> None:
    pid_file.write_text(str(os.getpid()), encoding="utf-8")
    while True:
        time.sleep(seconds)


# --- what comes of it ------------------------------------------------------------------------------------


def test_the_result_comes_back_whatever_native_code_prints(capfd: pytest.CaptureFixture[str]) -> None:
    number, pid = apart().call(answer, 3, noise="printed by C")
    assert number == 4
    assert pid != os.getpid()
    assert capfd.readouterr() == ("", "")


def test_an_error_in_words_is_the_same_error_here() -> None:
    with pytest.raises(UsageError, match=r"^No such type\.$") as caught:
        apart().call(refuse)
    assert caught.value.hint == "Use f16."


def test_a_bug_is_not_taken_for_a_damaged_file() -> None:
    with pytest.raises(KeyError, match="bug"):
        apart().call(has_a_bug)


def test_an_abort_is_one_sentence_with_the_step_and_the_assertion(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()
    monkeypatch.setattr(log, "_file", said)
    with pytest.raises(ModelError) as caught:
        apart().call(abort_with_words)
    reason = "ggml.c:12: GGML_ASSERT(n > 0) failed"
    assert str(caught.value) == f"llama.cpp crashed while loading y.gguf (SIGABRT): {reason}."
    assert (caught.value.exit_code, caught.value.hint) == (3, HINT)
    assert "/home/you/ggml/src/ggml.c:12" in said.getvalue()
    assert capfd.readouterr() == ("", ""), "no backtrace on the terminal"
    assert list(tmp_path.iterdir()) == [], "no core file"


def test_of_much_that_was_said_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB of messages neither block the child nor fill the memory: a mebibyte of them stays, with the reason."""
    said = io.StringIO()
    monkeypatch.setattr(log, "_file", said)
    with pytest.raises(ModelError, match=r"\(SIGABRT\): GGML_ASSERT\(last\) failed\.$"):
        apart().call(say_much, 16 << 20)
    assert (1 << 20) - 200 < len(said.getvalue()) <= (1 << 20) + 200
    assert "first" not in said.getvalue()


def test_a_crash_without_words_is_not_explained_by_what_was_said_before() -> None:
    with pytest.raises(ModelError, match=r"^llama\.cpp crashed while reading x\.gguf \(SIGSEGV\)\.$"):
        apart().call(read_nothing)


@pytest.mark.parametrize("end", [be_killed, throw_bad_alloc])
def test_a_child_that_gets_no_memory_is_told_apart(end: object) -> None:
    with pytest.raises(OutOfMemory, match=r"Not enough memory for reading x\.gguf") as caught:
        apart().call(end)  # type: ignore[arg-type]
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("seconds", [0, 1], ids=["computing", "sleeping"])
def test_a_hang_is_bounded(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(ModelError, match=r"did not finish reading x\.gguf within 1 seconds of CPU time"):
        apart(patience=1).call(hang, tmp_path / "pid", seconds)
    assert is_gone(tmp_path / "pid")


def test_a_stop_ends_the_child_at_once(tmp_path: Path) -> None:
    abort, pid_file = AbortFlag(), tmp_path / "pid"

    def stop() -> None:
        while not pid_file.exists() or not pid_file.read_text(encoding="utf-8"):
            time.sleep(0.01)
        abort.set(signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(Interrupted) as caught:
        apart(abort=abort).call(hang, pid_file, 1)
    thread.join()
    assert caught.value.exit_code == 130
    assert is_gone(pid_file)


def is_gone(pid_file: Path) -> bool:
    try:
        os.kill(int(pid_file.read_text(encoding="utf-8")), 0)
    except ProcessLookupError:
        return True
    return False
