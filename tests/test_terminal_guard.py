"""The last moments of a process."""

import os
import signal
from collections.abc import Iterator

import pytest

from specdec_cli import terminal_guard as guard


@pytest.fixture
def interrupt_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupt_handler")
def test_a_second_interrupt_while_saying_goodbye_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    waited = []

    def wait() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        waited.append(True)

    monkeypatch.setattr(os, "wait", wait)
    guard._goodbye(writer, os.getpid())
    assert waited == [True]
    assert os.read(reader, 3) == b"bye"
    os.close(reader)
