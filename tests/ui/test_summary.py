"""The lines after an answer say what was counted."""

from dataclasses import replace

import pytest

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import FinishReason, Round
from specdec_cli.ui.summary import introduction, one_line, summary, warnings
from tests.ui_fakes import HEADER, a_round


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


def test_an_answer_at_a_glance() -> None:
    prompt, plain = a_round(0, drafted=0, seconds=0.25), a_round(0, drafted=0)
    stats = stats_of(prompt, plain, plain, *[a_round(3)] * 4, a_round(1))
    drawn = replace(HEADER, seed=7)

    glance = "21 tokens · 143 tok/s · ~2.3x plain · 87% accepted"
    assert one_line(HEADER, stats, "stop", utf8=True) == glance
    assert one_line(drawn, stats, "length", utf8=True) == f"{glance} · seed 7 · token limit reached"
    assert one_line(drawn, stats, "interrupt", utf8=False) == f"{glance.replace(' ·', ',')}, seed 7, interrupted"


def test_a_glance_leaves_out_what_is_not_known() -> None:
    assert one_line(HEADER, RunStats(), "interrupt", utf8=True) == "0 tokens · interrupted"
    assert one_line(HEADER, stats_of(a_round(0, drafted=0)), "stop", utf8=True) == "1 token"


def test_the_gain_is_told_as_an_estimate_also_where_it_is_a_loss() -> None:
    prompt, plain = a_round(0, drafted=0, seconds=0.25), a_round(0, drafted=0)

    assert (
        "2.40x plain decoding (120 ms instead of 288 ms), estimated from single-token passes, to within 20%"
        in summary(stats_of(prompt, plain, plain, *[a_round(3)] * 4), "stop")
    )
    assert [
        row
        for row in summary(stats_of(prompt, plain, plain, *[a_round(0, seconds=0.1)] * 9), "stop")
        if row.startswith("slower: 0.1")
    ]


def test_before_an_answer_stands_what_does_not_change() -> None:
    assert introduction(HEADER, "green") == [
        "big-Q4_K_M + small-Q8_0, context 4096, greedy",
        "layers on GPU: 29/29 target, 25/25 draft; memory: target 4.36 GiB + 224 MiB cache, "
        "draft 506 MiB + 48 MiB cache",
        "green text was drafted and accepted, plain text is the target's own",
    ]
    alone = introduction(replace(HEADER, draft=None, drafter="none"), "green")
    assert alone == [
        "big-Q4_K_M, context 4096, greedy",
        "layers on GPU: 29/29 target; memory: target 4.36 GiB + 224 MiB cache",
    ]
    assert introduction(replace(HEADER, draft=None, drafter="ngram"), "green")[0].startswith("big-Q4_K_M + ngram, ")
