"""Which tokens the cuts leave: against a slow reading of the rules, and by hand."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specdec_cli.decode.sampling import SamplingParams, argmax, log_total, n_within_top_p, probability, survivors, top_k
from specdec_cli.errors import DecodeFailed, UsageError

NO_CUT = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
INF = float("inf")

CUTS = {
    "none": NO_CUT,
    "top-k": dataclasses.replace(NO_CUT, top_k=3),
    "top-k of all": dataclasses.replace(NO_CUT, top_k=10_000),
    "top-p": dataclasses.replace(NO_CUT, top_p=0.9),
    "min-p": dataclasses.replace(NO_CUT, min_p=0.1),
    "top-k, top-p": dataclasses.replace(NO_CUT, top_k=3, top_p=0.9),
    "top-k, min-p": dataclasses.replace(NO_CUT, top_k=3, min_p=0.1),
    "top-p, min-p": dataclasses.replace(NO_CUT, top_p=0.9, min_p=0.1),
    "all": dataclasses.replace(NO_CUT, top_k=3, top_p=0.9, min_p=0.1),
    "defaults": SamplingParams(),
}


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def logs(*probabilities: float) -> NDArray[np.float32]:
    with np.errstate(divide="ignore"):
        return np.log(floats(*probabilities))


def kept(row: NDArray[np.float32], params: SamplingParams) -> list[int]:
    ids, logits = survivors(row, params)
    assert logits.tolist() == row[ids].tolist()
    return [int(i) for i in ids]


# --- against the rules, read slowly ---------------------------------------------------------------------


def slow_survivors(row: NDArray[np.float32], params: SamplingParams) -> tuple[list[int], list[float]]:
    """Sort everything, then top-k, top-p, min-p, each on what the one before left. Also the cumulated probabilities."""
    order = sorted((i for i in range(len(row)) if row[i] > -INF), key=lambda i: (-row[i], i))
    if params.top_k:
        order = order[: params.top_k]
    cumulated: list[float] = []
    if params.top_p < 1:
        weights = [math.exp(float(row[i]) - float(row[order[0]])) for i in order]
        total = math.fsum(weights)
        cumulated = [float(c) / total for c in np.cumsum(weights)]
        order = order[: 1 + sum(c < params.top_p for c in cumulated)]
    if params.min_p > 0:
        order = [i for i in order if row[i] >= row[order[0]] + math.log(params.min_p)]
    return order, cumulated


@st.composite
def rows(draw: st.DrawFn) -> NDArray[np.float32]:
    """1 to 5000 logits: flat or steep, with ties and without, some of them at minus infinity."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = int(rng.integers(1, draw(st.sampled_from([5, 70, 600, 5000])), endpoint=True))
    row = rng.normal(size=n) * draw(st.sampled_from([0.0, 0.3, 3.0, 12.0]))
    if draw(st.booleans()):
        row = np.round(row * 2) / 2
    row[rng.random(n) < draw(st.sampled_from([0.0, 0.0, 0.5, 0.999]))] = -INF
    row[rng.integers(n)] = draw(st.sampled_from([0.0, 5.0, 30.0]))
    return row.astype(np.float32)


@settings(max_examples=400, deadline=None)
@given(
    rows(),
    st.sampled_from([0, 1, 2, 7, 40, 256, 300, 4999, 10_000]),
    st.sampled_from([1e-9, 0.1, 0.5, 0.95, 0.999999, 1.0]),
    st.sampled_from([0.0, 1e-9, 0.05, 0.5, 1.0]),
)
def test_survivors_are_those_of_the_rules(row: NDArray[np.float32], k: int, top_p: float, min_p: float) -> None:
    params = SamplingParams(temperature=1.0, top_k=k, top_p=top_p, min_p=min_p)
    expected, cumulated = slow_survivors(row, params)
    assume(all(abs(c - top_p) > 1e-6 for c in cumulated))  # a sum on the border may fall on either side

    got = kept(row, params)

    in_order_of_id = not 0 < k < len(row) and top_p == 1
    assert got == (sorted(expected) if in_order_of_id else expected)


@pytest.mark.parametrize("top_p", [0.0999, 0.5001, 0.9501, 0.9999])
def test_top_p_of_a_flat_row_takes_as_many_tokens_as_it_needs(top_p: float) -> None:
    """Only a few hundred tokens are looked at first; when they do not make up top-p, more are."""
    for n in (256, 257, 300, 500, 2047, 2048, 2049, 5000):
        row = np.zeros(n, np.float32)

        assert kept(row, dataclasses.replace(NO_CUT, top_p=top_p)) == list(range(math.ceil(n * top_p)))


