"""What-if from a trace: chances and times as recorded, other lengths as arithmetic has them."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.bench.replay import Recording, curve_of, read_trace, what_if
from specdec_cli.errors import UsageError
from specdec_cli.lengths.speedup_model import CostCurve, predicted_speedup
from tests.cli import Models, inside


def round_(n_drafted: int, n_accepted: int, seconds: float = 1.0) -> dict[str, Any]:
    return {
        "type": "round",
        "drafted": list(range(n_drafted)),
        "n_accepted": n_accepted,
        "own": 7,
        "draft_seconds": 0.1 * n_drafted,
        "verify_seconds": seconds,
        "seconds": seconds + 0.1 * n_drafted,
    }


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    file = folder / "trace.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines))
    return file


HEADER = {"type": "header"}
RECORDING = Recording((0.8, 0.5), {1: 1.0, 3: 1.4}, 0.1, 1.0)


def test_a_trace_is_read_without_the_rounds_that_read_prompts(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        HEADER,
        round_(0, 0, 9.0),
        round_(2, 2, 1.4),
        round_(2, 0, 1.6),
        HEADER,
        round_(0, 0, 9.0),
        round_(2, 1, 1.5),
        round_(0, 0, 1.0),
    )
    found = read_trace(file)
    assert found.chances == pytest.approx((2 / 3, 1 / 2))
    assert found.passes == {1: 1.0, 3: 1.5}
    assert found.draft == pytest.approx(0.1)
    assert found.speed == pytest.approx((3 + 1 + 2 + 1) / (1.6 + 1.8 + 1.7 + 1.0))


def test_lengths_that_were_not_tried_lie_on_the_line() -> None:
    one, two = what_if(RECORDING, [1, 2, 3], None)
    full = CostCurve(0, {1: 1.0, 2: 1.2, 3: 1.4}, 0.1)
    assert (one.k, one.is_measured, two.k, two.is_measured) == (1, False, 2, True)
    assert one.speedup == pytest.approx(predicted_speedup(full, RECORDING.chances, 1))
    assert two.speedup == pytest.approx(predicted_speedup(full, RECORDING.chances, 2))
    assert two.speed == pytest.approx(two.speedup * 1.0)
    assert two.tokens_per_pass == pytest.approx(1 + 0.8 + 0.4)


def test_a_given_curve_comes_before_the_traces_times() -> None:
    curve = CostCurve(5, {1: 1.0, 2: 5.0, 3: 5.0}, 0.0)
    assert all(one.speedup < 1 and one.is_measured for one in what_if(RECORDING, [1, 2], curve))


def test_what_cannot_be_said_is_said() -> None:
    with pytest.raises(UsageError, match="have the same width"):
        what_if(Recording((0.5,), {2: 1.0}, 0.1, 1.0), [1], None)
    with pytest.raises(UsageError, match="drafted at most 2 tokens"):
        what_if(RECORDING, [3], None)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"type": "round"}\n{"type": "round"}'])
def test_files_that_are_no_traces(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError):
        read_trace(file)
    with pytest.raises(UsageError, match="has no round with draft tokens"):
        read_trace(written(tmp_path, HEADER, round_(0, 0), round_(0, 0)))


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    """Texts in a trace may hold every other separator that Python splits at."""
    spans = {"spans": [["a\u2028b\u2029c\x85d\x0be\x1cf", "draft"]]}
    plain = written(tmp_path, HEADER, round_(0, 0), round_(2, 1))
    expected = read_trace(plain)
    lines = [{**line, **spans} for line in (HEADER, round_(0, 0), round_(2, 1))]
    plain.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    assert read_trace(plain) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"drafted": "ab"},
        {"drafted": 2},
        {"drafted": None},
        {"n_accepted": 3},
        {"n_accepted": -1},
        {"n_accepted": "1"},
        {"n_accepted": True},
        {"own": "x"},
        {"draft_seconds": None},
        {"draft_seconds": [1]},
        {"draft_seconds": -1.0},
        {"verify_seconds": 0},
        {"verify_seconds": 1e30},
        {"verify_seconds": "1"},
        {"seconds": 1e-30},
        {"seconds": {}},
        {"confidences": 1},
        {"confidences": ["1"]},
        {"confidences": [1.5]},
        {"source": 1},
    ],
)
def test_a_round_that_no_run_had_is_refused_in_words(tmp_path: Path, change: dict[str, Any]) -> None:
    file = written(tmp_path, HEADER, round_(0, 0), round_(2, 1), {**round_(2, 1), **change})
    with pytest.raises(UsageError, match=r"is not a trace"):
        read_trace(file)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[" * 100_000, "Cannot read line 2 of .*: it is nested too deeply"),
        ('{"type": "round", "own": NaN}', "number out of range"),
        (f'{{"type": "round", "own": {10**30}}}', "number out of range"),
        ('{"type": "header", "settings": [1]}', "is not a trace"),
        ('{"type": "header", "settings": {"auto": "x"}}', "is not a trace"),
        ('{"type": ["round"]}', "is not a trace"),
        ("\x00", "Cannot read"),
    ],
)
def test_a_line_of_another_hand_is_refused_in_words(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(f"{json.dumps(HEADER)}\n{line}\n")
    with pytest.raises(UsageError, match=words):
        read_trace(file)


def sure(line: dict[str, Any], *confidences: float, source: str = "model") -> dict[str, Any]:
    return {**line, "confidences": confidences, "source": source}


CHOSEN = {**HEADER, "settings": {"auto": True}}


def test_tokens_that_auto_cut_count_by_what_their_confidence_was_worth(tmp_path: Path) -> None:
    """Of forty sure tokens thirty were right, and of the forty unsure ones behind them none was verified."""
    right = [sure(round_(1, 1), 0.95, 0.2)] * 30
    wrong = [sure(round_(1, 0), 0.95, 0.2)] * 10
    found = read_trace(written(tmp_path, CHOSEN, round_(0, 0), *right, *wrong, round_(0, 0)))
    assert found.chances == pytest.approx((0.75, 0.2))  # nothing is known of the unsure ones but how sure they were
    assert (found.estimated, found.undrafted) == pytest.approx((0.5, 1 / 41))
    assert found.draft == pytest.approx(0.05)  # of each token that was drafted

    verified = [sure(round_(1, 1), 0.25)] * 36  # now it is known that unsure ones are right
    found = read_trace(written(tmp_path, CHOSEN, round_(0, 0), *right, *wrong, *verified))
    assert found.chances[1] == pytest.approx((36 + 4 * 0.2) / (36 + 4))
    others = [{**one, "source": "ngram"} for one in verified]  # but not of those by another source
    found = read_trace(written(tmp_path, CHOSEN, round_(0, 0), *right, *wrong, *others))
    assert found.chances[1] == pytest.approx(0.2)


def test_a_run_with_chosen_lengths_is_replayed(tmp_path: Path, smollm2_q8_0: Path, smollm2_q4_0: Path) -> None:
    trace = tmp_path / "run.jsonl"
    pair = (smollm2_q8_0, "Count from 1 to 30.", "--draft", smollm2_q4_0, "--force", "--no-ngram")
    run = inside("run", *pair, "-n", 48, "--temp", 0, "--plain", "--jsonl", trace)
    assert run.code == 0, run.err
    rounds = [line for line in map(json.loads, trace.read_text().splitlines()) if line["type"] == "round"]
    drafted = [line for line in rounds if line["confidences"]]
    assert all(len(line["confidences"]) >= len(line["drafted"]) for line in drafted)
    assert all(0 <= confidence <= 1 for line in drafted for confidence in line["confidences"])
    if any(line["drafted"] for line in rounds[1:]):  # it is the clock that decides
        done = inside("replay", trace)
        assert done.code == 0, done.err
        assert "Recorded with -k auto: " in done.out


def test_a_trace_of_chosen_lengths_without_confidences_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="recorded with -k auto and has no draft confidences"):
        read_trace(written(tmp_path, CHOSEN, round_(0, 0), round_(2, 1)))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for file in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(UsageError, match="not a regular file"):
            read_trace(file)


def test_the_work_is_bounded(tmp_path: Path) -> None:
    """A draft of 20,000 tokens took minutes; the longest that is taken costs a second at most."""
    with pytest.raises(UsageError, match="has 20,000 tokens"):
        read_trace(written(tmp_path, HEADER, round_(0, 0), round_(20_000, 3)))
    file = written(tmp_path, HEADER, round_(0, 0), round_(1024, 1024), round_(3, 1))
    began = time.perf_counter()
    assert len(what_if(read_trace(file), range(1, 1025), None)) == 1024
    assert time.perf_counter() - began < 10


def test_lengths_that_are_none_are_left_out() -> None:
    assert [one.k for one in what_if(RECORDING, [-3, 1], None)] == [1]


def test_curves_of_benchmarks() -> None:
    document = {
        "cost_curve": [{"context": 9, "target_seconds_by_width": {"1": 1, "2": 1.5}, "draft_seconds_per_token": 0.2}]
    }
    assert curve_of(document) == CostCurve(9, {1: 1.0, 2: 1.5}, 0.2)
    curve = document["cost_curve"][0]
    changes: list[dict[str, Any]] = [
        {"target_seconds_by_width": {"1": 1e30, "2": 1.5}},
        {"target_seconds_by_width": {"1": 0, "2": 1.5}},
        {"target_seconds_by_width": {"0": 1, "2": 1.5}},
        {"target_seconds_by_width": {}},
        {"target_seconds_by_width": {"x": 1}},
        {"target_seconds_by_width": [1]},
        {"draft_seconds_per_token": -1},
        {"draft_seconds_per_token": "1"},
        {"context": [1]},
    ]
    wrong = [{"cost_curve": [{**curve, **change}]} for change in changes]
    for bad in ({}, {"cost_curve": []}, {"cost_curve": [{"context": 1}]}, {"cost_curve": {}}, *wrong):
        with pytest.raises(UsageError, match="no cost curve"):
            curve_of(bad)


def test_a_recorded_run_is_replayed_with_a_measured_curve(tmp_path: Path) -> None:
    models = Models(tmp_path)
    trace, curve = tmp_path / "run.jsonl", tmp_path / "bench.json"
    pair = (models.words, "--draft", models.draft, "--threads", 1)
    run = inside(
        "run", *pair[:1], "a b", *pair[1:], "-n", 40, "-k", 3, "--raw", "--plain", "--seed", 1, "--jsonl", trace
    )
    assert run.code == 0, run.err
    bench = ("--kinds", "code", "-k", "1,2,3", "--temp", "1", "-n", 16, "--repeats", 1, "--drafter", "model")
    assert inside("bench", *pair, *bench, "--json", curve).code == 0
    done = inside("replay", trace, "--curve", curve)
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()[1:4]] == ["1", "2", "3"]
    assert "Recorded: " in done.out
    document = json.loads(inside("replay", trace, "--curve", curve, "-k", "2", "--json").out)
    assert [one["k"] for one in document["what_if"]] == [2]
    assert "Cannot read" in inside("replay", tmp_path / "none").err
