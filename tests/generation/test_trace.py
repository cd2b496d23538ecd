"""A trace can be read line by line while the run goes on, and holds enough to count everything again."""

import io
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import Evaluation, RunStats
from specdec_cli.decode.text_stream import Span
from specdec_cli.decode.types import Round
from specdec_cli.generation.trace import Trace, stats_document
from specdec_cli.ui.view import Header, ModelLine
from tests.fakes import PerfectDrafter, TableLM

HEADER = Header(
    target=ModelLine("big.gguf", 5_000, 100, (0, 33)),
    draft=ModelLine("small.gguf", 500, 10, (0, 9)),
    drafter="model",
    sampling="greedy",
    n_ctx=4096,
    prompt_tokens=3,
)
ROUND = Round((5, 6), 1, 7, k=2, draft_seconds=0.25, verify_seconds=0.5, seconds=1.0)


def lines_of(file: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.getvalue().splitlines()]


def test_lines_by_hand() -> None:
    file, stats = io.StringIO(), RunStats()
    trace = Trace(file)
    stats.add(ROUND)
    trace.start(HEADER, (1, 2, 3), {"k": 2})
    trace.round(ROUND, [Span("né", "draft"), Span("\n🦙", "target")])
    trace.end(stats, "stop", [Span("<|", "target")])

    header, round_, end = lines_of(file)
    assert header["type"] == "header"
    assert Header.from_fields(header["header"]) == HEADER
    assert (header["prompt_ids"], header["settings"]) == ([1, 2, 3], {"k": 2})
    assert round_ == {
        "type": "round",
        "drafted": [5, 6],
        "n_accepted": 1,
        "own": 7,
        "k": 2,
        "draft_seconds": 0.25,
        "verify_seconds": 0.5,
        "seconds": 1.0,
        "finish": None,
        "off_reason": None,
        "source": "",
        "n_beside": 0,
        "logprobs": [],
        "confidences": [],
        "n_forced": 0,
        "n_forced_first": 0,
        "spans": [["né", "draft"], ["\n🦙", "target"]],
    }
    assert end == {
        "type": "end",
        "finish_reason": "stop",
        "spans": [["<|", "target"]],
        "stats": stats_document(stats),
    }


def test_text_is_readable_in_the_file() -> None:
    file = io.StringIO()
    Trace(file).round(ROUND, [Span("né🦙", "draft")])

    assert "né🦙" in file.getvalue()


def test_every_line_is_there_as_soon_as_it_happened(tmp_path: Path) -> None:
    """A run that is killed leaves the trace of what it did."""
    path = tmp_path / "trace.jsonl"
    with path.open("w", encoding="utf-8") as file:
        trace = Trace(file)
        trace.start(HEADER, (1,), {})
        for n in range(1, 4):
            trace.round(ROUND, [])
            lines = path.read_text(encoding="utf-8").splitlines()
            assert len(lines) == 1 + n
            assert json.loads(lines[-1])["type"] == "round"


def test_without_a_file_nothing_happens() -> None:
    trace = Trace(None)
    trace.start(HEADER, (1,), {"a path that JSON cannot hold": Path("x")})
    trace.round(ROUND, [])
    trace.end(RunStats(), "length", [])


def test_statistics_made_again_from_a_trace_are_the_same() -> None:
    target, file, stats = TableLM(20, seed=0), io.StringIO(), RunStats()
    trace = Trace(file)
    rule = SharedNoise(Law(SamplingParams(temperature=0), n_shared=20), seed=0)
    rounds = generate(
        target,
        PerfectDrafter(TableLM(20, seed=0)),
        FixedLength(3),
        rule,
        [1],
        max_tokens=30,
        ends=lambda _: False,
        clock=iter(range(1000)).__next__,
    )
    for round_ in rounds:
        stats.add(round_)
        trace.round(round_, [])
    trace.end(stats, "length", [])

    *events, end = lines_of(file)
    names = [f.name for f in fields(Round)]
    again = RunStats()
    for event in events:
        again.add(Round(**{**{name: event[name] for name in names}, "drafted": tuple(event["drafted"])}))
    assert json.loads(json.dumps(stats_document(again))) == end["stats"]
    assert again.drafted == again.accepted > 0


@pytest.mark.parametrize(
    "key",
    ["acceptance", "tokens_per_pass", "tokens_per_second", "ttft_seconds", "plain_tokens_per_second_estimate"],
)
def test_what_is_not_known_is_null(key: str) -> None:
    """Not 0, and not a number that JSON does not have."""
    assert stats_document(RunStats())[key] is None


def test_statistics_hold_what_was_counted() -> None:
    stats = RunStats()
    for round_ in (Round((), 0, 1, seconds=2.0), ROUND, Round((), 0, 2, seconds=0.5, off_reason="off")):
        stats.add(round_)

    assert stats_document(stats) == {
        "tokens": 4,
        "passes": 3,
        "drafted": 2,
        "accepted": 1,
        "acceptance": 0.5,
        "tokens_per_pass": 4 / 3,
        "drafted_per_position": [1, 1],
        "accepted_per_position": [1, 0],
        "sources": {},
        "decode_seconds": 1.5,
        "tokens_per_second": 2.0,
        "plain_tokens_per_second_estimate": 2.0,
        "speedup_estimate": 1.0,
        "speedup_estimate_spread": pytest.approx(0.2, rel=0.5),
        "ttft_seconds": 2.0,
        "draft_seconds": 0.25,
        "verify_seconds": 0.5,
        "other_seconds": 0.75,
        "speculation_off_reason": "off",
    }


def test_what_each_model_read_stands_beside_it() -> None:
    stats = RunStats(target=Evaluation(100, 60, 1.5))
    document = stats_document(stats)

    assert document["target_tokens_evaluated"] == 100
    assert (document["target_read_tokens"], document["target_read_seconds"]) == (60, 1.5)
    assert not [key for key in document if key.startswith("draft_") and key != "draft_seconds"]
