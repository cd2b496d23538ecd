"""Counts by hand: what is drafted, what is accepted, and which clock a speed is made from."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.decode.stats import RECENT_ROUNDS, TREND_PARTS, Evaluation, RunStats, Trend
from specdec_cli.decode.types import Round


def a_round(drafted: int = 0, accepted: int = 0, *, own: int | None = 9, k: int = 3, seconds: float = 0.5) -> Round:
    return Round(
        drafted=tuple(range(drafted)),
        n_accepted=accepted,
        own=own,
        k=k,
        draft_seconds=0.0625,
        verify_seconds=0.25,
        seconds=seconds,
    )


def stats_of(*rounds: Round) -> RunStats:
    stats = RunStats()
    for round_ in rounds:
        stats.add(round_)
    return stats


RUN = (
    a_round(k=0, seconds=4.0),  # the prompt
    a_round(3, 3),  # three and a bonus
    a_round(3, 1),  # one and a correction
    a_round(2, 0),  # a shorter draft, all rejected
    a_round(0),  # no draft this time
    a_round(3, 2, own=None),  # the text ends on the second draft token
)


def test_a_run_by_hand() -> None:
    stats = stats_of(*RUN)

    assert (stats.passes, stats.tokens) == (6, 1 + 4 + 2 + 1 + 1 + 2)
    assert (stats.drafted, stats.accepted) == (11, 6)
    assert stats.drafted_per_position == [4, 4, 3]
    assert stats.accepted_per_position == [3, 2, 1]
    assert stats.acceptance == 6 / 11, "the bonus is nobody's guess"
    assert stats.acceptance_per_position == [3 / 4, 2 / 4, 1 / 3]
    assert stats.tokens_per_pass == 11 / 6
    assert stats.k == 3


def test_the_speed_leaves_out_the_prompt_and_the_first_token() -> None:
    stats = stats_of(*RUN)

    assert stats.ttft_seconds == 4.0
    assert stats.decode_seconds == 5 * 0.5
    assert stats.tokens_per_second == 10 / 2.5
    assert stats.draft_seconds == 5 * 0.0625
    assert stats.verify_seconds == 5 * 0.25
    assert stats.other_seconds == 5 * (0.5 - 0.0625 - 0.25)


def test_nothing_yet() -> None:
    stats = RunStats()

    assert (stats.tokens, stats.passes, stats.drafted, stats.accepted) == (0, 0, 0, 0)
    assert stats.acceptance is None
    assert stats.tokens_per_pass is None
    assert stats.tokens_per_second is None
    assert stats.ttft_seconds is None
    assert stats.acceptance_per_position == []
    assert stats.other_seconds == 0


def test_the_first_round_alone_has_no_speed() -> None:
    stats = stats_of(a_round(k=0, seconds=4.0))

    assert (stats.tokens, stats.passes, stats.tokens_per_pass, stats.ttft_seconds) == (1, 1, 1.0, 4.0)
    assert stats.tokens_per_second is None


def test_without_a_draft_there_is_no_acceptance() -> None:
    """Null, not 0 % and not 100 %."""
    stats = stats_of(*[a_round(k=0)] * 4)

    assert (stats.acceptance, stats.tokens_per_pass) == (None, 1.0)


def test_all_rejected_is_an_acceptance_of_zero() -> None:
    stats = stats_of(a_round(k=0), a_round(2, 0))

    assert stats.acceptance == 0.0
    assert stats.acceptance_per_position == [0.0, 0.0]


def test_positions_count_the_drafts_that_had_them() -> None:
    """A long draft in the middle does not lower the figures of the places that the others lack."""
    stats = stats_of(a_round(k=0), a_round(1, 1), a_round(4, 4), a_round(2, 1))

    assert stats.drafted_per_position == [3, 2, 1, 1]
    assert stats.acceptance_per_position == [1.0, 0.5, 1.0, 1.0]


def test_sources_are_counted_apart() -> None:
    rounds = [(3, 3, "model"), (3, 1, "ngram"), (2, 0, "model"), (1, 1, ""), (0, 0, ""), (4, 4, "ngram")]
    stats = stats_of(*(replace(a_round(drafted, accepted), source=source) for drafted, accepted, source in rounds))

    assert stats.drafted_by_source == {"model": 5, "ngram": 7}
    assert stats.accepted_by_source == {"model": 3, "ngram": 5}
    assert list(stats.acceptance_by_source.items()) == [("ngram", 5 / 7), ("model", 3 / 5)]
    assert (stats.drafted, stats.accepted) == (13, 9), "what has no name is in the sums"


def test_only_the_last_rounds_are_kept_whole() -> None:
    stats = stats_of(a_round(k=0, seconds=100.0), *[a_round(seconds=1.0)] * (RECENT_ROUNDS + 10))

    assert len(stats.recent) == RECENT_ROUNDS
    assert stats.tokens_per_second == 1.0


@pytest.mark.parametrize("n", [0, 1, TREND_PARTS - 1, TREND_PARTS, 3 * TREND_PARTS, 1000])
def test_the_trend_holds_the_whole_answer_in_equal_parts(n: int) -> None:
    trend = Trend()
    for i in range(n):
        trend.add(a_round(4, 4 if 2 * i < n else 1))

    assert len(trend.parts) <= min(n, TREND_PARTS)
    assert sum(drafted for _, drafted in trend.parts) == 4 * n
    assert len({drafted for _, drafted in trend.parts[:-1]}) <= 1
    if n > TREND_PARTS:
        assert (trend.shares[0], trend.shares[-1]) == (1.0, 0.25)


def test_a_part_without_a_draft_has_no_share() -> None:
    trend = Trend()
    for round_ in (a_round(2, 1), a_round(0), a_round(2, 2)):
        trend.add(round_)

    assert trend.shares == [0.5, None, 1.0]


def test_the_last_word_on_k_and_on_being_off() -> None:
    stats = stats_of(a_round(k=0), a_round(3, 0), Round((), 0, 1, k=0, off_reason="no luck"))

    assert (stats.k, stats.off_reason) == (0, "no luck")


def test_an_answer_counts_what_a_model_evaluated_since_it_began() -> None:
    """Sessions live longer than answers."""
    assert Evaluation(90, 60, 2.5).since(Evaluation(50, 40, 2.0)) == Evaluation(40, 20, 0.5)


@st.composite
def any_rounds(draw: st.DrawFn) -> Round:
    drafted = draw(st.integers(0, 5))
    accepted = draw(st.integers(0, drafted))
    ends_in_draft = accepted > 0 and draw(st.booleans())
    return a_round(drafted, accepted, own=None if ends_in_draft else 9)


@given(st.lists(any_rounds(), max_size=30))
def test_sums_agree_with_each_other(rounds: list[Round]) -> None:
    stats = stats_of(*rounds)

    assert sum(stats.drafted_per_position) == stats.drafted
    assert sum(stats.accepted_per_position) == stats.accepted <= stats.drafted
    assert len(stats.drafted_per_position) == len(stats.accepted_per_position)
    assert stats.accepted_per_position == sorted(stats.accepted_per_position, reverse=True)
    assert stats.tokens == stats.accepted + sum(r.own is not None for r in rounds)
