"""How likely a draft token is kept: what the drafter's own confidence said, corrected by what happened.

Every source of drafts has a table of chances by confidence, which changes slowly, and a shift of all of them, in
logits, which follows the text at hand: code goes on more predictably than prose with the same confidence.
"""

import math
from bisect import bisect
from collections.abc import Mapping
from typing import Any

_EDGES = (-2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0)
"""Logits of confidence between two entries of the table."""
_UNSAID = len(_EDGES) + 1
"""The entry of tokens whose drafter could not say how sure it is."""
_PRIOR = (0.1, 0.25, 0.4, 0.52, 0.58, 0.68, 0.8, 0.88, 0.95, 0.98, 0.6)
"""Chances before anything was seen: logistic confidence, a little less sure; the last for what was not said."""
_PRIOR_WEIGHT, _MOST_WEIGHT = 4.0, 200.0
_SHIFT_STEP, _SHIFT_FADE, _MOST_SHIFT = 0.15, 0.98, 2.0
_MEAN_STEP = 0.05
"""Of the means by position: they look back on about 20 outcomes."""
_HOPE, _ENOUGH = 0.4, 64
"""What is added to a mean of few outcomes (over the root of their number), and from where on nothing is."""
_POSITIONS = 3
"""First, second, and later ones."""


class Chances:
    """Of one source. Positions count from 0; a chance is always given that all tokens before it were kept."""

    def __init__(self) -> None:
        self._hits = [p * _PRIOR_WEIGHT for p in _PRIOR]
        self._weights = [_PRIOR_WEIGHT] * len(_PRIOR)
        self._shift = 0.0
        self._means = [_PRIOR[_UNSAID]] * _POSITIONS
        self._firsts = [1.0 / len(_PRIOR)] * len(_PRIOR)  # how often a first token falls into each entry
        self.n_seen = 0
        self.doubt()

    def doubt(self) -> None:
        """What the means say may be out of date: the next outcomes count for more, and hope is back."""
        self.n_recent = 0
        self._hope = _HOPE / 2
        self._means = [max(mean, _PRIOR[_UNSAID]) for mean in self._means]

    def state(self) -> dict[str, Any]:
        """What is worth keeping, as plain values; the shift belongs to the text at hand."""
        return {"hits": self._hits, "weights": self._weights, "means": self._means, "n_seen": self.n_seen}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Chances":
        """Raises ValueError, KeyError or TypeError if it is none."""
        self = cls()
        hits, weights, means = ([float(x) for x in state[name]] for name in ("hits", "weights", "means"))
        if (len(hits), len(weights), len(means)) != (len(_PRIOR), len(_PRIOR), _POSITIONS):
            raise ValueError(state)
        if not all(0 <= hit <= weight > 0 for hit, weight in zip(hits, weights, strict=True)):
            raise ValueError(state)
        n_seen = int(state["n_seen"])
        if not all(0 <= mean <= 1 for mean in means) or max(weights) > _MOST_WEIGHT + 1 or n_seen < 0:
            raise ValueError(state)
        self._hits, self._weights, self._means, self.n_seen = hits, weights, means, n_seen
        return self

    def of(self, confidence: float | None) -> float:
        """The chance of a token drafted with this confidence."""
        return self._shifted(_entry(confidence))

    def expected(self, position: int) -> float:
        """The chance of a token that is not drafted yet; rather too high than too low while little was seen."""
        return min(self._means[position if position < _POSITIONS else -1] + self._hope, 0.995)

    def first_tokens(self) -> list[tuple[float, float]]:
        """(how often, chance) of what a first draft token may turn out to be."""
        firsts = enumerate(self._firsts)
        return [(share, min(self._shifted(i) + self._hope, 0.995)) for i, share in firsts if share > 0.005]

    def saw(self, confidence: float | None, position: int, *, kept: bool) -> None:
        """A draft token, all before it kept, was kept or not."""
        i, hit = _entry(confidence), float(kept)
        self.n_seen += 1
        self.n_recent += 1
        self._hope = _HOPE / math.sqrt(self.n_recent + 4) if self.n_recent < _ENOUGH else 0.0
        self._shift = _SHIFT_FADE * self._shift + _SHIFT_STEP * (hit - self._shifted(i))
        self._shift = min(max(self._shift, -_MOST_SHIFT), _MOST_SHIFT)
        fade = min(1.0, _MOST_WEIGHT / (self._weights[i] + 1.0))
        self._hits[i] = (self._hits[i] + hit) * fade
        self._weights[i] = (self._weights[i] + 1.0) * fade
        at = min(position, _POSITIONS - 1)
        step = max(_MEAN_STEP, 1.0 / (self.n_recent + 4.0))
        for place in range(at, _POSITIONS if self.n_recent < _ENOUGH / 3 else at + 1):
            self._means[place] += step * (hit - self._means[place])
        if position == 0:
            self._firsts = [share * (1 - _MEAN_STEP) for share in self._firsts]
            self._firsts[i] += _MEAN_STEP

    def _shifted(self, i: int) -> float:
        chance = self._hits[i] / self._weights[i]
        chance = min(max(chance, 0.005), 0.995)
        return 1.0 / (1.0 + (1.0 - chance) / chance * math.exp(-self._shift))


def _entry(confidence: float | None) -> int:
    """Where a confidence stands in the table."""
    if confidence is None:
        return _UNSAID
    if not 0.0 < confidence < 1.0:
        return 0 if confidence <= 0.0 else len(_EDGES)
    return bisect(_EDGES, math.log(confidence / (1.0 - confidence)))
