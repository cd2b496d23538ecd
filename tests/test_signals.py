"""Signals sent for real, to this process."""

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from specdec_cli.signals import SignalWatch

pytestmark = pytest.mark.skipif(os.name == "nt", reason="a process of Windows cannot send itself Ctrl-C")


@pytest.fixture(autouse=True)
def handlers_are_given_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    threads = threading.active_count()
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == wakeup
    assert threading.active_count() == threads


class Heard:
    """Takes down which signals came, when, and on which thread."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.at: list[float] = []
        self.threads: set[int] = set()
        self.came = threading.Event()

    def __call__(self, number: int) -> None:
        self.numbers.append(number)
        self.at.append(time.monotonic())
        self.threads.add(threading.get_ident())
        self.came.set()


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def later(seconds: float, do: Callable[[], None]) -> threading.Thread:
    def wait_and_do() -> None:
        time.sleep(seconds)
        do()

    thread = threading.Thread(target=wait_and_do)
    thread.start()
    return thread


def compute(seconds: float) -> None:
    """One native call of about that length, without the interpreter's lock, which no signal breaks off."""
    began = time.monotonic()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)
    hashlib.pbkdf2_hmac("sha256", b"", b"", int(20_000 * seconds / (time.monotonic() - began)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_heard_while_the_main_thread_computes(number: signal.Signals) -> None:
    """An ordinary handler would run when the native call is over: after minutes, for a long prompt."""
    heard = Heard()
    with SignalWatch(heard):
        thread = later(0.1, lambda: send(number))
        compute(0.5)
        ended = time.monotonic()
    thread.join()

    assert heard.numbers == [number]
    assert heard.threads.isdisjoint({threading.get_ident()})
    assert heard.at[0] < ended - 0.1


def test_the_first_ctrl_c_interrupts_nothing_and_the_second_does() -> None:
    heard = Heard()
    with SignalWatch(heard):
        send(signal.SIGINT)
        assert heard.came.wait(5)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert heard.numbers[0] == signal.SIGINT


def test_terminating_twice_is_not_ctrl_c() -> None:
    heard = Heard()
    with SignalWatch(heard):
        for _ in range(3):
            heard.came.clear()
            send(signal.SIGTERM)
            assert heard.came.wait(5)

    assert heard.numbers == [signal.SIGTERM] * 3


def test_other_signals_are_none_of_its_business() -> None:
    heard, resized = Heard(), []
    before = signal.signal(signal.SIGWINCH, lambda *_: resized.append(1))
    try:
        with SignalWatch(heard):
            send(signal.SIGWINCH)
            send(signal.SIGTERM)
            assert heard.came.wait(5)
    finally:
        signal.signal(signal.SIGWINCH, before)

    assert resized == [1]
    assert heard.numbers == [signal.SIGTERM]


def test_each_watch_counts_anew() -> None:
    """In a chat, every answer may be stopped by one Ctrl-C."""
    for _ in range(3):
        heard = Heard()
        with SignalWatch(heard):
            send(signal.SIGINT)
            assert heard.came.wait(5)


def test_afterwards_ctrl_c_is_what_it_was() -> None:
    heard = Heard()
    with SignalWatch(heard):
        pass
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)
    assert heard.numbers == []


def test_handlers_are_given_back_after_an_error_too() -> None:
    with pytest.raises(ValueError, match="inside"), SignalWatch(Heard()):
        raise ValueError("inside")


def test_a_wakeup_descriptor_of_somebody_else_is_given_back() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    theirs = signal.set_wakeup_fd(writer)
    try:
        with SignalWatch(Heard()):
            pass
        assert signal.set_wakeup_fd(theirs) == writer
    finally:
        signal.set_wakeup_fd(theirs)
        os.close(reader)
        os.close(writer)
