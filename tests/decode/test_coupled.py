"""The rule: what the target chooses, and that a draft token stands exactly while the target chooses it too."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.noise import gumbel
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams, survivors
from specdec_cli.decode.types import Draft
from specdec_cli.errors import DecodeFailed
from tests.planted import coupled_rate, disturbed, log_chain, random_chain

GREEDY = SamplingParams(temperature=0)
FULL = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
SAMPLED = SamplingParams(temperature=0.7, top_k=4, top_p=0.97, min_p=0.02)

seeds = st.integers(0, 2**32 - 1)
some_params = st.sampled_from([GREEDY, FULL, SAMPLED, SamplingParams()])


def rule(
    params: SamplingParams = GREEDY, *, seed: int = 0, n_shared: int = 5, banned: Sequence[int] = ()
) -> SharedNoise:
    return SharedNoise(Law(params, n_shared=n_shared, banned=banned), seed=seed)


def verify(rows: NDArray[np.float32], drafted: Sequence[int], position: int, by: SharedNoise) -> tuple[int, int]:
    return by.verify(rows, Draft(tuple(drafted)), range(position))


def random_rows(seed: int, n_rows: int, n_vocab: int = 5) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(n_rows, n_vocab)).astype(np.float32)


def choices(rows: NDArray[np.float32], position: int, by: SharedNoise) -> list[int]:
    return [by.choose(row, range(position + i)) for i, row in enumerate(rows)]


# --- verification is equality ---------------------------------------------------------------------------


@given(seeds, some_params, st.integers(0, 6), st.integers(0, 6), st.integers(0, 4000))
def test_a_draft_stands_up_to_the_first_token_that_the_target_would_not_choose(
    seed: int, params: SamplingParams, n_drafted: int, n_right: int, position: int
) -> None:
    rows, by = random_rows(seed, n_drafted + 1), rule(params, seed=seed)
    chosen = choices(rows, position, by)
    drafted = chosen[:n_drafted]
    if n_right < n_drafted:
        drafted[n_right] = (drafted[n_right] + 1) % 5
    accepted = min(n_right, n_drafted)

    assert verify(rows, drafted, position, by) == (accepted, chosen[accepted])


@given(seeds, some_params, st.lists(st.integers(0, 4), max_size=6))
def test_what_is_emitted_is_what_the_target_chooses_whatever_was_drafted(
    seed: int, params: SamplingParams, drafted: list[int]
) -> None:
    rows, by = random_rows(seed, len(drafted) + 1), rule(params, seed=seed)

    n_accepted, own = verify(rows, drafted, 10, by)

    assert [*drafted[:n_accepted], own] == choices(rows, 10, by)[: n_accepted + 1]


@pytest.mark.parametrize("params", [GREEDY, FULL, SAMPLED], ids=str)
@pytest.mark.parametrize("n_right", [0, 1, 2])
def test_rows_after_the_first_mismatch_are_not_looked_at(n_right: int, params: SamplingParams) -> None:
    """They follow a prefix that the text does not have."""
    rows, by = random_rows(1, 4), rule(params)
    chosen = choices(rows, 7, by)
    drafted = [*chosen[:n_right], (chosen[n_right] + 1) % 5, 0, 0][:3]
    rows[n_right + 1 :] = np.nan

    assert verify(rows, drafted, 7, by) == (n_right, chosen[n_right])


def test_a_row_that_is_looked_at_must_be_numbers() -> None:
    rows = random_rows(1, 2)
    rows[0] = np.nan

    with pytest.raises(DecodeFailed):
        verify(rows, [0], 7, rule())


@pytest.mark.parametrize(("draft_token", "n_accepted"), [(0, 0), (1, 0), (2, 1)])
def test_greedy_accepts_the_likeliest_token_only(draft_token: int, n_accepted: int) -> None:
    """Probabilities 20, 30, 50 %: the rule for sampling would accept each of these drafts now and then."""
    rows = np.log(np.array([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]], np.float32))

    assert verify(rows, [draft_token], 3, rule(n_shared=3)) == (n_accepted, 0 if n_accepted else 2)


def test_the_noise_of_a_row_is_that_of_its_own_position() -> None:
    """Equal rows give different tokens, the same ones as when each position is asked alone."""
    rows, by = np.zeros((40, 5), np.float32), rule(FULL, seed=4)
    chosen = choices(rows, 100, by)

    assert len(set(chosen)) == 5
    assert verify(rows, chosen[:-1], 100, by) == (39, chosen[-1])
    assert verify(rows, chosen[:-1], 101, by)[0] < 39


# --- what may be chosen ---------------------------------------------------------------------------------

CUTS = [
    GREEDY,
    FULL,
    SamplingParams(temperature=2.0, top_k=3),
    SamplingParams(temperature=2.0, top_k=0, top_p=0.99, min_p=0.0),
    SamplingParams(temperature=2.0, top_k=0, top_p=1.0, min_p=0.001),
]


@pytest.mark.parametrize("params", CUTS, ids=str)
@pytest.mark.parametrize("padding", [1e6, float("inf"), float("nan")])
def test_padding_is_never_chosen_and_changes_nothing(padding: float, params: SamplingParams) -> None:
    """Rows of published models are longer than their vocabularies; what stands there means nothing."""
    rows = random_rows(2, 200, n_vocab=8)
    rows[:, 5:] = padding

    assert choices(rows, 0, rule(params)) == choices(rows[:, :5], 0, rule(params))


@pytest.mark.parametrize("params", CUTS, ids=str)
def test_banned_tokens_are_never_chosen(params: SamplingParams) -> None:
    rows = random_rows(3, 200)
    rows[:, [1, 3]] += 20
    before = rows.copy()

    chosen = choices(rows, 0, rule(params, banned=[1, 3]))

    assert set(chosen) <= {0, 2, 4}
    assert np.array_equal(rows, before), "the rows are the model's, not ours"


def test_a_ban_beyond_the_shared_tokens_is_no_error() -> None:
    assert rule(banned=[4, 5, 700]).choose(np.zeros(8, np.float32), ()) == 0


def test_of_equally_likely_tokens_greedy_takes_the_lowest_id() -> None:
    """Any other habit would let draft and target part where two tokens are exactly equal."""
    assert rule().choose(np.array([1, 3, 3, 3, 2], np.float32), range(9)) == 1


@pytest.mark.parametrize("params", [FULL, SamplingParams(min_p=0.0), dataclasses.replace(FULL, top_p=0.999)], ids=str)
def test_a_temperature_near_zero_is_nearly_greedy_and_has_no_nan(params: SamplingParams) -> None:
    rows = random_rows(4, 300)
    with np.errstate(all="raise"):
        cold = choices(rows, 0, rule(dataclasses.replace(params, temperature=1e-6)))

    assert cold == choices(rows, 0, rule(GREEDY))


def test_top_k_one_is_greedy_at_any_temperature() -> None:
    rows = random_rows(5, 300)

    assert choices(rows, 0, rule(SamplingParams(temperature=2.0, top_k=1))) == choices(rows, 0, rule(GREEDY))


# --- the law --------------------------------------------------------------------------------------------

ROW = np.log(np.array([0.36, 0.05, 0.28, 0.01, 0.30], np.float32))


def law(row: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """The probabilities of a sampler with these settings, shape [n_vocab]: cut, then temper, then normalise."""
    ids, logits = survivors(row, params)
    weights = np.exp(logits / params.temperature)
    full = np.zeros(len(row))
    full[ids] = weights / weights.sum()
    return full


@pytest.mark.parametrize(
    "params",
    [
        FULL,
        dataclasses.replace(FULL, temperature=0.7),
        dataclasses.replace(FULL, temperature=2.0),
        dataclasses.replace(FULL, temperature=0.7, top_k=3),
        dataclasses.replace(FULL, temperature=0.7, top_p=0.9),
        dataclasses.replace(FULL, temperature=0.7, min_p=0.1),
        SamplingParams(temperature=0.7, top_k=4, top_p=0.97, min_p=0.02),
    ],
    ids=str,
)
def test_choices_follow_the_law_of_the_target(params: SamplingParams) -> None:
    """20,000 positions: what came out is what a sampler with these settings gives."""
    by = rule(params, seed=20)
    expected = law(ROW, params)

    counts = np.bincount([by.choose(ROW, range(position)) for position in range(20_000)], minlength=5)

    assert not counts[expected == 0].any()
    possible = expected > 0
    assert stats.chisquare(counts[possible], 20_000 * expected[possible]).pvalue > 1e-4


def test_the_choice_is_the_largest_of_logit_over_temperature_plus_noise() -> None:
    ids = np.arange(5)
    for position in range(200):
        noisy = ROW / 0.7 + gumbel(6, position, ids)
        assert rule(dataclasses.replace(FULL, temperature=0.7), seed=6).choose(ROW, range(position)) == noisy.argmax()


@pytest.mark.parametrize("amount", [0.0, 0.5, 1.5])
def test_draft_and_target_agree_as_often_as_theory_says(amount: float) -> None:
    """The chance of equal choices under shared noise has a closed form; independent draws would agree far less."""
    n_positions, state = 10_000, 4
    p = random_chain(12, seed=1, sharpness=1.0)
    q = disturbed(p, amount, seed=2)
    target, draft = (log_chain(chain)[state].astype(np.float32) for chain in (p, q))
    by = rule(FULL, seed=3, n_shared=12)

    agreed = np.mean([by.choose(target, range(i)) == by.choose(draft, range(i)) for i in range(n_positions)])

    expected = coupled_rate(p, q)[state]
    assert agreed == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / n_positions) + 1e-12)
