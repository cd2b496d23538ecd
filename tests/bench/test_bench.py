"""The benchmark: acceptance as theory has it, ratios from neighbours, texts compared, budgets kept."""

import errno
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from specdec_cli.bench import report as bench_report
from specdec_cli.bench.compare_texts import Comparison, compare
from specdec_cli.bench.measure import (
    Bench,
    Cell,
    Extent,
    Run,
    Setting,
    Task,
    longest_draft,
    median_speedup,
    within_budget,
)
from specdec_cli.bench.prompt_set import BenchPrompt, choose, read_prompts
from specdec_cli.bench.trend import acceptance_by_quarter, running_acceptance
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import Round
from specdec_cli.drafters import DRAFTERS, DrafterKind
from specdec_cli.drafters.ngram.drafter import NgramDrafter
from specdec_cli.errors import Interrupted, UsageError
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.lengths.learned import Learned
from specdec_cli.lengths.pass_costs import PassCosts
from specdec_cli.lengths.speedup_model import CostCurve
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from specdec_cli.settings import LONGEST_AUTO, Length
from tests.cli import Done, Models, inside
from tests.planted import PlantedPair, write_pair
from tests.terminals import ESCAPE, Terminal

PURE = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


@pytest.fixture(scope="module")
def pair_files(tmp_path_factory: pytest.TempPathFactory) -> PlantedPair:
    return write_pair(tmp_path_factory.mktemp("bench"), amount=0.5)


