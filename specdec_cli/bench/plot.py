"""A benchmark as a picture: the one door to matplotlib, which is an extra.

Whoever imports this module asks for a picture, and is told at once if there is no library to draw it.
"""

import io
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specdec_cli.bench.measure import Cell, Setting, by_setting, median_speedup
from specdec_cli.bench.report import Results, pooled, predictions
from specdec_cli.bench.trend import WINDOW, running_acceptance
from specdec_cli.errors import UsageError
from specdec_cli.outputs import write_output
from specdec_cli.ui.clean import printable

try:
    from matplotlib import style
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter
except ImportError as error:
    raise UsageError(
        f"--plot needs matplotlib, and importing it failed: {error}.",
        hint='Install it: pip install "specdec-cli[plot]" (or: pip install matplotlib).',
    ) from error

_FORMS = (".svg", ".png")

# Okabe and Ito's colours, told apart by colour-blind eyes, too. One marker more than colours: the pairs of both come
# again only after 42 lines.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "osD^vPX"
_GREY = "#8c8c8c"

# Whatever a user's matplotlibrc says. Names are data: "$" in them begins no formula. Letters of an SVG stay letters,
# which can be searched, and drawn with fonts that the library does not have. No chance in the ids: equal figures
# are equal files.
_LOOK = {
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "specdec",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
    "legend.fontsize": 8,
}
# Hollow, so that both are seen where prediction and measurement agree.
_PREDICTED: dict[str, Any] = {
    "linestyle": "--",
    "linewidth": 1,
    "marker": "o",
    "markersize": 4,
    "markerfacecolor": "white",
}
_LEVEL = "-."
"""The line of what has no k of its own."""
_ALONG = f"position in the answer, in tokens (moving average over {WINDOW} rounds)"
_MARKED = 6
"""Points of a running figure that get a marker, about."""
_DOTS_PER_INCH = 150
_LONGEST_NAME = 60
_SHORT_LABEL = 14
"""Four of these stand side by side below a panel, two of the longer ones."""
_LONGEST_KIND = 24
_WIDEST_SHIFT = 0.6
_FEWEST_ROWS = 6
"""Bars of a few kinds only would be as thick as the panel is high."""
_NO_CHARACTERS = dict.fromkeys((0xFFFE, 0xFFFF), "\N{REPLACEMENT CHARACTER}")
"""XML has no place for these, not even escaped."""


class _Line(NamedTuple):
    """Settings that differ only in k, by k, and how they are drawn. `level` is what has no k: auto, plain decoding."""

    name: str
    settings: Sequence[Setting]
    level: Setting | None
    color: str
    marker: str
    shift: float  # of what is measured, to the right: else the ranges at one k would hide one another


def check_form(file: Path) -> None:
    """Raises UsageError if no picture of this kind can be drawn."""
    if file.suffix.lower() not in _FORMS:
        raise UsageError(f"--plot cannot write {file.name}.", hint=f"Use a name ending in {' or '.join(_FORMS)}.")


def write_plot(results: Results, file: Path) -> None:
    """Draw all panels; the form is that of the file's name."""
    form = file.suffix.lower().removeprefix(".")
    out = io.BytesIO()  # so that a file that is there stays whole if drawing fails
    with style.context(["default", _LOOK]), warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box; a warning for each would bury the verdict.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = _figure(results)
        metadata = {"Date": None} if form == "svg" else None
        figure.savefig(out, format=form, dpi=_DOTS_PER_INCH, bbox_inches="tight", pad_inches=0.15, metadata=metadata)
    write_output(file, out.getvalue())


def _figure(results: Results) -> Figure:
    lower = max(4.5, 1.5 + 0.27 * len(_best_cells(results)))
    figure = Figure(figsize=(12, 9.5 + lower), layout="constrained")
    heights = [4.5, 4.5, lower]
    panels = figure.subfigures(3, 2, squeeze=False, height_ratios=heights, wspace=0.03, hspace=0.03).flat
    for draw, panel in zip(_PANELS, panels, strict=True):
        axes = panel.subplots()
        draw(axes, results)
        labels = axes.get_legend_handles_labels()[1]
        if labels:
            panel.legend(loc="outside lower center", ncols=2 if max(map(len, labels)) > _SHORT_LABEL else 4)
    figure.suptitle("\n".join(_title(results)))
    return figure


