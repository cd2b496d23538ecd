"""Warnings come when there is something to do about it, and not otherwise."""

import pytest

from specdec_cli.advice import cache_notes, pair_notes, run_notes, strict_notes
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import Round
from specdec_cli.models.memory import ModelFacts
from specdec_cli.settings import CACHE_TYPE_BYTES


def model(gigabytes: float, billions: float) -> ModelFacts:
    return ModelFacts(
        weights_bytes=int(gigabytes * 1e9),
        n_layers=1,
        n_vocab=1,
        n_embd=1,
        n_params=int(billions * 1e9),
        n_ctx_train=1,
    )


@pytest.mark.parametrize(
    ("target", "draft", "words"),
    [
        (model(5, 8), model(0.5, 1), None),
        (model(5, 8), model(1, 1.5), None),  # five times is enough
        (model(5, 8), model(1.1, 1.5), "only 4.5 times"),
        (model(1, 1.5), model(0.9, 1), "only 1.1 times"),
        (model(0.5, 0.5), model(4, 7), "swapped"),
        (model(8, 1), model(4, 7), "swapped"),  # by parameters, however they are packed
        # A model's own 4-bit copy has as many parameters, and an eighth of the bytes to read.
        (model(0.54, 0.135), model(0.07, 0.135), None),
        (model(0.54, 0.135), model(0.27, 0.135), "only 2.0 times"),
    ],
)
def test_a_pair_whose_sizes_cannot_pay_is_told_so(target: ModelFacts, draft: ModelFacts, words: str | None) -> None:
    notes = pair_notes(target, draft)

    assert len(notes) == (words is not None)
    assert words is None or words in notes[0]


@pytest.mark.parametrize("kind", CACHE_TYPE_BYTES)
def test_only_a_draft_cache_of_four_bits_is_warned_of(kind: str) -> None:
    assert bool(cache_notes(kind)) == (kind in ("q4_0", "q4_1", "iq4_nl"))


def a_round(drafted: int, *, draft_seconds: float = 0.01, verify_seconds: float = 0.1) -> Round:
    return Round(tuple(range(drafted)), 0, 1, k=4, draft_seconds=draft_seconds, verify_seconds=verify_seconds)


def stats_of(*rounds: Round) -> RunStats:
    stats = RunStats()
    for round_ in (*[Round((), 0, 1)] * 4, *rounds):
        stats.add(round_)
    return stats


FAST = a_round(4, draft_seconds=0.39)  # 0.0975 s a token against 0.1 s a pass
SLOW = a_round(4, draft_seconds=0.41)
EMPTY = a_round(0, draft_seconds=9.0)


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ([FAST] * 60, None),
        ([SLOW] * 16, "longer than a target pass"),
        ([SLOW] * 15, None),  # too early to say
        ([*[SLOW] * 30, FAST], None),
        ([FAST, *[SLOW] * 64], "longer than a target pass"),  # long ago
        ([*[SLOW] * 16, EMPTY], "longer than a target pass"),  # an empty draft says nothing about the time of a token
        ([EMPTY], "Nothing was drafted"),
        ([], None),
    ],
)
def test_a_draft_that_cannot_pay_is_told_so(rounds: list[Round], words: str | None) -> None:
    notes = run_notes(stats_of(*rounds), "model")

    assert len(notes) == (words is not None)
    assert words is None or words in notes[0]


@pytest.mark.parametrize("rounds", [[EMPTY] * 20, [SLOW] * 20])
def test_who_asked_for_no_draft_is_told_nothing(rounds: list[Round]) -> None:
    assert run_notes(stats_of(*rounds), "none") == []


@pytest.mark.parametrize(
    ("longest", "noise", "words"),
    [
        (3, 0.0, "limited to 3 tokens"),
        (None, 0.73, "0.73 in a logit"),
        (3, 0.73, "0.73 in a logit"),
        (None, 0.0, None),
        (0, 0.0, None),
    ],
)
def test_strict_tells_which_way_it_went(longest: int | None, noise: float, words: str | None) -> None:
    notes = strict_notes(longest, noise, 5)
    assert len(notes) == (words is not None)
    assert words is None or words in notes[0]
