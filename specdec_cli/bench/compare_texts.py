"""Telling a tie from a bug, where a file's numbers depend on how many tokens a pass is wide.

Two texts by one rule and seed may part where two tokens are nearly equal, because llama.cpp computes the
same position with other kernels in wide passes. That is a tie if the noise of the file is large enough to
turn the choice; anything else is a bug.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.strict import width_noise
from specdec_cli.decode.tokens import first_difference
from specdec_cli.decode.types import Target

Verdict = Literal["same", "tie", "bug"]
_SEVERITY = {"same": 0, "tie": 1, "bug": 2}

_FARTHEST = 64.0
_READ_ALONE, _LIKELIEST = 2, 40
_NOISE_ON = 64
"""Tokens before a difference on which the noise is measured."""
_SPARE = 1.5
"""A noise is the largest of some that were seen; the next one may be a little larger."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether a text is plain decoding's. Where it is not: the first `position` (of the answer) at which they part, the
    `gap` in logits that had to be overcome there, and the `noise` of passes of other widths."""

    verdict: Verdict
    position: int | None = None
    gap: float = 0.0
    noise: float = 0.0

    @property
    def severity(self) -> tuple[int, float]:
        """For comparing comparisons: the larger, the worse."""
        return _SEVERITY[self.verdict], self.gap

    def __str__(self) -> str:
        if self.verdict == "same":
            return "same"
        name = "tie" if self.verdict == "tie" else "BUG"
        return f"{name} at {self.position} (gap {self.gap:.2g}, noise {self.noise:.2g})"

    @property
    def as_sentence(self) -> str:
        """For a text that is not plain decoding's."""
        return (
            f"the text diverges from plain decoding at token {self.position}, where the gap is {self.gap:.3g} "
            f"and the noise {self.noise:.3g}"
        )


def compare(
    target: Target, rule: SharedNoise, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int], widest: int
) -> Comparison:
    """Hold `other` against `plain`, both answers to `prompt`; passes were up to `widest` tokens wide.

    One text may end before the other where a limit cut it, but not where they disagree.
    """
    at = first_difference(plain, other)
    if at is None:
        return Comparison("same")
    if at >= min(len(plain), len(other)):
        return Comparison("bug", at)
    prefix = [*prompt, *plain[:at]]
    gap = distance(target, rule, prefix, other[at])
    n = min(_NOISE_ON, len(prefix) - 1)
    noise = width_noise(target, prefix, n, range(2, min(widest, n) + 1)) if n >= 2 else 0.0
    if gap <= 0 or gap > _SPARE * noise:
        noise = max(noise, border_noise(target, prefix))
    return Comparison("tie" if gap <= _SPARE * noise else "bug", at, gap, noise)


def border_noise(target: Target, tokens: Sequence[int]) -> float:
    """Largest difference of a logit between a text read in long passes, and with its last two tokens one by one.

    A prompt that is partly known already is read from another place on, and some kernels (flash attention from 64
    tokens on) round otherwise there.
    """
    if len(tokens) < _READ_ALONE + 2:
        return 0.0
    target.score(tokens[:1], 1)  # whatever was read before is read again
    together = target.score(tokens, 1)[0].copy()
    for n in range(len(tokens) - _READ_ALONE, len(tokens) + 1):
        row = target.score(tokens[:n], 1)[0]
    likeliest = np.argpartition(together, -min(_LIKELIEST, len(together)))[-_LIKELIEST:]
    return float(np.abs(row[likeliest] - together[likeliest]).max())


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
