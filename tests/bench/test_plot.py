"""Pictures of a benchmark: what is in them, in every form, and names as data."""

import re
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specdec_cli.bench.compare_texts import Comparison
from specdec_cli.bench.measure import Cell, Length, Run, Setting
from specdec_cli.bench.plot import check_form, write_plot
from specdec_cli.bench.report import Results
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import Round
from specdec_cli.errors import UsageError
from specdec_cli.lengths.speedup_model import CostCurve

WIDEST = 9
USUAL = [Setting("model", k, t) for t in (0.0, 0.7) for k in (1, 2, 4)] + [Setting("ngram", 8, 0.0)]


def run_of(k: Length, kept: Sequence[int]) -> Run:
    stats, rounds = RunStats(), [Round((), 0, 7, seconds=1.0)]
    lengths = [k if isinstance(k, int) else 1 + i % 5 for i in range(len(kept))]
    rounds += [Round(tuple(range(m)), min(n, m), 3, seconds=1.5) for m, n in zip(lengths, kept, strict=True)]
    for round_ in rounds:
        stats.add(round_)
    return Run(tuple(token for r in rounds for token in r.tokens), tuple(rounds), stats)


def results(
    kinds: Sequence[str] = ("code", "story"),
    settings: Sequence[Setting] = USUAL,
    contexts: Sequence[int] = (100,),
    file: str = "big.gguf",
    kept: Sequence[int] = (0, 1, 2, 8),
) -> Results:
    cells = {}
    for setting in settings:
        for i, kind in enumerate(kinds):
            run = run_of(setting.k, kept)
            cells[kind, setting] = Cell(kind, setting, [run], [run.speed + i / 10], [1.0], [Comparison("same")])
    curves = [CostCurve(c, {w: 0.03 + 0.002 * w + c / 1e5 for w in range(1, WIDEST + 1)}, 0.003) for c in contexts]
    facts = {
        "machine": {"cpu": "A processor"},
        "files": [{"name": file}, {"name": "small.gguf"}],
        "command": "specdec bench big.gguf --temp '<0>'",
    }
    return Results(cells, tuple(curves), facts)


def texts(svg: Path) -> list[str]:
    return [element.text or "" for element in ElementTree.parse(svg).iter() if element.tag.endswith("}text")]


def drawn(tmp_path: Path, found: Results) -> list[str]:
    write_plot(found, tmp_path / "x.svg")
    return texts(tmp_path / "x.svg")


def test_an_svg_says_what_it_shows(tmp_path: Path) -> None:
    assert {
        "big.gguf with small.gguf",
        "A processor",
        "draft length k",
        "times plain decoding",
        "model, temperature 0",
        "model, temperature 0.7",
        "ngram, temperature 0",
        "predicted",
        "position in the draft",
        "Acceptance along the answer, longest drafts",
        "Acceptance along the answer, ngram k 8 at temperature 0",
        "ngram, temperature 0, k 8",
        "tokens in the pass",
        "after 100 tokens",
        "after 900 tokens",
        "straight line between first and last",
        "tokens per second",
        "plain decoding",
        "ngram k 8 at temperature 0",
        "code",
        "story",
    } <= set(drawn(tmp_path, results(contexts=(100, 900))))


def lines_of(svg: Path) -> list[tuple[str, bool, int]]:
    """Colour, whether dashed, and points of everything drawn as a line."""
    found = []
    for element in ElementTree.parse(svg).iter():
        style = dict(part.split(": ") for part in element.get("style", "").split("; ") if part)
        if element.tag.endswith("}path") and style.get("fill") == "none" and "stroke" in style:
            points = len(re.findall("[ML] ", element.get("d", "")))
            found.append((style["stroke"], "stroke-dasharray" in style, points))
    return found