def _title(results: Results) -> list[str]:
    """The models, and the machine."""
    names = " with ".join(_short(file["name"]) for file in results.facts["files"])
    return [name for name in (names, _short(results.facts["machine"]["cpu"])) if name]


def _lines(results: Results) -> list[_Line]:
    found: dict[str, list[Setting]] = {}
    for setting in by_setting(results.cells):
        p_min = f" p-min {setting.p_min:g}" if setting.p_min else ""
        found.setdefault(f"{setting.drafter}{p_min}, temperature {setting.temperature:g}", []).append(setting)
    step = min(0.01 * _longest(results), _WIDEST_SHIFT / len(found))
    lines = []
    for i, (name, those) in enumerate(found.items()):
        fixed, level = [s for s in those if _length(s)], next((s for s in those if not _length(s)), None)
        lines.append(_Line(name, sorted(fixed, key=_length), level, *_look(i), step * (i - (len(found) - 1) / 2)))
    return lines


def _length(setting: Setting) -> int:
    """Its k; 0 where it has none."""
    return setting.k if isinstance(setting.k, int) else 0


def _longest(results: Results) -> int:
    """The longest draft that was asked for, or made where lengths are automatic; 1 at least."""
    made = [len(cell.by_position) for cell in results.cells.values()]
    return max(1, *made, *(_length(setting) for _, setting in results.cells))


def _look(i: int) -> tuple[str, str]:
    """Colour and marker of the line with this number."""
    return _COLORS[i % len(_COLORS)], _MARKERS[i % len(_MARKERS)]


def _draw_speedup(axes: Axes, results: Results) -> None:
    axes.axhline(1, color="black", linewidth=1)
    for line in _lines(results):
        those = [by_setting(results.cells)[setting] for setting in line.settings]
        ks = [_length(setting) + line.shift for setting in line.settings]
        speedups = [[cell.speedup for cell in cells] for cells in those]
        if those:
            axes.plot(ks, list(map(median_speedup, those)), color=line.color, marker=line.marker, label=line.name)
            axes.vlines(ks, list(map(min, speedups)), list(map(max, speedups)), color=line.color, alpha=0.35)
            predicted = _predicted(results, line)
            axes.plot(*zip(*predicted, strict=True), color=line.color, **_PREDICTED)
        if line.level is not None:
            level = median_speedup(by_setting(results.cells)[line.level])
            axes.axhline(level, color=line.color, linestyle=_LEVEL, label=_level_name(line, line.level))
    axes.plot([], [], color=_GREY, **_PREDICTED, label="predicted")
    axes.set(title="Speedup: median and range over kinds of text", xlabel="draft length k")
    axes.set_ylabel("times plain decoding")
    _count_from_one(axes, _longest(results))


def _level_name(line: _Line, setting: Setting) -> str:
    return line.name if setting.drafter == "none" else f"{line.name}, k {setting.k}"


def _predicted(results: Results, line: _Line) -> list[tuple[int, float]]:
    """For every k where theory has a formula, else for those that were measured."""
    first = line.settings[0]
    if first.drafter == "model" and not first.p_min:
        rows = [row for row in predictions(results) if row["temperature"] == first.temperature]
        return [(row["k"], row["predicted_speedup"]) for row in rows]
    found = []
    for setting in line.settings:
        cells = by_setting(results.cells)[setting]
        known = [p for cell in cells if (p := cell.predicted(results.curve)) is not None]
        found += [(_length(setting), statistics.median(known))] if known else []
    return found


def _draw_acceptance(axes: Axes, results: Results) -> None:
    """Of the longest drafts of each line. After a position that never held, none was tried."""
    for name, setting, line, look in _drafting(results):
        chances = pooled(results, setting).by_position
        chances = chances[: chances.index(0.0) + 1] if 0.0 in chances else chances
        axes.plot(range(1, len(chances) + 1), chances, color=line.color, label=name, **look)
    axes.set(title="Acceptance by draft position, given that all before were accepted", xlabel="position in the draft")
    _in_percent(axes)
    _count_from_one(axes, _longest(results))