@pytest.fixture
def pair(pair_files: PlantedPair) -> Iterator[Pair]:
    request = PairRequest(
        pair_files.target,
        Drafting("none", LONGEST_AUTO, pair_files.draft, force=True),
        Sampling(seed=1, params=PURE),
        Placement(threads=1, cache_type="f32"),
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as opened:
        yield opened


def bench_of(pair: Pair, n: int = 40) -> Bench:
    clock = itertools.count()
    return Bench(pair, PURE, n, lambda: float(next(clock)))


TASKS = [Task("a", (1, 300, 301)), Task("b", (1, 310, 302, 305))]


def test_acceptance_is_within_a_point_of_theory(pair: Pair, pair_files: PlantedPair) -> None:
    """At temperature 0 a draft token stands where both chains' likeliest followers are the same."""
    agrees = pair_files.p.argmax(axis=1) == pair_files.q.argmax(axis=1)
    measuring = bench_of(pair, 400)
    token = 300
    expected: list[bool] = []
    setting = Setting("model", 1, 0.0)
    run = measuring.run(Task("a", (1, token)), setting)
    last = token
    for round_ in run.rounds:
        expected += [bool(agrees[last])] if round_.drafted else []
        last = round_.tokens[-1]
    assert run.stats.acceptance == pytest.approx(float(np.mean(expected)), abs=0.01)


def test_each_ratio_is_to_the_plain_runs_beside_it(pair: Pair) -> None:
    """With a clock that ticks once a call, every round takes as long, and ratios are ratios of tokens per round."""
    measuring = bench_of(pair)
    settings = [Setting("model", 2, 1.0), Setting("ngram", 4, 1.0)]
    steps = list(measuring.measure(Extent(TASKS, 2, 40), settings))
    assert len(steps) == measuring.n_runs(Extent(TASKS, 2, 40), settings) == 16
    assert set(measuring.cells) == {(task.kind, setting) for task in TASKS for setting in settings}
    for cell in measuring.cells.values():
        assert len(cell.runs) == len(cell.ratios) == 2
        assert cell.plain_speed > 0
        assert cell.worst == Comparison("same")
        per_round = [run.stats.tokens / run.stats.passes for run in cell.runs]
        assert cell.tokens_per_pass == pytest.approx(np.mean(per_round))


def test_what_is_measured_before_an_interruption_is_kept(pair: Pair) -> None:
    measuring = bench_of(pair)
    steps = measuring.measure(Extent(TASKS, 5, 40), [Setting("model", 2, 0.0)])
    for _ in range(3):
        next(steps)
    steps.close()
    assert [kind for kind, _ in measuring.cells] == ["a"]


def test_the_curve_has_every_width_and_repeats_a_short_text(pair: Pair) -> None:
    curve = bench_of(pair).cost_curve(TASKS[0].ids, 50, 5, 0.0)
    assert (list(curve.target), curve.context) == ([1, 2, 3, 4, 5], 50)
    assert all(seconds > 0 for seconds in curve.target.values())
    assert curve.draft > 0


def run_of(*rounds: Round) -> Run:
    stats = RunStats()
    for round_ in rounds:
        stats.add(round_)
    return Run(tuple(t for r in rounds for t in r.tokens), rounds, stats)


FIRST = Round((), 0, 7, seconds=1.0)


def test_a_prediction_of_fixed_lengths_uses_the_chances_by_position() -> None:
    curve = CostCurve(0, {1: 1.0, 3: 1.5}, 0.25)
    cell = Cell("a", Setting("model", 2, 0.0), [run_of(FIRST, Round((1, 2), 2, 3), Round((1, 2), 0, 3))])
    # Half of the drafts are kept whole: 1 + 0.5 + 0.5 tokens in 1.5 + 2.5 * 0.25 seconds.
    assert cell.by_position == [0.5, 1.0]
    assert cell.predicted(curve) == pytest.approx(2 / (1.5 + 2.5 * 0.25))
    assert cell.predicted(CostCurve(0, {1: 1.0}, 0.25)) is None


def test_a_prediction_of_uneven_lengths_counts_each_round() -> None:
    curve = CostCurve(0, {1: 1.0, 2: 1.2, 4: 1.6}, 0.25)
    rounds = (FIRST, Round((1, 2, 3), 3, 4), Round((), 0, 5), Round((6,), 0, 7))
    cell = Cell("a", Setting("ngram", 3, 0.0), [run_of(*rounds)])
    assert cell.predicted(curve) == pytest.approx(6 / (1.6 + 1.0 + 1.2))
    with_model = replace(cell.setting, drafter="model", p_min=0.5)
    assert Cell("a", with_model, cell.runs).predicted(curve) == pytest.approx(6 / (3.8 + 0.25 * (4 + 0 + 1)))


def test_a_drafter_that_is_no_model_is_predicted_with_the_time_it_took() -> None:
    curve = CostCurve(0, {1: 1.0, 2: 1.2}, 0.25)
    cell = Cell("a", Setting("other", 1, 0.0), [run_of(FIRST, Round((1,), 1, 2, draft_seconds=0.3))])
    assert cell.predicted(curve) == pytest.approx(2 / (1.2 + 0.3))


# --- automatic lengths, other drafters ----------------------------------------------------------------------


def test_an_automatic_length_is_measured_like_any_other(pair: Pair) -> None:
    clock = itertools.count()
    costs = PassCosts({w: 1 + w / 10 for w in (1, 2, 4, 8, 17)}, longest=LONGEST_AUTO)
    costs.set_drafting("model", 0.1, 0.1)
    measuring = Bench(replace(pair, learned=Learned(costs)), PURE, 40, lambda: float(next(clock)))
    settings = [Setting("model", "auto", 1.0), Setting("model", 2, 1.0), Setting("none", 0, 1.0)]
    assert longest_draft(settings) == LONGEST_AUTO
    list(measuring.measure(Extent(TASKS, 1, 40), settings))
    auto, fixed, plain = (measuring.cells["a", setting] for setting in settings)
    assert len({len(r.drafted) for r in auto.runs[0].rounds[1:]}) > 1
    assert auto.worst == fixed.worst == plain.worst == Comparison("same")
    assert (plain.ratios, plain.acceptance, plain.predicted(CostCurve(0, {1: 1.0}, 0.1))) == ([1.0], None, 1.0)
    # From each round's own length: the same sum as for any rounds.
    curve = CostCurve(0, {w: 1 + w / 10 for w in range(1, LONGEST_AUTO + 2)}, 0.25)
    rounds = auto.runs[0].rounds[1:]
    seconds = sum(
        1.1 + len(r.drafted) / 10 + 0.25 * (len(r.drafted) + (r.n_accepted == len(r.drafted) > 0)) for r in rounds
    )
    assert auto.predicted(curve) == pytest.approx(1.1 * sum(len(r.tokens) for r in rounds) / seconds)


def auto_results() -> bench_report.Results:
    found = results(1.5)
    (cell,) = found.cells.values()
    auto = Setting("model", "auto", 0.0)
    plain = Setting("none", 0, 0.0)
    cells = {
        **found.cells,
        ("kind0", auto): replace(cell, setting=auto, ratios=[1.6]),
        ("kind0", plain): replace(cell, setting=plain, ratios=[2.0]),
    }
    return replace(found, cells=cells)


def test_every_form_bears_an_automatic_length(tmp_path: Path) -> None:
    found = auto_results()
    document = bench_report.document(found)
    assert [cell["k"] for cell in document["cells"]] == [2, "auto", 0]
    assert "| model | auto |" in bench_report.as_markdown(found)
    assert [row[2] for row in bench_report.narrow(found)[1]] == ["model k 2", "model k auto", "plain decoding"]
    assert found.best() == (Setting("model", "auto", 0.0), 1.6), "plain decoding is no candidate"
    assert "model k auto at temperature 0 is 1.60 times" in bench_report.verdict(found)[0]
    assert {row["k"] for row in bench_report.predictions(found)} == {1, 2}
    file = tmp_path / "auto.json"
    file.write_text(json.dumps({**document, "files": WHOLE["files"]}))
    done = inside("bench", "--compare", f"{file},{file}")
    assert "model k auto" in done.out
    assert "0 of 3 cells differ by more than the noise" in done.out


def test_acceptance_along_the_answer() -> None:
    """Two answers of 8 and 4 tokens; the first round of each drafts nothing."""
    first = [FIRST, Round((1, 2), 2, 3), Round((1, 2), 0, 3), Round((), 0, 3), Round((1, 2), 1, 4)]
    second = [FIRST, Round((1,), 0, 9), Round((1,), 1, 2)]
    assert acceptance_by_quarter([first]) == [1.0, None, 0.0, 0.5]
    assert acceptance_by_quarter([first, second]) == [1.0, 0.0, 1 / 3, 0.5]
    # In the order of tokens before: (1, 1 of 0), (1, 2 of 2), (2, 1 of 1), (4, 2 of 0), (6, 2 of 1); three at a time.
    assert running_acceptance([first, second]) == [(4 / 3, 3 / 4), (7 / 3, 3 / 5), (4, 2 / 5)]
    assert running_acceptance([[FIRST]]) == []
    assert running_acceptance([first[:2]]) == [(1, 1.0)]
    rounds = [FIRST, *[Round((1,), 1, 2)] * 40, *[Round((1,), 0, 2)] * 40]
    points = running_acceptance([rounds])
    assert (points[0], points[-1]) == ((1 + 15, 1.0), (81 + 24 + 15 / 2, 0.0))
    assert [share for _, share in points] == sorted((share for _, share in points), reverse=True)


def test_a_text_that_differs_without_a_tie_is_a_bug(pair: Pair) -> None:
    measuring = bench_of(pair)
    task, rule = TASKS[0], pair.rule
    plain = measuring.run(task, Setting("none", 0, 1.0)).ids
    target = pair.target.session
    assert compare(target, rule, task.ids, plain, plain, 4) == Comparison("same")
    other = (*plain[:5], plain[5] + 1, *plain[6:])
    found = compare(target, rule, task.ids, plain, other, 4)
    assert (found.verdict, found.position, found.noise) == ("bug", 5, 0.0)
    assert found.gap > 0
    assert compare(target, rule, task.ids, plain, plain[:-1], 4).verdict == "bug"


def test_a_text_that_differs_at_a_tie_is_a_tie(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring = bench_of(pair)
    task, rule = TASKS[0], pair.rule
    plain = measuring.run(task, Setting("none", 0, 1.0)).ids
    other = (*plain[:5], plain[5] + 1, *plain[6:])
    gap = compare(pair.target.session, rule, task.ids, plain, other, 4).gap
    monkeypatch.setattr("specdec_cli.bench.compare_texts.width_noise", lambda *_: gap)
    found = compare(pair.target.session, rule, task.ids, plain, other, 4)
    assert (found.verdict, found.gap, found.noise) == ("tie", gap, gap)


def test_a_budget_takes_prompts_first_then_repeats_then_tokens_then_kinds() -> None:
    tasks = [Task(kind, (1,)) for kind in ("a", "a", "a", "b", "b")]
    settings = [Setting("model", 1, 0.0), Setting("model", 2, 0.0)]  # 4 runs a task with the two plain ones

    def chosen(budget: float) -> tuple[str, int, int]:
        found = within_budget(Extent(tasks, 2, 96), settings, 1.0, budget)
        return "".join(task.kind for task in found.tasks), found.repeats, found.n_tokens

    assert chosen(40) == ("aaabb", 2, 96)
    assert chosen(39) == ("aabb", 2, 96)
    assert chosen(20) == ("ab", 2, 96)
    assert chosen(15) == ("ab", 1, 96)
    assert chosen(4) == ("ab", 1, 48)
    assert chosen(1.5) == ("a", 1, 24)
    assert chosen(-1) == ("a", 1, 24)


def test_measuring_ends_with_the_budget_and_something_is_measured(pair: Pair) -> None:
    measuring = bench_of(pair)
    settings = [Setting("model", 1, 0.0), Setting("model", 1, 1.0)]
    tasks = [Task(kind, TASKS[0].ids) for kind in ("a", "b")]
    assert len(list(measuring.measure(Extent(tasks, 2, 8), settings, deadline=-1.0))) == 3
    assert list(measuring.cells) == [("a", settings[0])]
    assert {run.stats.tokens for cell in measuring.cells.values() for run in cell.runs} == {8}


# --- the words --------------------------------------------------------------------------------------------


def results(*speedups: float, verdict: str = "same") -> bench_report.Results:
    cells = {}
    for i, speedup in enumerate(speedups):
        setting = Setting("model", 2, 0.0)
        run = run_of(FIRST, Round((1, 2), 2, 3, seconds=1.0))
        comparison = Comparison("same") if verdict == "same" else Comparison(verdict, 7, 0.5, 0.2)  # type: ignore[arg-type]
        cells[f"kind{i}", setting] = Cell(f"kind{i}", setting, [run], [speedup], [1.0], [comparison])
    curve = CostCurve(10, {1: 1.0, 2: 1.2, 3: 1.5}, 0.1)
    facts = {"machine": {"cpu": "x"}, "versions": {"specdec": "1"}, "files": [], "command": "specdec bench x"}
    return bench_report.Results(cells, (curve,), facts)


@pytest.mark.parametrize(
    ("speedups", "words"),
    [
        (
            (1.5, 1.2, 0.9),
            "Drafting pays here: model k 2 at temperature 0 is 1.20 times as fast as plain",
        ),
        ((1.0, 1.01), "Drafting makes no difference here"),
        (
            (0.9, 0.8, 0.7),
            "Drafting is slower here: even the best setting, model k 2 at temperature 0, runs at 0.80 times",
        ),
        ((1.3,), "is 1.30 times as fast as plain decoding (on kind0)."),
    ],
)
def test_the_verdict_is_the_median_in_words(speedups: tuple[float, ...], words: str) -> None:
    lines = bench_report.verdict(results(*speedups))
    assert words in lines[0]
    assert median_speedup(list(results(*speedups).cells.values())) == pytest.approx(np.median(speedups))


@pytest.mark.parametrize(
    ("drafter", "k", "p_min", "command"),
    [
        ("model", 2, 0.0, "specdec run demo -k 2"),
        ("model", 4, 0.5, "specdec run demo -k 4 --p-min 0.5"),
        ("ngram+model", "auto", 0.0, "specdec run demo"),
        ("model", "auto", 0.0, "specdec run demo --no-ngram"),
        ("ngram", 8, 0.0, "specdec run demo --draft ngram -k 8"),
        ("none", 0, 0.0, "specdec run demo --draft none"),
        ("ngram+model", 4, 0.0, None),
    ],
)
def test_the_command_that_runs_a_setting(drafter: str, k: Length, p_min: float, command: str | None) -> None:
    assert bench_report.Named("demo", None, "model").command(Setting(drafter, k, 0.0, p_min)) == command


def test_the_command_names_the_draft_as_it_was_named() -> None:
    named = bench_report.Named("my target.gguf", "d.gguf", "model")
    assert named.command(Setting("model", 2, 0.0)) == "specdec run 'my target.gguf' --draft d.gguf -k 2"


def test_the_first_sentence_has_the_command_to_use() -> None:
    named = bench_report.Named("demo", None, "model")
    fast, slow = (replace(results(speedup), named=named) for speedup in (1.5, 0.7))
    assert bench_report.verdict(fast)[0].startswith("Drafting pays here (use: specdec run demo -k 2): model k 2 ")
    assert bench_report.verdict(slow)[0].startswith("Drafting is slower here (use: specdec run demo --draft none): ")
    assert bench_report.document(fast)["use"] == "specdec run demo -k 2"


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 10), (120, 40)])
def test_in_a_window_the_verdict_comes_first_and_everything_fits(models: Models, columns: int, rows: int) -> None:
    what = ("--draft", models.draft, "-k", 2, "-n", 8, "--temp", 0, "--kinds", "qa,json", "--repeats", 1)
    with Terminal("bench", models.words, *what, "--threads", 1, columns=columns, rows=rows) as terminal:
        assert terminal.end() == 0, terminal.text
    told = ESCAPE.sub(b"", terminal.raw[terminal.raw.index(b"Drafting ") :]).decode().splitlines()
    assert [line for line in told if len(line) > columns and len(line.split()) > 1] == []
    places = [next(i for i, line in enumerate(told) if line.startswith(start)) for start in ("Each speedup", "Speedup")]
    assert 0 < places[0] < places[1]


