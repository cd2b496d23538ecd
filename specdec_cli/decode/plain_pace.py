"""What plain decoding would take, judged from single-token passes in the middle of a drafted answer.

A machine's speed drifts by more than the differences that matter, so a cost that was measured before the answer says
little of it. Where drafts leave no round without one, a round now and then goes without: it costs what that draft would
have gained, and the text stays the same.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from specdec_cli.decode.types import Round

_SOON, _LATER = 8, 24
"""Rounds with drafts between the first two checks, so that short answers have both, and between later ones. It costs
one to two percent of the time, by arithmetic."""
_IN_A_ROW = 2
"""Rounds of a check: what a pass of one token reads has left the processor's caches after a wider one, so that it takes
longer (docs/log.md), and only the second is as plain decoding's."""
_MOST_SURPRISE = 1.5
"""Of the median of its width: a pass that took longer was interrupted by something else."""
_KEPT = 512
"""Passes of each width that are looked back on."""
_NO_TIME = 1e-12
_AFTER_WIDER = 0
"""Stands for the width of a pass of one token that follows a wider one."""
_USUAL_SCATTER, _SCATTER_PRIOR = 0.1, 2
"""Of one pass, as a share, and how many passes that counts for."""


class PlainChecks:
    """Says which rounds of an answer go without a draft, so that plain decoding's cost is known near in time.

    By rounds and not by time: the same seed gives the same rounds.
    """

    def __init__(self) -> None:
        self._n_checks = 0
        self._n_drafted_since = 0
        self._in_a_row = 0

    def due(self) -> bool:
        """Whether the next round is to have no draft."""
        pause = _LATER if self._n_checks > 1 else _SOON * self._n_checks
        return self._n_drafted_since >= pause

    def saw(self, round_: Round) -> None:
        """A round after the prompt's."""
        if not is_plain(round_):
            self._in_a_row = 0
            self._n_drafted_since += 1
            return
        self._in_a_row += 1
        if self._in_a_row >= _IN_A_ROW:  # also where there was nothing to draft
            self._n_checks += self._in_a_row == _IN_A_ROW
            self._n_drafted_since = 0


@dataclass(frozen=True, slots=True)
class PlainEstimate:
    """Seconds per token of plain decoding; `spread` is the share by which about one estimate in twenty is off."""

    seconds: float
    spread: float


class PlainPace:
    """Seconds of an answer's rounds but for the drafting, by the width of the pass."""

    def __init__(self) -> None:
        self._by_width: dict[int, deque[float]] = {}
        self._last_width = 0

    def add(self, round_: Round) -> None:
        """A round after the prompt's."""
        width = 1 + len(round_.drafted) + round_.n_beside
        kind = _AFTER_WIDER if width == 1 and self._last_width != 1 else width
        self._last_width = width
        self._by_width.setdefault(kind, deque(maxlen=_KEPT)).append(round_.seconds - round_.draft_seconds)

    @property
    def n_plain(self) -> int:
        """Passes of one token that the estimate is made of."""
        return len(self._by_width.get(1) or self._by_width.get(_AFTER_WIDER) or ())

    def estimate(self) -> PlainEstimate | None:
        """None before the first pass of one token; from those after wider passes only until there are others.

        Interruptions are rare and long, and passes of one token are few: so they are left out of their mean, and what
        they add to passes of all widths is added to it.
        """
        smooth = {kind: _without_interruptions(seconds) for kind, seconds in self._by_width.items()}
        plain = smooth.get(1) or smooth.get(_AFTER_WIDER)
        if not plain:
            return None
        interrupted = sum(map(sum, self._by_width.values())) / max(sum(map(sum, smooth.values())), _NO_TIME)
        mean = statistics.fmean(plain)
        if mean <= 0:
            return None
        squares = sum((seconds / mean - 1) ** 2 for seconds in plain)
        scatter = math.sqrt((squares + _SCATTER_PRIOR * _USUAL_SCATTER**2) / (len(plain) - 1 + _SCATTER_PRIOR))
        return PlainEstimate(mean * interrupted, 2 * scatter / math.sqrt(len(plain)))


def _without_interruptions(seconds: Sequence[float]) -> list[float]:
    most = _MOST_SURPRISE * statistics.median(seconds)
    return [min(one, most) for one in seconds]


def is_plain(round_: Round) -> bool:
    """Whether the target's pass was that of plain decoding."""
    return not round_.drafted and not round_.n_beside
