"""Bars around 1, exact on fixed figures."""

import io
import itertools

import pytest
from rich.cells import cell_len

from specdec_cli.ui.ratios import WIDEST, ratio_chart
from specdec_cli.ui.terminal import Terminal


class Stream(io.StringIO):
    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._name = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._name


def chart(*ratios: tuple[str, float], columns: int = 80, encoding: str = "utf-8") -> list[str]:
    return ratio_chart(ratios, Terminal(Stream(encoding), {"COLUMNS": str(columns)}))


def test_bars_begin_at_1_and_go_both_ways() -> None:
    assert chart(("code", 1.5), ("story", 0.9), ("json", 1.0), ("questions", 1.234)) == [
        "code      1.50        │" + "█" * 33,
        "story     0.90 ███████│",
        "json      1.00        │",
        "questions 1.23        │███████████████▋",
    ]


def test_ascii_where_nothing_else_can_be_written() -> None:
    assert chart(("code", 1.5), ("中", 0.9), columns=32, encoding="ascii") == [
        "code 1.50    |" + "#" * 17,
        "?    0.90 ###|",
    ]


def test_only_slower_and_only_faster() -> None:
    assert chart(("a", 0.25), ("b", 0.625)) == [f"a 0.25 {'█' * 40}│", f"b 0.62 {' ' * 20}{'█' * 20}│"]
    assert chart(("a", 11.0), ("b", 3.5)) == [f"a 11.00 │{'█' * 40}", f"b  3.50 │{'█' * 10}"]


def test_what_is_nearly_the_same_looks_so() -> None:
    assert chart(("a", 1.01), ("b", 0.99)) == ["a 1.01  │▊", "b 0.99 █│"]


def test_names_are_one_line_of_data_however_long() -> None:
    assert chart(("a\x1b[31m\nb", 2.0), ("中文" * 30, 1.5)) == [
        f"a␛[31m b{' ' * 18} 2.00 │{'█' * 40}",
        f"{'中文' * 6}中 1.50 │{'█' * 20}",
    ]


@pytest.mark.parametrize("columns", [20, 25, 30, 40, 60, 80, 200])
def test_no_line_reaches_the_edge_and_no_bar_is_longer_than_40(columns: int) -> None:
    every = [(1.5, 0.9), (0.33, 2.0), (0.1, 0.2), (1.77, 3.21), (0.0, 1.004)]
    for ratios, encoding in itertools.product(every, ("utf-8", "ascii")):
        lines = chart(*((f"kind {i}", ratio) for i, ratio in enumerate(ratios)), columns=columns, encoding=encoding)
        assert bool(lines) == (columns > 20)
        assert all(cell_len(line) < columns for line in lines), ratios
        bars = [line.translate(dict.fromkeys(map(ord, "▏▎▍▌▋▊▉█"), "#")).count("#") for line in lines]
        assert max(bars, default=0) <= WIDEST, ratios
