"""The rules of verification: how a draft is drawn, which of its tokens stand, and what comes after them.

`coupled` is here: with shared noise the target's choice at a position is a function of the seed and the
prefix, so verification is equality, and a draft token stands while it is what the target chooses there.
Greedy decoding is the case without noise. The text never depends on who drafted it, or whether anyone
did. The rules in `rejection` keep the distribution of the text, but not the text.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.noise import gumbel, loudest
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import Ids, Row, checked, runner_up
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Distribution, Draft, Logits


class Drawn(NamedTuple):
    """A draft's token, the q it was drawn from (None: it was certain), and how sure the draft is of it.

    `confidence` lies between 0 and 1 and orders draft tokens by their chance; it is not that chance. None where it
    would cost a look at the whole vocabulary.
    """

    token: int
    q: Distribution | None
    confidence: float | None


class Rule(Protocol):
    """Draws a draft's tokens and judges them, both by one law."""

    law: Law
    seed: int
    name: str
    keeps_text: bool
    """Whether a seed gives the same text with any drafter; else only its distribution is the target's."""

    def draw(self, row: Row, tokens: Sequence[int], start: int, *, wants_confidence: bool = True) -> Drawn:
        """A draft's token after `tokens`, given the draft's logits there.

        `start` is the length of the text when the draft began. The confidence may be left out if nobody wants it.
        """
        ...

    def verify(self, rows: Logits, draft: Draft, tokens: Sequence[int]) -> tuple[int, int]:
        """How many of the draft's tokens stand after `tokens`, and the target's own token after them.

        `rows` [len(draft.tokens) + 1, n_vocab]: row i follows `tokens` and i draft tokens. Rows after
        the first token that cannot stand are not looked at.
        """
        ...


class SharedNoise:
    """Target and draft both choose the argmax of logit / temperature + noise."""

    name = "coupled"
    keeps_text = True

    def __init__(self, law: Law, *, seed: int) -> None:
        self.law = law
        self.seed = seed

    def choose(self, row: Row, tokens: Sequence[int]) -> int:
        """The token that follows `tokens`, given the logits [>= n_shared] after them."""
        params = self.law.params
        if params.is_greedy:
            return self.law.best(row, tokens)
        if not params.cuts:
            return loudest(self.seed, len(tokens), checked(self.law.allowed(row, tokens)), params.temperature)
        ids, scores = self._scores(row, tokens)
        return int(ids[scores.argmax()])

    def draw(
        self,
        row: Row,
        tokens: Sequence[int],
        start: int,  # noqa: ARG002  (the protocol's names)
        *,
        wants_confidence: bool = True,
    ) -> Drawn:
        """The confidence is that of a choice between the first token and the second, where drafts go wrong."""
        params = self.law.params
        if not wants_confidence or (not params.is_greedy and not params.cuts):
            return Drawn(self.choose(row, tokens), None, None)
        if params.is_greedy:
            row = self.law.allowed(row, tokens)
            token = self.law.best_of(row)
            return Drawn(token, None, _logistic(max(float(row[token]) - runner_up(row, token), 0.0)))
        ids, scores = self._scores(row, tokens)
        if len(ids) == 1:
            return Drawn(int(ids[0]), None, 1.0)
        second, first = np.partition(scores, -2)[-2:]
        return Drawn(int(ids[scores.argmax()]), None, _logistic(float(first - second)))

    def _scores(self, row: Row, tokens: Sequence[int]) -> tuple[Ids, NDArray[np.float64]]:
        """The candidates and what decides between them: logit / temperature + noise, both [n]."""
        ids, logits = self.law.candidates(row, tokens)
        if len(ids) == 1:
            return ids, logits
        return ids, logits / self.law.params.temperature + gumbel(self.seed, len(tokens), ids)

    def verify(self, rows: Logits, draft: Draft, tokens: Sequence[int]) -> tuple[int, int]:
        prefix = Tokens.of(tokens)
        for i, token in enumerate(draft.tokens):
            choice = self.choose(rows[i], prefix)
            if choice != token:
                return i, choice
            prefix = prefix.then((token,))
        return len(draft.tokens), self.choose(rows[len(draft.tokens)], prefix)

    def could_turn(self, row: Row, tokens: Sequence[int], noise: float) -> bool:
        """Whether another token could be chosen after `tokens` if every logit were off by up to `noise`.

        Looks at the tokens left by the cuts and at those that such an error could bring past the last
        of them; that it moves the sums of top-p and typical as well is left out.
        """
        row = self.law.allowed(row, tokens)
        ids, logits = self.law.cut(row)
        lowest = float(logits.min()) if not self.law.params.is_greedy else -np.inf
        near = np.flatnonzero((row >= lowest - 2 * noise) & np.isfinite(row))
        scores = row[near].astype(np.float64)
        if not self.law.params.is_greedy:
            scores += self.law.params.temperature * gumbel(self.seed, len(tokens), near)
        if len(near) == 1:
            return False
        second, first = np.partition(scores, -2)[-2:]
        is_at_the_cut = len(near) > len(ids) and float(row[near[scores.argmax()]]) < lowest + 2 * noise
        return bool(first - second < 2 * noise) or is_at_the_cut


def _logistic(gap: float) -> float:
    """1 / (1 + e^-gap) for gaps of 0 and more."""
    return 1.0 / (1.0 + math.exp(-gap))