def test_a_prediction_that_is_far_off_is_said() -> None:
    assert not any("prediction" in line for line in bench_report.verdict(results(3 / 1.8)))
    assert any("1 of 1 cells the prediction is off" in line for line in bench_report.verdict(results(0.5)))


def test_ties_and_bugs_are_said_and_bugs_are_known() -> None:
    assert "token by token, in all 2 cells" in bench_report.verdict(results(1.0, 1.0))[-1]
    assert "near ties in 1 of 1 cells (largest gap 0.5" in bench_report.verdict(results(1, verdict="tie"))[-1]
    assert "BUG: on kind0" in bench_report.verdict(results(1, verdict="bug"))[-1]
    assert [results(1, verdict=v).has_bug for v in ("same", "tie", "bug")] == [False, False, True]


def test_the_forms_agree() -> None:
    found = results(1.5, 0.9)
    document = bench_report.document(found)
    assert [cell["speedup"] for cell in document["cells"]] == [1.5, 0.9]
    assert {
        "kind", "temperature", "drafter", "k", "tokens_per_second", "plain_tokens_per_second", "speedup",
        "predicted_speedup", "acceptance", "tokens_per_pass", "accepted_per_position", "same_output",
    } <= set(document["cells"][0])  # fmt: skip
    assert document["cost_curve"][0]["target_seconds_by_width"] == {"1": 1.0, "2": 1.2, "3": 1.5}
    markdown = bench_report.as_markdown(found)
    assert markdown.count("\n| kind") == 3
    assert "- command: `specdec bench x`" in markdown
    assert "0.90 slower" in markdown
    assert [row[0] for row in bench_report.cost_table(found)] == ["1", "2", "3", "draft"]


