"""What a draft of k tokens should be worth: measured costs and acceptance put together. Pure arithmetic.

With t(w) the time of a target pass of w tokens, d that of a draft token, and a_i the chance that draft token i is
kept when all before it were, a round of k drafted tokens emits on average E(k) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_k
tokens and costs t(k + 1) + (k + A) d, where A = a_1 ... a_k: after a full match the draft has to read its own last
token as well. The predicted speedup is E(k) t(1) / (t(k + 1) + (k + A) d). After Leviathan, Kalman, Matias, "Fast
inference from transformers via speculative decoding", arXiv 2211.17192, with acceptance by position and measured costs
in place of constants.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

PERFECT = 1.0
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
    chance_of_all = _product(acceptance[:k])
    return expected_tokens(acceptance, k) * curve.target[1] / curve.round_seconds(k, chance_of_all)


def perfect_speedup(curve: CostCurve, k: int) -> float:
    """The bound: a draft that is always right."""
    return predicted_speedup(curve, [PERFECT] * k, k)


def break_even(curve: CostCurve, k: int) -> float | None:
    """The acceptance, equal at every position, at which drafting k tokens costs what it brings; None if none does."""
    if perfect_speedup(curve, k) < 1:
        return None
    low, high = 0.0, PERFECT
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if predicted_speedup(curve, [middle] * k, k) < 1 else (low, middle)
    return high


def best_k(curve: CostCurve, acceptance: Sequence[float]) -> int:
    """The draft length, of those whose width was measured, with the best predicted speed; 0 is plain decoding."""
    lengths = [k for k in range(len(acceptance) + 1) if k + 1 in curve.target]
    return max(lengths, key=lambda k: predicted_speedup(curve, acceptance, k))


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


def conditional_acceptance(tried: Sequence[int], kept: Sequence[int]) -> list[float]:
    """Chance of each position given that all before it were kept; 0 where no draft came so far."""
    return [n / of if of else 0.0 for n, of in zip(kept, tried, strict=True)]


def _product(chances: Sequence[float]) -> float:
    product = 1.0
    for chance in chances:
        product *= chance
    return product