def _drafting(results: Results) -> list[tuple[str, Setting, _Line, dict[str, Any]]]:
    """Of each line the longest drafts and the automatic ones: name, setting, line, look."""
    found: list[tuple[str, Setting, _Line, dict[str, Any]]] = []
    for line in _lines(results):
        if line.settings:
            found.append((line.name, line.settings[-1], line, {"marker": line.marker}))
        if line.level is not None and line.level.drafter != "none":
            look = {"marker": line.marker, "linestyle": _LEVEL}
            found.append((_level_name(line, line.level), line.level, line, look))
    return found


def _draw_course(axes: Axes, results: Results) -> None:
    """Of the longest drafts of each line, over all kinds of text."""
    for name, setting, line, look in _drafting(results):
        label = f"{name}, k {setting.k}" if _length(setting) else name
        _draw_running(axes, pooled(results, setting), color=line.color, label=label, **look)
    axes.set(title="Acceptance along the answer, longest drafts", xlabel=_ALONG)
    axes.set_xlim(left=0)
    _in_percent(axes)


def _draw_course_by_kind(axes: Axes, results: Results) -> None:
    for i, cell in enumerate(_best_cells(results)):
        color, marker = _look(i)
        _draw_running(axes, cell, color=color, marker=marker, label=_short(cell.kind, _LONGEST_KIND))
    axes.set(title=f"Acceptance along the answer, {_best_name(results)}", xlabel=_ALONG)
    axes.set_xlim(left=0)
    _in_percent(axes)


def _draw_running(axes: Axes, cell: Cell, **look: Any) -> None:
    points = running_acceptance([run.rounds for run in cell.runs])
    places, shares = [x for x, _ in points], [y for _, y in points]
    axes.plot(places, shares, markevery=max(1, len(points) // _MARKED), **look)


def _in_percent(axes: Axes) -> None:
    axes.set(ylabel="accepted", ylim=(0, 1.04))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _draw_costs(axes: Axes, results: Results) -> None:
    for i, curve in enumerate(results.curves):
        color, marker = _look(i)
        times = {width: 1000 * seconds for width, seconds in sorted(curve.target.items())}
        axes.plot(*zip(*times.items(), strict=True), color=color, marker=marker, label=f"after {curve.context} tokens")
        ends = [min(times), max(times)]
        axes.plot(ends, [times[width] for width in ends], color=color, linestyle="--", linewidth=1)
    axes.plot([], [], color=_GREY, linestyle="--", linewidth=1, label="straight line between first and last")
    axes.set(title="Cost of a target pass", xlabel="tokens in the pass", ylabel="milliseconds")
    axes.set_ylim(0, 1080 * max(seconds for curve in results.curves for seconds in curve.target.values()))
    _count_from_one(axes, max(width for curve in results.curves for width in curve.target))


def _draw_speeds(axes: Axes, results: Results) -> None:
    cells = _best_cells(results)
    rows = range(len(cells))
    thick = 0.38
    axes.barh(
        [row - thick / 2 for row in rows], [c.plain_speed for c in cells], thick, color=_GREY, label="plain decoding"
    )
    axes.barh(
        [row + thick / 2 for row in rows], [c.speed for c in cells], thick, color=_COLORS[0], label=_best_name(results)
    )
    axes.set_yticks(rows, [_short(cell.kind, _LONGEST_KIND) for cell in cells])
    axes.set_ylim(max(len(cells), _FEWEST_ROWS) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set(title="Speed by kind of text, best setting", xlabel="tokens per second")


def _best_name(results: Results) -> str:
    best, _ = results.best()
    return f"{best} at temperature {best.temperature:g}"


def _best_cells(results: Results) -> list[Cell]:
    return by_setting(results.cells)[results.best()[0]]


_PANELS = (_draw_speedup, _draw_acceptance, _draw_course, _draw_course_by_kind, _draw_costs, _draw_speeds)


def _count_from_one(axes: Axes, last: int) -> None:
    axes.set_xlim(0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _safe(text: str) -> str:
    """Names from outside: one line of letters that every form has."""
    return printable(" ".join(text.split())).translate(_NO_CHARACTERS)


def _short(name: str, longest: int = _LONGEST_NAME) -> str:
    name = _safe(name)
    return name if len(name) <= longest else name[: longest - 1] + "…"