# --- prompts ----------------------------------------------------------------------------------------------


def test_prompts_of_ones_own(tmp_path: Path) -> None:
    lines = tmp_path / "p.jsonl"
    lines.write_text('{"kind": "x", "prompt": "a"}\n\n{"turns": ["b", "c"]}\n')
    assert read_prompts(lines) == [BenchPrompt("x", ("a",)), BenchPrompt("own", ("b", "c"))]
    assert choose(read_prompts(lines), ["own"]) == [BenchPrompt("own", ("b", "c"))]
    text = tmp_path / "p.txt"
    text.write_text(" one text \n over lines\n")
    assert read_prompts(text) == [BenchPrompt("own", ("one text \n over lines",))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no prompts"),
        ("{", "line 1: it is not JSON"),
        ('{"kind": "x"}', "line 1 has no prompt"),
        ("[1]", "line 1 has no prompt"),
        ('{"prompt": " "}', "line 1 has no prompt"),
        ('{"prompt": 3}', "line 1 has no prompt"),
        ('{"turns": "a"}', "line 1 has no prompt"),
    ],
)
def test_prompts_that_are_none(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_prompts(file)


# --- the command ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def benched(models: Models, *arguments: object) -> Done:
    usual = ("--draft", models.draft, "--threads", 1, "-n", 16, "--repeats", 1, "--temp", "0,1", "-k", "1,3")
    return inside("bench", models.words, *usual, *arguments)


def test_bench_tells_a_verdict_and_writes_every_form(models: Models, tmp_path: Path) -> None:
    names = {form: tmp_path / f"out.{form}" for form in ("json", "md")}
    picture = tmp_path / "out.svg"
    forms = (x for form, file in names.items() for x in (f"--{form}", file))
    done = benched(models, "--kinds", "code,story", *forms, "--plot", picture)
    assert done.code == 0, done.err
    assert done.out.startswith("Drafting ")
    assert "(use: specdec run " in done.out.splitlines()[0]
    assert "times plain decoding" in done.out or "as fast as plain decoding" in done.out
    assert "token by token, in all 12 cells" in done.out
    document = json.loads(names["json"].read_text())
    assert {"machine", "versions", "files", "command", "cost_curve", "cells"} <= set(document)
    assert len(document["cells"]) == 2 * 2 * 3
    assert {cell["same_output"] for cell in document["cells"]} == {"same"}
    assert document["files"][0]["sha256"] != document["files"][1]["sha256"]
    assert "specdec bench" in names["md"].read_text()
    assert {"code", "story"} <= set(ElementTree.parse(picture).getroot().itertext())
    chart = done.out.splitlines()[-3:]
    assert chart[0].startswith("Speedup of ")
    assert [line.split()[0] for line in chart[1:]] == ["code", "story"]


def test_json_on_stdout_is_all_there_is(models: Models) -> None:
    done = benched(models, "--kinds", "json", "--json", "-", "--temp", "0", "--drafter", "ngram")
    assert len(json.loads(done.out)["cells"]) == 2


def test_a_drafter_of_the_table_needs_nothing_here(
    models: Models, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "specdec_cli.drafters.DRAFTERS", {**DRAFTERS, "mine": DrafterKind(lambda _: NgramDrafter(least_chance=0.1))}
    )
    file = tmp_path / "x.json"
    done = benched(
        models, "--kinds", "code", "--temp", "0", "--drafter", "mine,none", "--json", file, "--plot", tmp_path / "x.svg"
    )
    assert done.code == 0, done.err
    cells = json.loads(file.read_text())["cells"]
    assert [(cell["drafter"], cell["k"]) for cell in cells] == [("mine", 1), ("mine", 3), ("none", 0)]
    assert all(cell["same_output"] == "same" for cell in cells)


def test_drafters_of_several_benchmarks_stand_in_one_table(models: Models, tmp_path: Path) -> None:
    first, second, table = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "t.md"
    assert benched(models, "--kinds", "code,story", "--temp", "0", "--json", first).code == 0
    assert benched(models, "--kinds", "qa", "--temp", "0", "--drafter", "lookahead", "--json", second).code == 0
    done = inside("bench", "--compare", f"{first},{second}", "--md", table)
    assert done.code == 0, done.err
    lines = table.read_text().splitlines()
    assert lines[0].startswith("| target | draft | drafter |")
    assert len(lines) == 2 + 3 + 2
    row = [cell.strip() for cell in lines[3].split("|")][1:-1]
    cells = [c for c in json.loads(first.read_text())["cells"] if (c["drafter"], c["k"]) == ("model", 3)]
    assert row[:4] == [models.words.name, models.draft.name, "model k 3", "0"]
    tried, kept = (sum(cell[f"{what}_per_position"][0] for cell in cells) for what in ("tried", "kept"))
    assert row[4].split(", ")[0] == f"{kept / tried:.2f}"
    assert row[4].count(",") == 2
    assert float(row[5]) > 0
    assert row[6] == f"{sum(c['n_tokens'] for c in cells) / sum(c['n_passes'] for c in cells):.2f}"
    low, high = sorted(cell["speedup"] for cell in cells)
    assert row[7:] == [f"{(low + high) / 2:.2f}", f"{low:.2f}-{high:.2f}"]
    by_text = [line for line in lines if "| lookahead k 1 |" in line]
    assert "| - | lookahead" in by_text[0]
    assert by_text[0].endswith("| qa |")
    assert "different machines" not in done.err


WHOLE = {
    "machine": {"cpu": "one", "free_memory_bytes": 1},
    "versions": {"specdec": "1"},
    "files": [{"role": "target", "name": "t.gguf"}],
    "cells": [
        {"kind": "qa", "temperature": 0.0, "drafter": "ngram", "k": 2, "p_min": 0.0, "speedup": 1.5,
         "speedup_range": [1.4, 1.6], "tried_per_position": [4, 2], "kept_per_position": [2, 1],
         "draft_seconds_per_token": None, "n_tokens": 9, "n_passes": 6}
    ],
}  # fmt: skip
"""All that a document needs for a table."""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cells": []}, "holds no results"),
        ({"cells": [{k: v for k, v in WHOLE["cells"][0].items() if k != "n_passes"}]}, "written by an older specdec"),
        ({"cells": [{**WHOLE["cells"][0], "kept_per_position": [2]}]}, "impossible token counts"),
        ({"files": None}, "does not say which files"),
        ({"files": [{"role": "draft", "name": "d.gguf"}]}, "does not say which files"),
        ({"files": ["t.gguf"]}, "does not say which files"),
    ],
)
def test_a_damaged_document_is_named(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    whole, damaged = tmp_path / "whole.json", tmp_path / "damaged.json"
    whole.write_text(json.dumps(WHOLE))
    assert inside("bench", "--compare", whole).code == 0
    damaged.write_text(json.dumps({**WHOLE, **changed}))
    done = inside("bench", "--compare", f"{whole},{damaged}")
    assert (done.code, done.out) == (2, "")
    assert "damaged.json" in done.err
    assert words in done.err


def test_what_has_no_place_beside_a_comparison(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(WHOLE))
    for option in ("--json", "--plot", "--draft"):
        done = inside("bench", "--compare", file, option, tmp_path / "x.svg")
        assert (done.code, done.out) == (2, "")
        assert f"--compare cannot be combined with {option}." in done.err
    done = inside("bench", "--compare", file, "other.json")
    assert (done.code, done.out) == (2, "")
    assert "--compare cannot be combined with a model." in done.err
    assert "commas" in done.err
    for place, words in (
        ("/nowhere/x.md", "Cannot write to /nowhere/x.md."),
        (tmp_path, f"{tmp_path} is not a writable file."),
    ):
        done = inside("bench", "--compare", file, "--md", place)
        assert (done.code, done.out) == (2, "")
        assert str(place) in done.err
        assert words in done.err


def test_a_comparison_says_what_its_benchmarks_do_not_share(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d", "e"]
    files = [*WHOLE["files"], {"role": "draft", "name": "d.gguf"}]
    others = [{}, {"machine": {"cpu": "one", "free_memory_bytes": 2}}, {"versions": {}}, {"machine": {"cpu": "two"}}]
    for name, other in zip(names, [*others, {"files": files}], strict=True):
        (tmp_path / name).write_text(json.dumps({**WHOLE, **other}))

    def notes(*which: str) -> list[str]:
        done = inside("bench", "--compare", ",".join(str(tmp_path / name) for name in which))
        return [line.split()[-1] for line in done.err.splitlines() if line.startswith("Note: ")]

    assert notes("a", "b") == []
    assert notes("a", "c") == ["libraries."]
    assert notes("a", "d") == ["machines."]
    assert notes("a", "e") == ["files."]
    assert notes(*names) == ["machines.", "libraries."], "several drafts are what one compares"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("speedup", None),
        ("speedup", "x"),
        ("speedup", 0),
        ("speedup", float("nan")),
        ("speedup_range", [1]),
        ("speedup_range", [2, 1]),
        ("k", []),
        ("k", 0),
        ("k", True),
        ("k", -1),
        ("kind", {}),
        ("p_min", -1),
        ("n_tokens", -9),
        ("n_passes", 1.5),
        ("n_passes", True),
        ("tried_per_position", [-4, -2]),
        ("tried_per_position", [1, 1]),
        ("kept_per_position", [2, -1]),
        ("draft_seconds_per_token", -1),
        ("temperature", "0"),
        ("drafter", 3),
        ("n_tokens", None),
        ("tried_per_position", 5),
        ("draft_seconds_per_token", "q"),
    ],
)
def test_documents_with_wrong_values_are_refused_in_words(tmp_path: Path, name: str, value: object) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({**WHOLE, "cells": [{**WHOLE["cells"][0], name: value}]}))
    done = inside("bench", "--compare", file)
    assert (done.code, done.out) == (2, "")
    assert str(file) in done.err