@settings(max_examples=200, deadline=None)
@given(rows(), st.integers(1, 5000))
def test_top_k_is_the_head_of_the_sorted_row(row: NDArray[np.float32], k: int) -> None:
    by_logit_then_id = np.lexsort((np.arange(len(row)), -row))
    finite = by_logit_then_id[row[by_logit_then_id] > -INF]

    assert top_k(row, min(k, len(row))).tolist() == finite[:k].tolist()


@settings(max_examples=100, deadline=None)
@given(rows())
def test_the_rows_themselves_stay_as_they_are(row: NDArray[np.float32]) -> None:
    before = row.copy()
    row.flags.writeable = False

    for params in CUTS.values():
        survivors(row, params)

    assert np.array_equal(row, before)


# --- by hand --------------------------------------------------------------------------------------------

FIVE = logs(0.1, 0.4, 0.05, 0.25, 0.2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 3, 4]),
        ({"top_k": 4}, [1, 3, 4, 0]),
        ({"top_k": 5}, [0, 1, 2, 3, 4]),
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        # The token that reaches top-p is kept: 0.4, 0.65, 0.85, 0.95, 1.
        ({"top_p": 1e-6}, [1]),
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.41}, [1, 3]),
        ({"top_p": 0.64}, [1, 3]),
        ({"top_p": 0.66}, [1, 3, 4]),
        ({"top_p": 0.96}, [1, 3, 4, 0, 2]),
        ({"min_p": 1.0}, [1]),
        ({"min_p": 0.49}, [1, 3, 4]),
        ({"min_p": 0.51}, [1, 3]),
        ({"min_p": 1e-9}, [0, 1, 2, 3, 4]),
        # Top-p after top-k counts in what top-k left (0.4 / 0.85 = 0.47, 0.76, 1), not in the whole row.
        ({"top_k": 3, "top_p": 0.46}, [1]),
        ({"top_k": 3, "top_p": 0.75}, [1, 3]),
        ({"top_k": 3, "top_p": 0.77}, [1, 3, 4]),
        # Min-p compares with the likeliest whatever was cut before.
        ({"top_k": 4, "min_p": 0.3}, [1, 3, 4]),
        ({"top_p": 0.66, "min_p": 0.6}, [1, 3]),
        ({"top_k": 4, "top_p": 0.5, "min_p": 0.3}, [1, 3]),
        # Temperature comes last and cuts nothing.
        ({"temperature": 0.01, "top_p": 0.66}, [1, 3, 4]),
        ({"temperature": 100.0, "min_p": 0.51}, [1, 3]),
    ],
)
def test_golden_table(changes: dict[str, float], expected: list[int]) -> None:
    assert kept(FIVE, dataclasses.replace(NO_CUT, **changes)) == expected


@pytest.mark.parametrize(
    ("row", "changes", "expected"),
    [
        (floats(2, 7, 7, 7, 1), {"top_k": 2}, [1, 2]),
        (floats(7, 7, 7, 7, 7), {"top_k": 1}, [0]),
        (floats(1, 2, 2, 3, 3), {"top_k": 3}, [3, 4, 1]),
        (floats(0, 0, 0, 0), {"top_p": 0.3}, [0, 1]),
        (floats(0, 0, 0, 0), {"min_p": 1.0}, [0, 1, 2, 3]),
        (np.zeros(5000, np.float32), {"top_k": 3}, [0, 1, 2]),
        (np.zeros(5000, np.float32), {"top_p": 0.0005}, [0, 1, 2]),
        (np.repeat(floats(0, 9, 0), [2000, 2, 998]), {"top_k": 3}, [2000, 2001, 0]),
        (np.tile(floats(-0.0, 0.0), 500), {"top_k": 3}, [0, 1, 2]),
    ],
)
def test_of_equal_tokens_the_lowest_ids_stay(
    row: NDArray[np.float32], changes: dict[str, float], expected: list[int]
) -> None:
    assert kept(row, dataclasses.replace(NO_CUT, **changes)) == expected


