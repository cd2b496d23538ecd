"""Tokens per second that costs of passes and a chance of acceptance make."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_cli.forecast.passes import CONTEXT, WIDEST, Seconds
from specdec_cli.lengths.speedup_model import CostCurve, best_k, predicted_speedup

USUAL_ACCEPTANCE = (0.6, 0.7, 0.8)
"""Chances that are shown where nobody reported one."""
_BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class Forecast:
    """The best that drafts do at one `acceptance`, the chance of each draft token given all before it.

    `k` is 0 where drafts do not pay; `acceptance` is None where nothing drafts.
    """

    plain: float
    k: int
    tokens_per_second: float
    acceptance: float | None

    @property
    def speedup(self) -> float:
        return self.tokens_per_second / self.plain


def forecasts(target: Seconds, draft: Seconds | None, chances: Sequence[float]) -> list[Forecast]:
    """One for each of the `chances`; without a draft the plain speed alone."""
    plain = 1 / target[1]
    if draft is None:
        return [Forecast(plain, 0, plain, None)]
    curve = CostCurve(CONTEXT, target, draft[1])
    found = []
    for chance in chances:
        acceptance = [chance] * (WIDEST - 1)
        k = best_k(curve, acceptance)
        found.append(Forecast(plain, k, plain * predicted_speedup(curve, acceptance, k), chance))
    return found


def chance_of_each(accepted: float, k: int) -> float:
    """The chance of each draft token that makes `accepted` of all of them, where `k` are drafted at a time."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _accepted(middle, k) < accepted else (low, middle)
    return high


def _accepted(chance: float, k: int) -> float:
    """Accepted of drafted tokens."""
    return sum(chance**place for place in range(1, k + 1)) / k