def test_names_in_a_document_are_data_and_no_commands(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\x9b31m a|b\r\nc"
    cell = {**WHOLE["cells"][0], "kind": evil, "drafter": "ngram"}
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(
            json.dumps({**WHOLE, "cells": [cell], "files": [{"role": "target", "name": evil}]})
        )
    both = f"{tmp_path / 'a.json'},{tmp_path / 'b.json'}"
    for place in ("-", tmp_path / "out.md"):
        done = inside("bench", "--compare", both, "--md", place)
        text = done.out if place == "-" else Path(place).read_text()
        assert done.code == 0, done.err
        assert not set("\x1b\x07\x9b\r") & set(text)
        assert sum(line.startswith("|") for line in text.splitlines()) == 2 + 2 + 2 + 1
        assert text.count("a\\|b c") == 4 + 1


def test_what_was_measured_is_shown_also_where_no_file_can_be_written(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    asked = ("--kinds", "qa", "--temp", "0", "--json", tmp_path / "a.json", "--md", tmp_path / "a.md")
    monkeypatch.setattr("specdec_cli.commands.bench_output.write_output", full)
    done = benched(models, *asked)
    assert done.code == 24
    assert "token by token" in done.out
    assert done.err.count("Error: ") == 2
    assert list(tmp_path.iterdir()) == []


def test_drafters_side_by_side_fit_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, long = tmp_path / "a.json", "a-very-long-name-of-a-model-Q4_0.gguf"
    counts = {"tried_per_position": [9, 8, 7, 6, 5], "kept_per_position": [8, 7, 6, 5, 4]}
    cell = {**WHOLE["cells"][0], **counts, "drafter": "ngram+model", "k": "auto", "temperature": 0.8, "speedup": 1.234}
    files = [{"role": role, "name": long} for role in ("target", "draft")]
    file.write_text(json.dumps({"cells": [cell], "files": files}))
    monkeypatch.setenv("COLUMNS", "80")
    lines = inside("bench", "--compare", file).out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].split()[0] == "1.23"
    assert "0.89, 0.88" in lines[1]
    assert lines[1].endswith("a-model-Q4_0")


@pytest.mark.parametrize(("columns", "is_wide"), [("80", False), ("109", False), ("110", True)])
def test_a_pipe_gets_the_table_that_fits(
    models: Models, monkeypatch: pytest.MonkeyPatch, columns: str, is_wide: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    done = benched(models, "--kinds", "code,story", "--temp", "0")
    assert ("per pass" in done.out) == is_wide
    rows = done.out[done.out.index("kind ") : done.out.index("Each speedup is")].splitlines()
    assert len(rows) == 1 + 2 * 3
    assert max(map(len, rows)) <= int(columns)


def test_one_kind_needs_no_chart(models: Models) -> None:
    done = benched(models, "--kinds", "code", "--temp", "0", "--drafter", "ngram")
    assert (done.code, "Speedup of" in done.out) == (0, False), done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-k", "0"), "--k takes draft lengths of 1 or more."),
        (("-k", "1,x"), "Invalid --k: '1,x'."),
        (("-k", ","), "--k needs at least one draft length."),
        (("--temp", "hot"), "Invalid --temp: 'hot'."),
        (("--drafter", "magic"), "Invalid --drafter: 'magic'."),
        (("--kinds", "poems"), "There are no prompts of kind 'poems'."),
        (("--prompts", "/nowhere.txt"), "Cannot read /nowhere.txt"),
        (("--json", "/nowhere/x.json"), "Cannot write to /nowhere/x.json."),
        (("--plot", "/nowhere/x.svg"), "Cannot write to /nowhere/x.svg."),
        (("--plot", "x.gif"), "--plot cannot write x.gif."),
        (("--plot", "-"), "--plot cannot write -."),
        (("--ctx", "64"), "No prompt fits the context."),
        (("--ctx-fill", "100000"), "--ctx-fill 100000 does not fit a context of"),
        (("-k", "600"), "does not fit in a pass"),
    ],
)
def test_wrong_use_is_told_before_anything_is_measured(models: Models, arguments: tuple[str, ...], words: str) -> None:
    done = benched(models, "--kinds", "code", *arguments) if "--kinds" not in arguments else benched(models, *arguments)
    assert done.code == 2, done.err
    assert f"Error: {words}" in done.err or words in done.err
    assert "Hint: " in done.err


