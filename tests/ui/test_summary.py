"""The lines after an answer say what was counted."""

from dataclasses import replace

import pytest

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import FinishReason, Round
from specdec_cli.ui.summary import summary, warnings
from tests.ui_fakes import a_round


def stats_of(*rounds: Round) -> RunStats:
    stats = RunStats()
    for round_ in rounds:
        stats.add(round_)
    return stats


def test_all_figures_of_a_run() -> None:
    prompt = a_round(0, drafted=0, seconds=0.25)
    text = "\n".join(summary(stats_of(prompt, a_round(3), a_round(1), a_round(0)), "stop"))

    assert text == (
        "stopped: end of answer\n"
        "8 tokens, 116.7 tokens/s, first token after 250 ms\n"
        "4 rounds, 2.00 tokens per pass, drafted 9, accepted 4, acceptance 44%\n"
        "draft 12.0 ms, verify 42.0 ms, other 6.0 ms"
    )


def test_several_sources_are_told_apart() -> None:
    rounds = [replace(a_round(n), source=source) for n, source in ((3, "ngram"), (1, "model"), (0, "model"))]

    told = "accepted by source: model 1 of 6 (17%), ngram 3 of 3 (100%)"
    assert told in summary(stats_of(a_round(0, drafted=0), *rounds), "stop")
    assert not [row for row in summary(stats_of(rounds[0]), "stop") if "source" in row]


def test_drafted_is_counted_not_derived_from_k() -> None:
    short = Round(drafted=(1,), n_accepted=1, own=2, k=8, seconds=0.01)

    assert "drafted 1, accepted 1, acceptance 100%" in summary(stats_of(a_round(0, drafted=0), short), "stop")[2]


def test_without_a_draft_there_is_no_acceptance() -> None:
    lines = summary(stats_of(a_round(0, drafted=0)), "stop")

    assert lines[1] == "1 token, - tokens/s, first token after 20.0 ms"
    assert lines[2] == "1 round, 1.00 tokens per pass, drafted 0, accepted 0, acceptance -"


def test_a_run_that_never_began_divides_by_nothing() -> None:
    assert summary(RunStats(), "interrupt")[:2] == [
        "stopped: interrupted",
        "0 tokens, - tokens/s, first token after -",
    ]


@pytest.mark.parametrize(
    ("reason", "words"),
    [("context", "context full"), ("interrupt", "interrupted"), ("length", "token limit reached")],
)
def test_the_reason_is_said_in_words(reason: FinishReason, words: str) -> None:
    assert summary(stats_of(a_round()), reason)[0] == f"stopped: {words}"


def test_off_is_said_with_its_reason() -> None:
    off = Round(drafted=(), n_accepted=0, own=1, off_reason="vocabularies differ")

    assert "speculation OFF (vocabularies differ)" in warnings(stats_of(a_round(2), off))
    assert warnings(stats_of(a_round(2))) == []
