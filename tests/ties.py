"""Telling a tie from a bug, where a file's numbers depend on how many tokens a pass is wide.

Two texts by one rule and seed may part where two tokens are nearly equal, because llama.cpp computes the
same position with other kernels in wide passes. That is a tie if the noise of the file is large enough to
turn the choice; anything else is a bug.
"""

from collections.abc import Sequence

from specdec_cli.types import Target
from specdec_cli.verify import SharedNoise

_FARTHEST = 64.0


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first place where two texts differ; a shorter one differs at its end."""
    differing = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differing, None if len(a) == len(b) else min(len(a), len(b)))


def distance(target: Target, rule: SharedNoise, prefix: Sequence[int], other: int) -> float:
    """How far two logits must move, each by as much, for the rule to choose `other` after `prefix`.

    Half the gap between the noisy scores, in logits, where both tokens survive the cuts of the sampler;
    the rule itself is asked, so the cuts count.
    """
    row = target.score(prefix, 1)[0].copy()
    best = rule.choose(row, prefix)

    def turns(move: float) -> bool:
        moved = row.copy()
        moved[other] += move
        moved[best] -= move
        return rule.choose(moved, prefix) == other

    low, high = 0.0, _FARTHEST
    if best == other:
        return 0.0
    while high - low > 1e-4 * high + 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if turns(middle) else (middle, high)
    return high
