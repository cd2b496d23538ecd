"""Standard input beside a prompt: what is piped in is taken, and nobody is waited for who does not write."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from specdec_cli.generation.prompts import prompt_text


@contextmanager
def pipe(text: str = "", *, after: float = 0.0, ends: bool = True) -> Iterator[TextIO]:
    """Standard input from a program that writes `text` after so many seconds; it may go on for ever then."""
    reader, writer = os.pipe()
    kept = os.dup(writer)

    def write() -> None:
        time.sleep(after)
        os.write(writer, text.encode())
        os.close(writer)
        if ends:
            os.close(kept)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reader, encoding="utf-8") as stdin:
        yield stdin
    thread.join()
    if not ends:
        os.close(kept)


@pytest.mark.parametrize("after", [0.0, 0.3])
def test_what_is_piped_in_follows_the_prompt(after: float) -> None:
    with pipe("some text", after=after) as stdin:
        assert prompt_text("Sum up:", None, stdin) == "Sum up:\n\nsome text"


def test_a_file_or_a_socket_on_standard_input_follows_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some text")
    with (tmp_path / "text").open() as stdin:
        assert prompt_text("Sum up:", None, stdin) == "Sum up:\n\nsome text"
    ours, theirs = socket.socketpair()
    theirs.sendall(b"some text")
    theirs.close()
    with ours, os.fdopen(os.dup(ours.fileno()), encoding="utf-8") as stdin:
        assert prompt_text("Sum up:", None, stdin) == "Sum up:\n\nsome text"


def test_nothing_is_added_where_nothing_comes() -> None:
    with pipe("") as stdin:
        assert prompt_text("Sum up:", None, stdin) == "Sum up:"
    with pipe(" \n") as stdin:
        assert prompt_text("Sum up:", None, stdin) == "Sum up:"
    for device in (os.devnull, "/dev/zero"):
        with Path(device).open(encoding="utf-8") as stdin:
            assert prompt_text("Sum up:", None, stdin) == "Sum up:"
    assert prompt_text("Sum up:", None, None) == "Sum up:"


def test_a_pipe_that_nobody_writes_to_is_not_waited_for() -> None:
    """Schedulers and ssh keep one open."""
    told: list[str] = []
    began = time.monotonic()
    with pipe(ends=False) as stdin:
        assert prompt_text("Sum up:", None, stdin, told.append) == "Sum up:"
    assert 0.9 < time.monotonic() - began < 5
    assert told == ["Nothing came through the pipe within 1 s, so it is left out; -f - waits for it."]


def test_a_file_that_was_named_is_all_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some text")
    with pipe("not read") as stdin:
        assert prompt_text("Sum up:", tmp_path / "text", stdin) == "Sum up:\n\nsome text"
