"""What plain decoding would take, judged from single-token passes in the middle of a drafted answer.

A machine's speed drifts by more than the differences that matter, so a cost that was measured before the answer says
little of it. Where drafts leave no round without one, a round now and then goes without: it costs what that draft would
have gained, and the text stays the same.
"""

import math
import statistics
from dataclasses import dataclass, field

from specdec_cli.decode.types import Round

_AT_ONCE, _SOON, _LATER = 0, 6, 20
"""Rounds with drafts before the next one without: for the first two, for the next two, so that short answers have more
than one, and from then on. It costs about one hundredth of the time."""
_MOST_SURPRISE = 1.5
"""Of the median: a pass that took longer was interrupted by something else."""
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


@dataclass
class PlainPace:
    """Single-token passes of one answer: `seconds` of their whole rounds but for the drafting."""

    seconds: list[float] = field(default_factory=list)

    def add(self, round_: Round) -> None:
        """A round after the prompt's."""
        if is_plain(round_):
            self.seconds.append(round_.seconds - round_.draft_seconds)

    def estimate(self) -> PlainEstimate | None:
        """None before the first such pass."""
        samples = self.seconds
        if not samples:
            return None
        most = _MOST_SURPRISE * statistics.median(samples)
        mean = statistics.fmean(min(s, most) for s in samples)
        if mean <= 0:
            return None
        squares = sum((min(s, most) / mean - 1) ** 2 for s in samples)
        scatter = math.sqrt((squares + _SCATTER_PRIOR * _USUAL_SCATTER**2) / (len(samples) - 1 + _SCATTER_PRIOR))
        return PlainEstimate(mean, 2 * scatter / math.sqrt(len(samples)))


def is_plain(round_: Round) -> bool:
    """Whether the target's pass was that of plain decoding."""
    return not round_.drafted and not round_.n_beside