def test_each_line_has_its_points(tmp_path: Path) -> None:
    """Measured for every k that was, predicted for each up to the largest, and no chance where nothing was tried."""
    write_plot(results(settings=[Setting("model", k, 0.0) for k in (1, 4)], kept=(0, 1)), tmp_path / "x.svg")
    lines = lines_of(tmp_path / "x.svg")
    in_a_legend = [(False, 3)] * 5
    assert sorted((dashed, points) for color, dashed, points in lines if color == "#0072b2") == sorted(
        [
            *[(False, 2)] * 2,  # ranges at 1 and 4
            *[(False, 2), (True, 4)],  # measured, predicted
            (False, 2),  # the first position held once in two, the second never
            (False, 3),  # along the answers: four rounds, two at a time
            (False, 2),  # along the answer of the first kind: two rounds, one at a time
            *[(False, WIDEST), (True, 2)],
            *in_a_legend,
        ]
    )
    spines = 2 * 6
    assert lines.count(("#000000", False, 2)) == spines + 1, "the line at 1"


def test_equal_figures_are_equal_files(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        write_plot(results(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_png_is_a_picture_and_grows_with_the_kinds(tmp_path: Path) -> None:
    sizes = []
    for n in (2, 30):
        file = tmp_path / f"{n}.PNG"
        write_plot(results([f"kind {i}" for i in range(n)]), file)
        data = file.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert b"IEND" in data[-12:]
        sizes.append(struct.unpack(">II", data[16:24]))
    assert sizes[0][0] > 1500
    assert sizes[1][1] > sizes[0][1] + 300


def test_names_are_data(tmp_path: Path) -> None:
    kinds = ["$x_1$", "$\\frac{", "a\x00\x1b\ufffe\ud800b", "_hidden", "中文", "two\nlines", "k" * 80]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = drawn(tmp_path, results(kinds, file="m$1$.gguf"))
        write_plot(results(kinds), tmp_path / "x.png")
    assert {"$x_1$", "$\\frac{", "a␀␛\ufffd\ufffdb", "_hidden", "中文", "two lines", "k" * 23 + "…"} <= set(found)
    assert "m$1$.gguf with small.gguf" in found


@pytest.mark.parametrize(
    "found",
    [
        results(["own"], [Setting("ngram", 1, 0.0)]),
        results(["own"], [Setting("model", 2, 0.0, 0.5)]),
        results(["own"], [Setting("ngram", 20, 0.0)]),
        results(["own"], kept=()),
        results(settings=[Setting("model", k, 0.0) for k in (2, "auto")] + [Setting("none", 0, 0.0)]),
        results(["own"], [Setting("ngram", "auto", 0.0)]),
        results(["own"], [Setting("none", 0, 0.0)], kept=()),
        results(
            settings=[Setting(d, k, t, p) for d in ("model", "ngram") for k in (1, 8) for t in (0, 1) for p in (0, 0.5)]
        ),
    ],
    ids=["one ngram", "p-min", "no width for it", "nothing drafted", "auto", "auto alone", "plain alone", "many"],
)
def test_whatever_was_measured_can_be_drawn(tmp_path: Path, found: Results) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "draft length k" in drawn(tmp_path, found)


def test_a_users_own_style_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    write_plot(results(), tmp_path / "a.svg")
    for name, value in (("svg.fonttype", "path"), ("font.size", 20.0), ("axes.facecolor", "black")):
        monkeypatch.setitem(matplotlib.rcParams, name, value)
    write_plot(results(), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert matplotlib.rcParams["font.size"] == 20.0


def test_an_automatic_length_is_a_level_line(tmp_path: Path) -> None:
    settings = [Setting("model", 1, 0.0), Setting("model", 4, 0.0), Setting("model", "auto", 0.0)]
    found = drawn(tmp_path, results(settings=[*settings, Setting("none", 0, 0.0)]))
    assert {"model, temperature 0", "model, temperature 0, k auto", "none, temperature 0"} <= set(found)
    level = ("#0072b2", True, 2)
    assert lines_of(tmp_path / "x.svg").count(level) == 1 + 1, "the line and its legend"


@pytest.mark.parametrize("name", ["x", "x.gif", "x.html", "svg", "-", ".svg"])
def test_other_forms_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--plot cannot write") as caught:
        check_form(Path(name))
    assert ".svg or .png" in str(caught.value.hint)
