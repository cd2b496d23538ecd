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

_AT_ONCE, _SOON, _LATER = 0, 6, 20
"""Rounds with drafts before the next one without: for the first two, for the next two, so that short answers have more
than one, and from then on. It costs about one hundredth of the time."""
_MOST_SURPRISE = 1.5
"""Of the median of its width: a pass that took longer was interrupted by something else."""
_KEPT = 512
"""Passes of each width that are looked back on."""
_NO_TIME = 1e-12
_USUAL_SCATTER, _SCATTER_PRIOR = 0.1, 2
"""Of one pass, as a share, and how many passes that counts for."""


class PlainChecks:
    """Says which rounds of an answer go without a draft, so that plain decoding's cost is known near in time.

    By rounds and not by time: the same seed gives the same rounds.
    """

    def __init__(self) -> None:
        self._n_plain = 0
        self._n_drafted_since = 0

    def due(self) -> bool:
        """Whether the next round is to have no draft."""
        pause = _AT_ONCE if self._n_plain < 2 else _SOON if self._n_plain < 4 else _LATER
        return self._n_drafted_since >= pause

    def saw(self, round_: Round) -> None:
        """A round after the prompt's."""
        if is_plain(round_):  # also where there was nothing to draft
            self._n_plain += 1
            self._n_drafted_since = 0
        else:
            self._n_drafted_since += 1


@dataclass(frozen=True, slots=True)
class PlainEstimate:
    """Seconds per token of plain decoding; `spread` is the share by which about one estimate in twenty is off."""

    seconds: float
    spread: float


class PlainPace:
    """Seconds of an answer's rounds but for the drafting, by the width of the pass."""

    def __init__(self) -> None:
        self._by_width: dict[int, deque[float]] = {}

    def add(self, round_: Round) -> None:
        """A round after the prompt's."""
        width = 1 + len(round_.drafted) + round_.n_beside
        seconds = self._by_width.setdefault(width, deque(maxlen=_KEPT))
        seconds.append(round_.seconds - round_.draft_seconds)

    @property
    def n_plain(self) -> int:
        """Passes of one token."""
        return len(self._by_width.get(1, ()))

    def estimate(self) -> PlainEstimate | None:
        """None before the first pass of one token.

        Interruptions are rare and long, and passes of one token are few: so they are left out of their mean, and what
        they add to passes of all widths is added to it.
        """
        if not self.n_plain:
            return None
        smooth = {width: _without_interruptions(seconds) for width, seconds in self._by_width.items()}
        interrupted = sum(map(sum, self._by_width.values())) / max(sum(map(sum, smooth.values())), _NO_TIME)
        plain = smooth[1]
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
