"""Drafts whose passes give the numbers of plain decoding, as far as there are any.

llama.cpp may compute a position otherwise in a wide pass than alone (K-quants, GPUs, f16 caches beyond
256 tokens with several threads). Kernels work in tiles, so up to some width there is often no difference
at all: that width is measured on the text at hand, and drafts are kept to it. Where every width differs,
choices that the difference could turn are made again from a pass of one token; what wide passes left in
the cache stays as it is, and moves later rows about as much, so that this removes only some of the
divergences.
"""

from collections.abc import Iterable, Sequence
from itertools import cycle, islice, takewhile

import numpy as np

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Draft, Logits, Target

_LIKELIEST = 40
_MEASURED_ON = 16
"""Tokens on which the noise is measured, at least: eight rows were seen without a rounding that falls otherwise."""
_FIRST_STEP = 256
"""llama.cpp's kernels change with the cells of the cache in use, which grow by so many tokens."""


class Strict:
    """Keeps drafts to quiet widths, or settles near ties.

    `noise` is the largest difference of a logit seen where no width was quiet, `longest` the most that
    may be drafted (None: any length, because all are noisy; 0 until it was measured).
    """

    def __init__(self, rule: SharedNoise) -> None:
        self.noise = 0.0
        self.n_settled = 0
        self.longest: int | None = 0
        self._rule = rule
        self._next_measurement = 0

    def longest_draft(self, target: Target, tokens: Sequence[int], k: int) -> int:
        """How many of `k` tokens may be drafted after `tokens`; measures now and then."""
        if len(tokens) >= self._next_measurement:
            self._measure(target, tokens, k + 1)
        return k if self.longest is None else min(k, self.longest)

    def settle(self, target: Target, rows: Logits, draft: Draft, tokens: Sequence[int]) -> Logits:
        """The rows [len(draft.tokens) + 1, n_vocab] after `tokens`, those with near ties computed alone."""
        if not draft.tokens or self.noise == 0:
            return rows
        rows = rows.copy()  # they end with the next call of the target
        prefix = Tokens.of(tokens)
        for i, row in enumerate(rows):
            if self._rule.could_turn(row, prefix, self.noise):
                rows[i] = target.score(prefix, 1)[0]
                self.n_settled += 1
            if i == len(draft.tokens) or self._rule.choose(rows[i], prefix) != draft.tokens[i]:
                break
            prefix = prefix.then(draft.tokens[i : i + 1])
        return rows

    def _measure(self, target: Target, tokens: Sequence[int], width: int) -> None:
        """On tokens behind the text, so that what the cache holds of the text stays as it was computed."""
        n = max(_MEASURED_ON, 2 * width)
        if len(tokens) + n > target.n_ctx:
            return
        behind = [*tokens, *islice(cycle(tokens), n)]
        noises = noise_by_width(target, behind, n, range(2, width + 1))
        self.longest = len(list(takewhile(lambda noise: noise == 0, noises.values()))) or None
        if self.longest is None:
            self.noise = max(self.noise, *noises.values())
        # Again before the first pass that reaches beyond 256 tokens, 512, 1024 ...
        step = _FIRST_STEP
        while step <= len(tokens) + width:
            step *= 2
        self._next_measurement = step - width


def width_noise(target: Target, tokens: Sequence[int], n: int, widths: Iterable[int] = range(2, 9)) -> float:
    """The largest of `noise_by_width`."""
    return max(noise_by_width(target, tokens, n, widths).values(), default=0.0)


def noise_by_width(target: Target, tokens: Sequence[int], n: int, widths: Iterable[int]) -> dict[int, float]:
    """Largest difference of a logit between passes of one token and of each of `widths`, each at most `n`.

    Compared are the likeliest tokens after each of the last `n` of `tokens`. The passes of a width build
    on one another, so the noise that reaches a row through the cache is in it.
    """
    start, end = len(tokens) - n, len(tokens)
    single = np.array([target.score(tokens[:i], 1)[0].copy() for i in range(start + 1, end + 1)])
    kept = min(_LIKELIEST, single.shape[1])
    likeliest = np.argpartition(single, -kept, axis=1)[:, -kept:]
    expected = np.take_along_axis(single, likeliest, axis=1)
    largest: dict[int, float] = {}
    for width in widths:
        differences = []
        for at in range(start, end - width + 1, width):
            rows = target.score(tokens[: at + width], width)
            where = slice(at - start, at - start + width)
            found = np.take_along_axis(rows, likeliest[where], axis=1)
            differences.append(float(np.abs(found - expected[where]).max()))
        largest[width] = max(differences)
    return largest
