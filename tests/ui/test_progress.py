"""Downloads as they are shown: to a pipe, to a terminal, to nobody."""

import io
import os

import pytest

from specdec_cli.ui.progress import BarProgress, LineProgress, NoProgress, open_progress
from specdec_cli.ui.table import write_table
from specdec_cli.ui.terminal import Terminal


class Stream(io.StringIO):
    encoding = "utf-8"

    def __init__(self, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


def test_a_line_for_every_twentieth() -> None:
    lines: list[str] = []
    now = iter(range(1000))
    shown = LineProgress(lines.append, clock=lambda: float(next(now)))
    shown.begin("model.gguf", 100_000_000, 0)
    for _ in range(1000):
        shown.advance(100_000)
    assert lines[0] == "model.gguf (100.0 MB) starts."
    assert len(lines) == 1 + 20
    assert lines[1].startswith("model.gguf:   5% of 100.0 MB, ")
    assert " s left" in lines[1]
    assert lines[-1].startswith("model.gguf: 100% of 100.0 MB")
    assert "left" not in lines[-1]


def test_a_file_that_goes_on_or_is_there() -> None:
    lines: list[str] = []
    shown = LineProgress(lines.append)
    shown.begin("a.gguf", 2_000_000_000, 1_000_000_000)
    shown.advance(50_000_000)
    shown.advance(60_000_000)
    shown.begin("b.gguf", 1000, 1000)
    assert lines[0] == "a.gguf (2.00 GB) resumes at 1.00 GB."
    assert lines[1].startswith("a.gguf:  56% of 2.00 GB")
    assert lines[2] == "b.gguf (1.0 kB) is already downloaded."


def test_a_file_that_begins_anew_counts_anew() -> None:
    lines: list[str] = []
    shown = LineProgress(lines.append)
    shown.begin("a.gguf", 1_000_000, 0)
    shown.advance(500_000)
    shown.advance(-500_000)
    shown.advance(60_000)
    assert [line.split("%")[0].split()[-1] for line in lines[1:]] == ["50", "6"]


@pytest.mark.parametrize(("tty", "kind"), [(True, BarProgress), (False, LineProgress)])
def test_bars_are_for_terminals(tty: bool, kind: type) -> None:
    terminal = Terminal(Stream(tty), {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"})
    assert type(open_progress(terminal, quiet=False, say=print)) is kind
    assert type(open_progress(terminal, quiet=True, say=print)) is NoProgress


def test_bars_show_names_as_they_are() -> None:
    stream = Stream(True)
    with BarProgress(Terminal(stream, {"TERM": "xterm", "COLUMNS": "100", "LINES": "24"})) as shown:
        shown.expect(2_000_000)
        shown.begin("[red]x[/red].gguf", 1_000_000, 0)
        shown.advance(1_000_000)
        shown.note("a [note] \x1b[2J about it")
    text = stream.getvalue()
    assert "[red]x[/red].gguf" in text
    assert "a [note]" in text
    assert "\x1b[2J" not in text
    assert "in all" in text
    assert text.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in text.splitlines()[-1], "the cursor is back"


def test_a_table_is_aligned_and_its_cells_are_data() -> None:
    stream = Stream(False)
    rows = [("a", "1 GB", "[bold]x[/bold]"), ("longer", "12 GB", "\x1b[31mred")]
    write_table(("NAME", "SIZE", "TEXT"), rows, Terminal(stream, os.environ), right="SIZE")
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert lines[0] == "NAME     SIZE  TEXT"
    assert lines[1] == "a        1 GB  [bold]x[/bold]"
    assert "\x1b" not in stream.getvalue()
