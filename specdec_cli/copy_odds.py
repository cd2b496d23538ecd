"""How often a text goes on as it did before, by how much of it is the same."""

from bisect import bisect_left
from typing import Literal

Agreement = Literal["differ", "once", "agree"]
"""What followed the passage before: several different tokens; one, once; the same one every time."""

LENGTHS = (1, 2, 3, 4, 6, 9, 13, 20, 40)
"""Matches up to so many tokens count together; longer than the last are the last group."""
_PRIOR: dict[Agreement, tuple[float, ...]] = {
    "differ": (0.17, 0.33, 0.35, 0.40, 0.50, 0.55, 0.60, 0.60, 0.60, 0.60),
    "once": (0.35, 0.55, 0.65, 0.75, 0.80, 0.90, 0.94, 0.96, 0.97, 0.99),
    "agree": (0.50, 0.70, 0.80, 0.85, 0.90, 0.95, 0.97, 0.98, 0.99, 0.99),
}
_PRIOR_WEIGHT = 8.0
"""Observations that a prior counts for."""
_MEMORY = 64
"""Observations after which all are halved, so that what was long ago weighs less."""


class CopyOdds:
    """Chances that the token after a match is the one that followed before, learnt as the text is written.

    Priors are shares of the texts of many kinds that SmolLM2-135M and Gemma-3-270M write (docs/ngram.md).
    """

    def __init__(self) -> None:
        self._right = {agreement: [_PRIOR_WEIGHT * share for share in shares] for agreement, shares in _PRIOR.items()}
        self._seen = {agreement: [_PRIOR_WEIGHT] * len(shares) for agreement, shares in _PRIOR.items()}

    def chance(self, length: int, agreement: Agreement) -> float:
        """Of the next token after a match of `length` tokens, from 0 to 1."""
        group = bisect_left(LENGTHS, length)
        return self._right[agreement][group] / self._seen[agreement][group]

    def observe(self, length: int, agreement: Agreement, is_right: bool) -> None:
        """Whether the token came."""
        group = bisect_left(LENGTHS, length)
        right, seen = self._right[agreement], self._seen[agreement]
        right[group] += is_right
        seen[group] += 1
        if seen[group] > _PRIOR_WEIGHT + _MEMORY:
            right[group] /= 2
            seen[group] /= 2
