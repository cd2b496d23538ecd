"""Ratios as bars to both sides of 1."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from specdec_cli.ui.clean import printable
from specdec_cli.ui.paint import Palette
from specdec_cli.ui.terminal import Terminal

WIDEST = 40
_NARROWEST = 10
_LEAST_SPAN = 0.5
"""From end to end: what differs by hundredths must not look like much."""


def ratio_chart(ratios: Sequence[tuple[str, float]], terminal: Terminal) -> list[str]:
    """A line each: name, ratio and a bar that begins at 1. None where the terminal has no room for bars."""
    palette = Palette.of(color=False, utf8=terminal.utf8)
    columns = terminal.size()[0]
    names = [printable(" ".join(name.split()), ascii_only=not terminal.utf8) for name, _ in ratios]
    figures = [f"{ratio:.2f}" for _, ratio in ratios]
    name_width = min(max(map(cell_len, names), default=0), columns // 3)
    figure_width = max(map(len, figures), default=0)
    # Two gaps and the line at 1; the last column stays free, where some terminals break the line.
    room = min(WIDEST, columns - name_width - figure_width - 4)
    if room < _NARROWEST:
        return []
    scale = _Scale([ratio for _, ratio in ratios], room, palette)
    return [
        f"{set_cell_size(name, name_width)} {figure:>{figure_width}} {scale.bar(ratio)}".rstrip()
        for name, figure, (_, ratio) in zip(names, figures, ratios, strict=True)
    ]


class _Scale:
    """All bars of a chart: as many cells for the same distance from 1, on either side."""

    def __init__(self, ratios: Sequence[float], room: int, palette: Palette) -> None:
        low, high = min(1.0, *ratios), max(1.0, *ratios)
        self._per_unit = room / max(high - low, _LEAST_SPAN)
        self._left = round((1 - low) * self._per_unit)
        self._right = room - self._left
        self._palette = palette

    def bar(self, ratio: float) -> str:
        length = abs(ratio - 1) * self._per_unit
        if ratio < 1:
            # There are no blocks that fill the right part of a cell by eighths.
            return self._palette.bar(round(length), 1).rjust(self._left) + self._line
        return " " * self._left + self._line + self._palette.bar(length, 1)[: self._right]

    @property
    def _line(self) -> str:
        return "│" if self._palette.utf8 else "|"