def test_without_matplotlib_a_plot_is_refused_before_anything_is_measured(
    models: Models, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "specdec_cli.bench.plot", raising=False)
    done = benched(models, "--kinds", "code", "--plot", tmp_path / "x.svg")
    assert (done.code, done.out, "Measuring" in done.err) == (2, "", False)
    assert "--plot needs matplotlib" in done.err
    assert 'pip install "specdec-cli[plot]"' in done.err


def test_no_draft_and_no_time(models: Models) -> None:
    done = inside("bench", models.words, "--drafter", "model", "--threads", 1)
    assert (done.code, "This drafter needs a draft model." in done.err) == (2, True)
    assert "Measuring" not in done.err


def test_a_bug_has_an_exit_code_of_its_own(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_cli.bench.measure.compare", lambda *_: Comparison("bug", 3, 1.0, 0.0))
    done = benched(models, "--kinds", "code", "--temp", "0")
    assert done.code == 9
    assert "BUG: on code" in done.out
    assert "no near tie explains it" in done.err


# --- comparing --------------------------------------------------------------------------------------------


def written(folder: Path, name: str, *cells: tuple[str, float, float]) -> Path:
    """A benchmark of cells (kind, speedup, half of its range)."""
    rows = [
        {**WHOLE["cells"][0], "kind": kind, "speedup": speedup, "speedup_range": [speedup - half, speedup + half]}
        for kind, speedup, half in cells
    ]
    file = folder / name
    file.write_text(json.dumps({**WHOLE, "machine": {"cpu": name[0]}, "cells": rows}))
    return file


def test_differences_within_the_spread_are_noise(tmp_path: Path) -> None:
    before = written(
        tmp_path, "a.json", ("code", 1.0, 0.01), ("story", 1.0, 0.2), ("json", 1.0, 0.0), ("math", 1.0, 0.0)
    )
    after = written(
        tmp_path, "b.json", ("code", 1.1, 0.01), ("story", 1.1, 0.01), ("json", 0.9, 0.0), ("math", 1.02, 0.0)
    )
    done = inside("bench", "--compare", f"{before},{after}")
    assert done.code == 0, done.err
    rows = done.out[done.out.index("before") :].splitlines()[1:5]
    verdicts = {line.split()[5].strip(","): line.split()[4] for line in rows}
    assert verdicts == {"code": "faster", "story": "noise", "json": "slower", "math": "noise"}
    summary = "2 of 4 cells differ by more than the noise: 1 faster, 1 slower."
    assert summary in done.out
    assert "different machines" in done.err
    as_markdown = inside("bench", "--compare", f"{before},{after}", "--md", "-").out
    assert "| 1.00 | 1.10 | +10.0% | 3.0% | faster | code, temp 0, ngram k 2 |" in as_markdown
    assert summary in as_markdown


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    good, other = written(tmp_path, "a.json", ("code", 1.0, 0.1)), written(tmp_path, "b.json", ("x", 1.0, 0.1))
    bad = tmp_path / "c.json"
    bad.write_text("[]")
    done = inside("bench", "--compare", f"{good},{bad}")
    assert (done.code, "c.json is not a benchmark result." in done.err) == (2, True), done.err
    assert f"Cannot read {tmp_path / 'none.json'}" in inside("bench", "--compare", tmp_path / "none.json").err
    assert "needs at least one file" in inside("bench", "--compare", "").err
    done = inside("bench", "--compare", f"{good},{other}")
    assert (done.code, "more than the noise" in done.out) == (0, False), "no cell in common: side by side only"
    assert "No model given." in inside("bench").err


# --- interrupted ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Interrupted(2)])
def test_an_interrupted_benchmark_shows_what_it_has_and_says_so(
    models: Models, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    measure = Bench.measure

    def broken_off(*arguments: Any) -> Iterator[None]:
        yield from itertools.islice(measure(*arguments), 8)
        raise stop

    monkeypatch.setattr(Bench, "measure", broken_off)
    done = benched(models, "--kinds", "code,story", "--temp", "0", "--tune")
    assert done.code == 130
    assert "Stopped after 8 of " in done.err
    assert "token by token" in done.out
    assert "Fastest:" not in done.out


def test_an_interruption_while_tuning_shows_the_results_and_keeps_nothing(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_off(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specdec_cli.commands.bench.fastest", broken_off)
    done = benched(models, "--kinds", "code", "--temp", "0", "--tune")
    assert (done.code, "Stopped while tuning; nothing was saved." in done.err) == (130, True)
    assert "token by token, in all 5 cells" in done.out
    assert "Fastest:" not in done.out


def test_an_interruption_before_the_first_answer(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_off(*_: Any) -> Iterator[None]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Bench, "measure", broken_off)
    done = benched(models, "--kinds", "code", "--temp", "0")
    assert (done.code, "Nothing has been measured yet." in done.err) == (130, True)


def test_the_narrow_table_keeps_what_one_came_for() -> None:
    headers, rows = bench_report.narrow(results(1.5, 0.9, verdict="tie"))
    assert headers[-1] == "text"
    assert [row[-1] for row in rows] == ["tie at 7", "tie at 7"]
    assert [row[3] for row in rows] == ["1.50", "0.90"]


def test_plain_decoding_alone_is_nothing_to_measure(models: Models) -> None:
    done = inside("bench", models.words, "--draft", "none")
    assert (done.code, "--draft none leaves nothing to measure" in done.err) == (2, True)
    assert "Invalid --p-min: '2'." in benched(models, "--p-min", "2").err


def test_lookup_and_model_take_turns_where_lengths_are_chosen(models: Models, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    done = benched(models, "--kinds", "code", "--temp", "0", "-k", "2,auto", "--json", file)
    assert done.code == 0, done.err
    cells = json.loads(file.read_text())["cells"]
    settings = [(cell["drafter"], cell["k"]) for cell in cells]
    assert settings == [("model", 2), ("ngram+model", "auto"), ("ngram", 2), ("ngram", "auto")]
    assert all(cell["same_output"] == "same" for cell in cells)


def test_automatic_lengths_need_costs(models: Models) -> None:
    request = PairRequest(models.words, Drafting("none", 4, models.draft, force=True), Sampling(seed=1))
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        bench = Bench(pair, SamplingParams(), 8, time.perf_counter)
        with pytest.raises(ValueError, match="without `auto`"):
            bench.check([Setting("model", "auto", 0.0)])
