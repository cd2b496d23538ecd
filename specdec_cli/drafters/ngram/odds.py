"""How often a text goes on as it did before, by how much of it is the same."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Literal

Agreement = Literal["differ", "once", "agree"]
"""What followed the passage before: several different tokens; one, once; the same one every time."""

LENGTHS = (1, 2, 3, 4, 6, 9, 13, 20, 40)
"""Matches up to so many tokens count together; longer than the last are the last group."""
Prior = Mapping[Agreement, tuple[float, ...]]
"""Chances before anything was seen, for each group of lengths."""
OF_THE_TEXT: Prior = {
    "differ": (0.16, 0.30, 0.32, 0.43, 0.45, 0.55, 0.55, 0.50, 0.50, 0.50),
    "once": (0.30, 0.51, 0.61, 0.71, 0.76, 0.86, 0.91, 0.93, 0.95, 0.99),
    "agree": (0.58, 0.73, 0.83, 0.88, 0.89, 0.95, 0.96, 0.97, 0.97, 0.99),
}
"""Matches in the text itself: the shares in what SmolLM2-135M writes to the benchmark's prompts, half of it greedy and
half at temperature 0.8."""
OF_EARLIER_TEXTS: Prior = {
    "differ": (0.05, 0.08, 0.12, 0.12, 0.12, 0.12, 0.20, 0.30, 0.40, 0.50),
    "once": (0.10, 0.15, 0.20, 0.28, 0.38, 0.40, 0.60, 0.80, 0.90, 0.95),
    "agree": (0.20, 0.30, 0.40, 0.40, 0.55, 0.65, 0.80, 0.92, 0.95, 0.97),
}
"""Matches in the texts of the other prompts, where the text itself has none so long."""
OF_A_PREDICTION: Prior = {
    "differ": (0.20, 0.45, 0.55, 0.65, 0.75, 0.80, 0.85, 0.90, 0.93, 0.95),
    "once": (0.50, 0.70, 0.80, 0.85, 0.90, 0.94, 0.96, 0.97, 0.98, 0.99),
    "agree": (0.25, 0.50, 0.60, 0.70, 0.80, 0.85, 0.90, 0.95, 0.97, 0.98),
}
"""Where a cursor goes along a text that the answer is said to repeat: about the shares in the benchmark's edits."""
_PRIOR_WEIGHT = 8.0
"""Observations that a prior counts for."""
_MEMORY = 64
"""Observations after which all are halved, so that what was long ago weighs less."""


class CopyOdds:
    """Chances that the token after a match is the one that followed before, learnt as the text is written."""

    def __init__(self, prior: Prior = OF_THE_TEXT) -> None:
        self._right = {agreement: [_PRIOR_WEIGHT * share for share in shares] for agreement, shares in prior.items()}
        self._seen = {agreement: [_PRIOR_WEIGHT] * len(shares) for agreement, shares in prior.items()}

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
