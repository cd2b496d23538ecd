"""Rejection sampling, token by token and by blocks: the target's distribution, whatever the draft's.

p is the target's distribution and q the draft's, as in Leviathan, Kalman, Matias, "Fast inference from
transformers via speculative decoding", arXiv 2211.17192 (Chen et al., arXiv 2302.01318, have it the
other way round). Blocks are those of Sun et al., "Block verification accelerates speculative decoding",
arXiv 2403.10444: never fewer tokens in expectation, because a token's luck carries over to the next.

Random numbers are functions of the seed, the length of the text when the draft began, the place in the
draft and the purpose: no number is used for two draws, also not in the next round's draft, which may
have tokens at the same positions again.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.coupled import Drawn
from specdec_cli.decode.noise import uniform
from specdec_cli.decode.sampler_chain import Law, certain
from specdec_cli.decode.sampling import Row
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Distribution, Draft, Logits

_DRAFT, _ACCEPT, _OWN = 1, 2, 3  # streams of random numbers


def at(distribution: Distribution, ids: NDArray[np.intp]) -> NDArray[np.float64]:
    """The probabilities of `ids` [n], 0 for those that cannot come."""
    places = np.minimum(np.searchsorted(distribution.ids, ids), len(distribution.ids) - 1)
    return np.where(distribution.ids[places] == ids, distribution.probs[places], 0.0)


def acceptance(p: Distribution, q: Distribution, token: int) -> float:
    """The chance min(1, p/q) that a `token` drawn from q stands."""
    drawn = np.array([token])
    return min(1.0, float(at(p, drawn)[0]) / float(at(q, drawn)[0]))


def excess(p: Distribution, q: Distribution, weight: float = 1.0) -> NDArray[np.float64]:
    """max(weight * p - q, 0) for each of p's ids: what q gives too rarely, not normalised."""
    return np.maximum(weight * p.probs - at(q, p.ids), 0.0)


def residual(p: Distribution, q: Distribution, weight: float = 1.0) -> Distribution:
    """The distribution of the target's own token after a rejection.

    Where q gives all of p there is no rejection but by rounding, and p is as good as any.
    """
    rest = excess(p, q, weight)
    total = float(rest.sum())
    return Distribution(p.ids, rest / total) if total > 0 else p


def next_weight(weight: float, p: Distribution, q: Distribution, token: int) -> float:
    """min(weight * p/q, 1): how well the draft up to and with `token` is covered by the target."""
    drawn = np.array([token])
    return min(1.0, weight * float(at(p, drawn)[0]) / float(at(q, drawn)[0]))


def block_chance(weight: float, p: Distribution, q: Distribution) -> float:
    """The chance that a block of this weight may end here, given p and q of the token that would follow."""
    rest = float(excess(p, q, weight).sum())
    missing = rest + 1.0 - weight
    return min(rest / missing, 1.0) if missing > 0 else 1.0  # rounding must not make it more


def pick(distribution: Distribution, u: float) -> int:
    """The token at `u`, uniform in (0, 1), of the cumulated probabilities."""
    cumulated = np.cumsum(distribution.probs)
    place = int(np.searchsorted(cumulated, u * cumulated[-1], side="right"))
    return int(distribution.ids[min(place, int(np.flatnonzero(distribution.probs)[-1]))])


class _Draws:
    """What both rules share: the law, the random numbers, and drafts drawn from q."""

    keeps_text = False

    def __init__(self, law: Law, *, seed: int) -> None:
        self.law = law
        self.seed = seed

    def draw(
        self,
        row: Row,
        tokens: Sequence[int],
        start: int,
        *,
        wants_confidence: bool = True,  # noqa: ARG002  (it is known anyway)
    ) -> Drawn:
        q = self.law.distribution(row, tokens)
        token = pick(q, self._uniform(start, len(tokens) - start, _DRAFT))
        return Drawn(token, q, float(at(q, np.array([token]))[0]))

    def _uniform(self, start: int, place: int, stream: int) -> float:
        return float(uniform(self.seed, start, np.array([place]), stream)[0])

    def _own(self, start: int, place: int, distribution: Distribution) -> int:
        return pick(distribution, self._uniform(start, place, _OWN))


class TokenRejection(_Draws):
    """Accept with min(1, p/q); the first rejected token gives way to one from max(p - q, 0)."""

    name = "rejection"

    def verify(self, rows: Logits, draft: Draft, tokens: Sequence[int]) -> tuple[int, int]:
        start, prefix = len(tokens), Tokens.of(tokens)
        for i, (token, q) in enumerate(zip(draft.tokens, _qs(draft), strict=True)):
            p = self.law.distribution(rows[i], prefix)
            if self._uniform(start, i, _ACCEPT) >= acceptance(p, q, token):
                return i, self._own(start, i, residual(p, q))
            prefix = prefix.then((token,))
        n = len(draft.tokens)
        return n, self._own(start, n, self.law.distribution(rows[n], prefix))


class BlockRejection(_Draws):
    """Accept the longest beginning that passes its own test, then draw from max(weight * p - q, 0)."""

    name = "block"

    def verify(self, rows: Logits, draft: Draft, tokens: Sequence[int]) -> tuple[int, int]:
        start, prefix, qs = len(tokens), Tokens.of(tokens), _qs(draft)
        p, weight = self.law.distribution(rows[0], prefix), 1.0
        n_accepted, own = 0, residual(p, qs[0]) if qs else p
        for i, token in enumerate(draft.tokens, 1):
            weight = next_weight(weight, p, qs[i - 1], token)
            if weight == 0:  # nothing longer can stand either
                break
            prefix = prefix.then((token,))
            p = self.law.distribution(rows[i], prefix)
            is_last = i == len(qs)
            chance = weight if is_last else block_chance(weight, p, qs[i])
            if self._uniform(start, i, _ACCEPT) < chance:
                n_accepted, own = i, p if is_last else residual(p, qs[i], weight)
        return n_accepted, self._own(start, n_accepted, own)


def _qs(draft: Draft) -> tuple[Distribution, ...]:
    return tuple(certain(token) for token in draft.tokens) if draft.probs is None else draft.probs
