"""Choices that the width of a pass could turn are made again from a pass of one token.

llama.cpp may compute a position otherwise in a wide pass than alone (K-quants, GPUs, f16 caches beyond
256 tokens with several threads). The difference is measured on the text at hand; where another token
lies within it, the row is asked for again at width 1. What earlier wide passes left in the cache stays
as it is, so this makes most of the ties fall as in plain decoding, not all.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from specdec_cli.types import Draft, Logits, Target
from specdec_cli.verify import SharedNoise

_LIKELIEST = 40
_MEASURED_ON = 8
"""Tokens at the end of the text on which the noise is measured."""
_MEASURED_EVERY = 256
"""Tokens: llama.cpp's kernels change with the number of cache cells in use, which grows in such steps."""


class Strict:
    """Settles the near ties of a pass. `noise` is the largest difference of a logit seen so far."""

    def __init__(self, rule: SharedNoise) -> None:
        self.noise = 0.0
        self.n_settled = 0
        self._rule = rule
        self._next_measurement = 0

    def settle(self, target: Target, rows: Logits, draft: Draft, tokens: Sequence[int]) -> Logits:
        """The rows [len(draft.tokens) + 1, n_vocab] after `tokens`, those with near ties computed alone."""
        if not draft.tokens:
            return rows
        rows = rows.copy()  # they end with the next call of the target
        self._measure(target, [*tokens, *draft.tokens], len(rows))
        prefix = list(tokens)
        for i, row in enumerate(rows):
            if self._rule.could_turn(row, prefix, self.noise):
                rows[i] = target.score(prefix, 1)[0]
                self.n_settled += 1
            if i == len(draft.tokens) or self._rule.choose(rows[i], prefix) != draft.tokens[i]:
                break
            prefix.append(draft.tokens[i])
        return rows

    def _measure(self, target: Target, tokens: Sequence[int], width: int) -> None:
        if len(tokens) < self._next_measurement:
            return
        n = min(_MEASURED_ON, len(tokens) - 1)
        self.noise = max(self.noise, width_noise(target, tokens, n, range(2, width + 1)))
        # A pass that lies whole beyond the next step is the first to see its kernels.
        self._next_measurement = (len(tokens) // _MEASURED_EVERY + 1) * _MEASURED_EVERY + width


def width_noise(target: Target, tokens: Sequence[int], n: int, widths: Iterable[int] = range(2, 9)) -> float:
    """Largest difference of a logit between passes of one token and of each of `widths`.

    Compared are the likeliest tokens after each of the last `n` of `tokens`. The passes of a width build
    on one another, so the noise that reaches a row through the cache is in it.
    """
    start, end = len(tokens) - n, len(tokens)
    single = np.array([target.score(tokens[:i], 1)[0].copy() for i in range(start + 1, end + 1)])
    kept = min(_LIKELIEST, single.shape[1])
    likeliest = np.argpartition(single, -kept, axis=1)[:, -kept:]
    expected = np.take_along_axis(single, likeliest, axis=1)
    largest = 0.0
    for width in widths:
        for at in range(start, end - width + 1, width):
            rows = target.score(tokens[: at + width], width)
            where = slice(at - start, at - start + width)
            found = np.take_along_axis(rows, likeliest[where], axis=1)
            largest = max(largest, float(np.abs(found - expected[where]).max()))
    return largest
