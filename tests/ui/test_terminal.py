"""A stream as a place to draw."""

import io
import os
import signal
import threading

import pytest

from specdec_cli.ui.terminal import Terminal


def test_an_interrupt_in_the_middle_of_writing_loses_and_repeats_nothing() -> None:
    reader, writer = os.pipe()
    # As sys.stdout is on a terminal.
    stream = io.TextIOWrapper(io.BufferedWriter(io.FileIO(writer, "w"), buffer_size=1024), line_buffering=True)
    text = "".join(f"{i:05d} ü\n" for i in range(20_000))  # more than a pipe holds
    seen: list[bytes] = []

    def interrupt_then_read() -> None:
        interrupted.wait()
        while piece := os.read(reader, 65536):
            seen.append(piece)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        interrupted.set()

    interrupted = threading.Event()
    reading = threading.Thread(target=interrupt_then_read)
    reading.start()
    threading.Timer(0.2, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        Terminal(stream, {}).write(text)
    Terminal(stream, {}).write("the end")
    stream.close()
    reading.join()
    os.close(reader)

    assert b"".join(seen).decode() == text + "the end"
