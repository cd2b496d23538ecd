"""What passes of the target and tokens of a draft cost on this machine, learned while running.

A machine's speed drifts, by a third within an hour where it is shared, and all passes drift together. So a cost is a
shared pace times a shape: most of a surprise goes into the pace, the rest into the width it was seen at.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

_PACE_STEP, _SHAPE_STEP = 0.2, 0.05
_NEW = 3
"""Up to so many sightings a width's cost is their mean, and says nothing about the pace."""
_MOST_SURPRISE = math.log(1.7)
"""A pass that took longer than that was interrupted by something else."""
_GROWTH = 0.15
"""What another token of width is taken to cost, in passes of one token, where nothing wider was seen yet."""
_FEW_TOKENS_BEHIND = 2
_RETURN_FADE, _RETURN_PRIOR = 0.98, 100.0
"""Of sightings of returns, and what having seen none counts for, in squares of tokens."""
_REFILL_EVERY = 8


class PassCosts:
    """Seconds by width, by draft token and by token that a draft has to catch up with.

    `seen` are seconds of passes by width that were measured before.
    """

    def __init__(self, seen: Mapping[int, float], *, longest: int) -> None:
        self._pace = 1.0
        self._shape = dict(seen)
        self._sightings = dict.fromkeys(seen, _NEW)
        self._widest = longest + 1
        self._drafting: dict[str, list[float]] = {}  # by source: seconds per draft token, per token behind
        self._returns = (0.0, _RETURN_PRIOR)
        self._since_filled = 0
        self.passes: list[float] = []
        self.and_back: list[float] = []
        """The same, with what the next pass takes longer if it is one of a single token."""
        self._fill()

    @property
    def plain(self) -> float:
        """Seconds of a pass of one token."""
        return self.passes[1]

    @property
    def back_each(self) -> float:
        """Seconds that a pass of one token takes longer for each token that the pass before it was wider: what it reads
        has left the processor's caches. A line through 0, by least squares."""
        products, squares = self._returns
        return max(products / squares, 0.0) * self._pace

    @property
    def sources(self) -> list[str]:
        """Those whose drafting was measured."""
        return list(self._drafting)

    def known(self) -> dict[int, float]:
        """Seconds of the widths that were seen."""
        return {width: cost * self._pace for width, cost in sorted(self._shape.items())}

    def draft_token(self, source: str) -> float:
        """Seconds of one draft token; 0 for a source that never drafted."""
        return self._drafting.get(source, _FREE)[0] * self._pace

    def token_behind(self, source: str) -> float:
        """Seconds per token that a source reads without drafting it."""
        return self._drafting.get(source, _FREE)[1] * self._pace

    def set_drafting(self, source: str, draft_token: float, token_behind: float) -> None:
        """What was measured before, in seconds."""
        self._drafting[source] = [draft_token / self._pace, token_behind / self._pace]

    def set_back_each(self, seconds: float) -> None:
        """What was measured before."""
        self._returns = (seconds / self._pace * _RETURN_PRIOR, _RETURN_PRIOR)
        self._fill()

    def saw_return(self, width: int, seconds: float) -> None:
        """A pass of one token after one of `width` took so long."""
        if not self._shape:
            return
        wider, most = width - 1, self.plain
        more = min(max(seconds - self.plain, -most), most) / self._pace
        products, squares = (x * _RETURN_FADE for x in self._returns)
        self._returns = products + wider * more, squares + wider * wider

    def saw_pass(self, width: int, seconds: float) -> None:
        """A pass took so long, with everything that came with it but the drafting."""
        if width > self._widest or seconds <= 0:
            return
        n = self._sightings.get(width, 0) + 1
        self._sightings[width] = n
        cost = seconds / self._pace
        if n <= _NEW:
            before = self._shape.get(width, cost)
            self._shape[width] = before + (min(cost, before * 2) - before) / n
        else:
            surprise = _clipped(math.log(cost / self._shape[width]))
            self._shape[width] *= math.exp(_SHAPE_STEP * surprise)
            self._pace *= math.exp(_PACE_STEP * surprise)
        self._since_filled += 1
        if n <= _NEW or self._since_filled >= _REFILL_EVERY:  # one sighting moves little, and the table is long
            self._fill()

    def saw_draft(self, source: str, drafted: int, behind: int, seconds: float) -> None:
        """A source drafted so many tokens after it had read so many others."""
        cost = seconds / self._pace
        known = self._drafting.get(source)
        if known is None:
            if drafted:
                each = cost / (drafted + max(behind, 0))
                self._drafting[source] = [each, each]
            return
        if behind <= _FEW_TOKENS_BEHIND:
            if drafted:
                known[0] = _towards(known[0], cost / (drafted + behind))
        else:
            known[1] = _towards(known[1], max(cost - drafted * known[0], 0.05 * cost) / behind)

    def _fill(self) -> None:
        """Seconds for every width up to the widest: seen, or on the line between those that were."""
        self._since_filled = 0
        if not self._shape:
            self.passes = self.and_back = [0.0] * (self._widest + 1)
            return
        widths = sorted(self._shape)
        line = [self._shape[w] * self._pace for w in widths]
        if widths[0] != 1:  # below the narrowest seen a pass is taken to cost the same
            widths, line = [1, *widths], [line[0], *line]
        end = max(self._widest, widths[-1] + 1)
        slope = _slope(widths, line)
        full = [0.0, *line[:1]]
        for (a, at_a), (b, at_b) in pairwise(zip(widths, line, strict=True)):
            full += [at_a + (at_b - at_a) * (w - a) / (b - a) for w in range(a + 1, b + 1)]
        full += [line[-1] + slope * (w - widths[-1]) for w in range(widths[-1] + 1, end + 1)]
        self.passes = full[: self._widest + 1]
        each = self.back_each
        self.and_back = [seconds + each * max(width - 1, 0) for width, seconds in enumerate(self.passes)]


_FREE = (0.0, 0.0)


def _slope(widths: Sequence[int], line: Sequence[float]) -> float:
    """Seconds per token of width beyond the widest seen."""
    if len(widths) < 2:
        return _GROWTH * line[0]
    return max((line[-1] - line[0]) / (widths[-1] - widths[0]), 0.0)


def _clipped(surprise: float) -> float:
    return min(max(surprise, -_MOST_SURPRISE), _MOST_SURPRISE)


def _towards(known: float, seen: float) -> float:
    """A tenth of the way, in proportion."""
    if known <= 0 or seen <= 0:
        return max(known, seen)
    return known * math.exp(0.1 * _clipped(math.log(seen / known)))
