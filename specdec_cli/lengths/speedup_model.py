"""What drafts are worth: chances of acceptance and measured costs put together. Pure arithmetic.

Whoever chooses, predicts or compares draft lengths asks here. With t(w) the seconds of a target pass of w tokens, d
those of a draft token, and a_i the chance that draft token i is accepted when all before it were, a round of k draft
tokens emits E(k) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_k tokens on average. After Leviathan, Kalman, Matias, "Fast
inference from transformers via speculative decoding", arXiv 2211.17192, with acceptance by position and measured costs
in place of constants. It answers two questions:

- What is a fixed length worth over a whole text? A round costs t(k + 1) + (k + A) d, where A = a_1 ... a_k: after a
  full match the draft model has to read its own last token as well. The speedup is E(k) t(1) / (t(k + 1) + (k + A) d).
- How far should this draft go? More tokens are worth what they add to E - L t, where L [tokens/s] is what time brings
  elsewhere (the renewal reward theorem; Dinkelbach, "On nonlinear fractional programming", 1967).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul

PERFECT = 1.0
UNLIKELY = 0.02
"""Draft tokens that are reached with less than this chance change no decision."""
LEAST_PASS_SECONDS, MOST_SECONDS = 1e-6, 3600.0
"""No pass takes less, and neither a pass nor a draft takes longer: figures beyond were never measured."""
_BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a target pass by width, and of a draft token, at one length of context in tokens."""

    context: int
    target: Mapping[int, float]
    draft: float

    def round_seconds(self, k: int, chance_of_all: float) -> float:
        """One round with k drafted tokens."""
        return self.target[k + 1] + (k + chance_of_all * (k > 0)) * self.draft


def expected_tokens(acceptance: Sequence[float], k: int) -> float:
    """Tokens that a round of k drafted ones emits on average; `acceptance` [>= k] by position, given all before."""
    total: float = sum(accumulate(acceptance[:k], mul))
    return 1.0 + total


def predicted_speedup(curve: CostCurve, acceptance: Sequence[float], k: int) -> float:
    """Speed over plain decoding; 1 for k = 0."""
    chance_of_all = prod(acceptance[:k])
    return expected_tokens(acceptance, k) * curve.target[1] / curve.round_seconds(k, chance_of_all)


def perfect_speedup(curve: CostCurve, k: int) -> float:
    """The bound: a draft that is always right."""
    return predicted_speedup(curve, [PERFECT] * k, k)


def break_even(curve: CostCurve, k: int) -> float | None:
    """The acceptance, equal at every position, at which drafting k tokens costs what it brings; None if none does."""
    return acceptance_that_pays(lambda acceptance: predicted_speedup(curve, [acceptance] * k, k))


def acceptance_that_pays(speedup: Callable[[float], float]) -> float | None:
    """The least acceptance, from 0 to 1, with a `speedup` of 1, which grows with it; None if even 1 has less."""
    if speedup(PERFECT) < 1:
        return None
    low, high = 0.0, PERFECT
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if speedup(middle) < 1 else (low, middle)
    return high


def best_k(curve: CostCurve, acceptance: Sequence[float]) -> int:
    """The draft length, of those whose width was measured, with the best predicted speed; 0 is plain decoding."""
    lengths = [k for k in range(len(acceptance) + 1) if k + 1 in curve.target]
    return max(lengths, key=lambda k: predicted_speedup(curve, acceptance, k))


def rounds_speedup(curve: CostCurve, rounds: Sequence[tuple[int, int, int]], drafting: float | None = None) -> float:
    """Speed over plain decoding of rounds that took place, from what their passes cost.

    `rounds` are tokens (drafted, accepted, emitted), at least one; `drafting` are the seconds of drafting in all of
    them, by default what the draft model's tokens cost: after a full match it reads its own last one, too.
    """
    if drafting is None:
        drafting = curve.draft * sum(drafted + (accepted == drafted > 0) for drafted, accepted, _ in rounds)
    seconds = sum(curve.target[drafted + 1] for drafted, _, _ in rounds) + drafting
    return sum(emitted for _, _, emitted in rounds) * curve.target[1] / seconds


def best_rate(chance: Callable[[int], float], passes: Sequence[float], each: float, longest: int) -> float:
    """Tokens per second with the best of the fixed lengths from 1 to `longest`; 0 if there is none.

    `chance` is the acceptance by position from 0, `passes` [>= longest + 2] are seconds by width, `each` those of a
    draft token.
    """
    best, reached, tokens = 0.0, 1.0, 1.0
    for place in range(longest):
        reached *= chance(place)
        tokens += reached
        rate = tokens / (passes[place + 2] + (place + 1) * each)
        if rate > best:
            best = rate
        if reached < UNLIKELY:
            break
    return best


def best_gain(
    chance: Callable[[int], float],
    passes: Sequence[float],
    each: float,
    positions: range,
    reached: float,
    rate: float,
) -> float:
    """The most that drafting more tokens at these `positions` may add to a round, in tokens; 0 if nothing.

    `reached` is the chance that all before them are accepted, `rate` [tokens/s] what time is worth; the rest as above.
    """
    best, tokens, seconds = 0.0, 0.0, -passes[positions.start + 1]
    for place in positions:
        reached *= chance(place)
        tokens += reached
        seconds += each
        gain = tokens - rate * (passes[place + 2] + seconds)
        if gain > best:
            best = gain
        if reached < UNLIKELY:
            break
    return best


def position_counts(drafts: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """By position: how many drafts had a token there and kept all before it, and how many of them kept it.

    `drafts` are (tokens drafted, tokens kept).
    """
    tried, kept = list[int](), list[int]()
    for n_drafted, n_kept in drafts:
        missing = n_drafted - len(tried)
        tried += [0] * missing
        kept += [0] * missing
        for i in range(min(n_kept + 1, n_drafted)):
            tried[i] += 1
            kept[i] += i < n_kept
    return tried, kept


def conditional_acceptance(tried: Sequence[float], kept: Sequence[float]) -> list[float]:
    """Chance of each position given that all before it were kept; 0 where no draft came so far."""
    return [n / of if of else 0.0 for n, of in zip(kept, tried, strict=True)]
