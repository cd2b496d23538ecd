"""Predictions held against sums that were made another way."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.lengths.speedup_model import (
    CostCurve,
    best_k,
    break_even,
    conditional_acceptance,
    expected_tokens,
    perfect_speedup,
    position_counts,
    predicted_speedup,
)

FLAT = CostCurve(100, dict.fromkeys(range(1, 10), 1.0), 0.1)
"""A machine on which wide passes cost nothing more."""
STEEP = CostCurve(100, {w: float(w) for w in range(1, 10)}, 0.1)
"""One on which they save nothing."""
CHANCES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@pytest.mark.parametrize("k", range(9))
def test_tokens_of_a_geometric_draft(k: int) -> None:
    """Leviathan's (1 - a^(k+1)) / (1 - a)."""
    assert expected_tokens([0.7] * 8, k) == pytest.approx((1 - 0.7 ** (k + 1)) / 0.3)


@given(CHANCES)
def test_expectations_are_those_of_a_simulation_made_exact(chances: list[float]) -> None:
    """Every outcome of a round, with its probability."""
    total, left = 0.0, 1.0
    for i, chance in enumerate(chances):
        total += left * (1 - chance) * (i + 1)
        left *= chance
    assert expected_tokens(chances, len(chances)) == pytest.approx(total + left * (len(chances) + 1))


def test_predictions_are_what_a_simulated_machine_does() -> None:
    chances, k, dice = [0.8, 0.7, 0.5], 3, random.Random(0)
    curve = CostCurve(0, {1: 1.0, 4: 1.4}, 0.15)
    seconds, tokens = 0.0, 0
    for _ in range(200_000):
        kept = next((i for i, chance in enumerate(chances) if dice.random() >= chance), k)
        seconds += curve.target[4] + (k + (kept == k)) * curve.draft
        tokens += kept + 1
    assert predicted_speedup(curve, chances, k) == pytest.approx(tokens / seconds, rel=0.01)


@given(CHANCES)
def test_plain_decoding_is_one_and_no_draft_beats_a_perfect_one(chances: list[float]) -> None:
    assert predicted_speedup(FLAT, chances, 0) == 1
    for k in range(1, len(chances) + 1):
        assert predicted_speedup(FLAT, chances, k) <= perfect_speedup(FLAT, k) + 1e-9


@pytest.mark.parametrize("k", range(1, 9))
def test_at_break_even_a_draft_costs_what_it_brings(k: int) -> None:
    found = break_even(FLAT, k)
    assert found is not None
    assert predicted_speedup(FLAT, [found] * k, k) == pytest.approx(1, abs=1e-6)
    assert break_even(STEEP, k) is None


def test_the_best_length_follows_the_chances_and_the_costs() -> None:
    assert best_k(FLAT, [0.95] * 8) == 8
    assert best_k(FLAT, [0.9, 0.9, 0.0, 0.0]) == 2
    assert best_k(STEEP, [0.9] * 8) == 0
    tiles = CostCurve(0, {1: 1.0, 2: 1.7, 3: 2.3, 4: 1.8}, 0.0)
    assert best_k(tiles, [0.8] * 3) == 3, "beyond a dear width may lie a cheap one"
    assert best_k(CostCurve(0, {1: 1.0, 3: 1.0}, 0.0), [0.9] * 4) == 2, "only what was measured"


def test_chances_by_position_from_drafts() -> None:
    # Ten drafts of 3: 8 kept the first, 6 the second, 3 the third.
    drafts = [(3, 3)] * 3 + [(3, 2)] * 3 + [(3, 1)] * 2 + [(3, 0)] * 2
    assert position_counts(drafts) == ([10, 8, 6], [8, 6, 3])
    assert conditional_acceptance(*position_counts(drafts)) == [0.8, 0.75, 0.5]
    # Some ended early: of the 8 that kept their first token, only 4 had a second one.
    short = [(2, 2)] * 3 + [(2, 1)] + [(1, 1)] * 4 + [(2, 0), (1, 0)]
    assert position_counts(short) == ([10, 4], [8, 3])
    assert position_counts([]) == ([], [])
    assert conditional_acceptance(*position_counts([(0, 0), (2, 0)])) == [0.0, 0.0]
