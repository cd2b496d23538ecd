"""Sentences as people read them: in a window on lines of whole words, in a pipe on a line each."""

import textwrap
from collections.abc import Sequence

from specdec_cli.ui.clean import printable
from specdec_cli.ui.terminal import Terminal


def write_sentences(sentences: Sequence[str], terminal: Terminal) -> None:
    """Each on lines of its own. A word that is longer than a line, such as a path, stays whole: it can be copied."""
    for sentence in sentences:
        text = printable(sentence, ascii_only=not terminal.utf8)
        lines = _folded(text, terminal.size()[0]) if terminal.is_tty else [text]
        terminal.write("".join(f"{line}\n" for line in lines))


def _folded(text: str, columns: int) -> list[str]:
    folded = (
        textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    )
    return [line for lines in folded for line in lines]
