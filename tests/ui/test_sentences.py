"""Sentences on a screen: whole words, whole paths."""

import io

import pytest

from specdec_cli.ui.sentences import write_sentences
from specdec_cli.ui.terminal import Terminal
from tests.ui_fakes import FakeTty

TEXT = "Converting a-rather-long-name-of-a-file.gguf to another one, once.\nAnd more."


def test_a_window_gets_lines_of_whole_words() -> None:
    tty = FakeTty(columns=25)
    write_sentences([TEXT, "Next."], tty.terminal)
    assert tty.getvalue().splitlines() == [
        "Converting",
        "a-rather-long-name-of-a-file.gguf",
        "to another one, once.",
        "And more.",
        "Next.",
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_pipe_gets_each_on_a_line_of_what_it_can_hold(encoding: str) -> None:
    data = io.BytesIO()
    stream = io.TextIOWrapper(data, encoding)
    write_sentences([f"{'a word ' * 40}é"], Terminal(stream, {}))
    assert data.getvalue().decode(encoding).count("\n") == 1
