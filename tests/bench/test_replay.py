"""What-if from a trace: chances and times as recorded, other lengths as arithmetic has them."""

import json
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
    with pytest.raises(UsageError, match="passes of one width only"):
        what_if(Recording((0.5,), {2: 1.0}, 0.1, 1.0), [1], None)
    with pytest.raises(UsageError, match="drafted 2 tokens at most"):
        what_if(RECORDING, [3], None)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"type": "round"}\n{"type": "round"}'])
def test_files_that_are_no_traces(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError):
        read_trace(file)
    with pytest.raises(UsageError, match="has no round with a draft"):
        read_trace(written(tmp_path, HEADER, round_(0, 0), round_(0, 0)))


def test_curves_of_benchmarks() -> None:
    document = {
        "cost_curve": [{"context": 9, "target_seconds_by_width": {"1": 1, "2": 1.5}, "draft_seconds_per_token": 0.2}]
    }
    assert curve_of(document) == CostCurve(9, {1: 1.0, 2: 1.5}, 0.2)
    for bad in ({}, {"cost_curve": []}, {"cost_curve": [{"context": 1}]}):
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
    assert "cannot be read" in inside("replay", tmp_path / "none").err
