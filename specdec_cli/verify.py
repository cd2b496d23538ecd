"""Which tokens the target chooses, and how many draft tokens it would have chosen itself.

With shared noise the target's choice at a position is a function of the seed and the prefix, so
verification is equality: a draft token stands while it is what the target chooses there. Greedy
decoding is the case without noise. The text never depends on who drafted it, or whether anyone did.
"""

from collections.abc import Sequence

import numpy as np

from specdec_cli.noise import gumbel
from specdec_cli.sampling import Row, SamplingParams, argmax, survivors
from specdec_cli.types import Logits


class SharedNoise:
    """The rule by which target and draft both choose: argmax of logit / temperature + noise.

    `n_shared` is the number of token ids that both models know: rows may be longer (padding), and
    nothing at or above it is ever chosen. `banned` ids are never chosen either.
    """

    def __init__(self, params: SamplingParams, *, seed: int, n_shared: int, banned: Sequence[int] = ()) -> None:
        self.params = params
        self.seed = seed
        self.n_shared = n_shared
        self._banned = [t for t in banned if t < n_shared]

    def choose(self, row: Row, position: int) -> int:
        """The token for `position` (index in the sequence), given the logits [>= n_shared] before it."""
        row = self.allowed(row)
        if self.params.is_greedy:
            return argmax(row)
        ids, logits = survivors(row, self.params)
        if len(ids) == 1:
            return int(ids[0])
        noisy = logits / self.params.temperature + gumbel(self.seed, position, ids)
        return int(ids[noisy.argmax()])

    def allowed(self, row: Row) -> Row:
        """The row with padding cut off and banned tokens at minus infinity."""
        row = row[: self.n_shared]
        if self._banned:
            row = row.copy()
            row[self._banned] = -np.inf
        return row


def verify(rows: Logits, drafted: Sequence[int], position: int, rule: SharedNoise) -> tuple[int, int]:
    """How many of `drafted` the target chooses too, and its own token after them.

    `rows` [len(drafted) + 1, n_vocab]: row i follows the prefix and i draft tokens; `position` is
    the index of the first drafted token. Rows after the first mismatch are not looked at.
    """
    for i, token in enumerate(drafted):
        choice = rule.choose(rows[i], position + i)
        if choice != token:
            return i, choice
    n = len(drafted)
    return n, rule.choose(rows[n], position + n)