@pytest.mark.parametrize("n", [2, 50, 5000])
def test_of_equal_tokens_the_greedy_choice_is_the_lowest_id(n: int) -> None:
    row = np.full(n, -1.0, np.float32)
    assert argmax(row) == 0
    row[[n // 2, n - 1]] = 3.0
    assert argmax(row) == n // 2 == top_k(row, 1)[0]


@pytest.mark.parametrize("n", [1, 5, 5000])
def test_impossible_tokens_never_survive(n: int) -> None:
    """Minus infinity is how a ban is said; the other tokens do not suffer from it."""
    row = np.full(n, -INF, np.float32)
    row[n // 2] = -4.0

    assert [name for name, cut in CUTS.items() if kept(row, cut) != [n // 2]] == []
    assert argmax(row) == n // 2


def spoil_all(row: NDArray[np.float32], value: float) -> None:
    row[:] = value


def spoil_one(at: float) -> Callable[[NDArray[np.float32], float], None]:
    def spoil(row: NDArray[np.float32], value: float) -> None:
        row[int(at * (len(row) - 1))] = value

    return spoil


@pytest.mark.parametrize(
    ("spoil", "value"),
    [
        (spoil_all, np.nan),
        (spoil_one(0), np.nan),
        (spoil_one(0.5), np.nan),
        (spoil_one(1), np.nan),
        (spoil_one(0.5), INF),
        (spoil_all, INF),
        (spoil_all, -INF),
    ],
    ids=["all NaN", "first NaN", "one NaN", "last NaN", "one infinite", "all infinite", "nothing possible"],
)
def test_a_row_that_is_not_numbers_is_an_error_and_not_a_token(
    spoil: Callable[[NDArray[np.float32], float], None], value: float
) -> None:
    for n in (1, 5, 5000):
        row = np.random.default_rng(n).normal(size=n).astype(np.float32)
        spoil(row, value)

        with pytest.raises(DecodeFailed):
            argmax(row)
        assert [name for name, cut in CUTS.items() if not is_refused(row, cut)] == [], f"{n} tokens"


def is_refused(row: NDArray[np.float32], cut: SamplingParams) -> bool:
    try:
        survivors(row, cut)
    except DecodeFailed:
        return True
    return False


# --- the numbers beneath --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("top_p", "expected"), [(1e-9, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.99, 4), (1.0, 4)]
)
def test_the_token_that_reaches_top_p_is_counted(top_p: float, expected: int) -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125]))

    assert n_within_top_p(logits, 0.0, top_p) == expected


def test_probabilities_are_those_of_the_whole_row() -> None:
    assert [probability(FIVE + 100, t) for t in range(5)] == pytest.approx([0.1, 0.4, 0.05, 0.25, 0.2], rel=1e-4)
    assert probability(floats(3, -INF), 1) == 0
    assert probability(floats(7), 0) == 1
    # Logits as large as these overflow a bare exp.
    assert probability(floats(1000, 1000), 0) == pytest.approx(0.5)
    assert probability(floats(-1000, -1001), 0) == pytest.approx(1 / (1 + math.exp(-1)))


@settings(max_examples=50, deadline=None)
@given(rows())
def test_log_total_turns_logits_into_probabilities(row: NDArray[np.float32]) -> None:
    exact = math.log(math.fsum(math.exp(float(x) - float(row.max())) for x in row)) + float(row.max())

    assert log_total(row) == pytest.approx(exact, abs=1e-5)


# --- settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": -0.1},
        {"temperature": INF},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": -0.5},
        {"top_p": 1.01},
        {"top_p": math.nan},
        {"min_p": -0.01},
        {"min_p": 1.01},
        {"min_p": math.nan},
    ],
    ids=str,
)
def test_settings_without_a_meaning_are_refused(changes: dict[str, float]) -> None:
    (name, value) = next(iter(changes.items()))

    with pytest.raises(UsageError, match=name.replace("_", "-")) as caught:
        SamplingParams(**changes)
    assert str(value) in str(caught.value)
    assert caught.value.hint


def test_the_ends_of_all_ranges_are_allowed() -> None:
    for changes in ({"temperature": 0.0}, {"top_k": 0}, {"top_p": 1.0}, {"top_p": 1e-9}, {"min_p": 0.0, "top_k": 1}):
        SamplingParams(**changes)
    SamplingParams(min_p=1.0)


def test_only_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams(temperature=1e-6).is_greedy
    assert not SamplingParams(temperature=1, top_k=1).is_greedy


def test_settings_in_words() -> None:
    assert str(SamplingParams(temperature=0)) == "greedy"
    assert str(SamplingParams()) == "temperature 0.8, top-k 40, top-p 0.95, min-p 0.05"
