"""What passes and draft tokens cost, how much that varies, and what drafts can be worth at such costs. Arithmetic."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specdec_cli.lengths.speedup_model import CostCurve, break_even, perfect_speedup, predicted_speedup

WIDTHS = (1, 2, 3, 5, 9)
"""Tokens of the passes that are timed: plain decoding, and drafts of 1, 2, 4 and 8 tokens."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of passes by width, and of draft tokens (none without a draft model), as they were measured."""

    context: int
    passes: Mapping[int, Sequence[float]]
    drafts: Sequence[float]

    @property
    def curve(self) -> CostCurve:
        """Medians, and straight lines between the widths that were measured."""
        medians = {width: statistics.median(seconds) for width, seconds in self.passes.items() if seconds}
        widths, filled = sorted(medians), {}
        for width in range(1, widths[-1] + 1):
            below = max(w for w in widths if w <= width)
            above = min(w for w in widths if w >= width)
            share = (width - below) / (above - below) if above > below else 0.0
            filled[width] = medians[below] + share * (medians[above] - medians[below])
        return CostCurve(self.context, filled, statistics.median(self.drafts) if self.drafts else 0.0)

    @property
    def lengths(self) -> list[int]:
        """Draft lengths whose passes were measured."""
        return [width - 1 for width in sorted(self.passes) if width > 1 and self.passes[width]]

    def bound(self) -> tuple[int, float]:
        """The length at which a draft that is always right brings most, and its speedup."""
        return max(((k, perfect_speedup(self.curve, k)) for k in self.lengths), key=lambda one: one[1])

    def expected(self, acceptance: Sequence[float]) -> tuple[int, float]:
        """The best length, and its speedup, for this acceptance by position; the last one holds further back."""
        chances = [*acceptance, *[acceptance[-1]] * (max(self.lengths) - len(acceptance))]
        return max(((k, predicted_speedup(self.curve, chances, k)) for k in self.lengths), key=lambda one: one[1])

    def needed(self) -> float | None:
        """The least acceptance, equal at every position, with which some length pays; None if none does."""
        found = [share for k in self.lengths if (share := break_even(self.curve, k)) is not None]
        return min(found, default=None)

    def bound_without_draft_costs(self) -> float:
        """The same bound for drafts that cost nothing: what wide passes alone allow."""
        curve = self.curve
        free = CostCurve(curve.context, curve.target, 0.0)
        return max(perfect_speedup(free, k) for k in self.lengths)


def spread(seconds: Sequence[float]) -> float:
    """From the fastest tenth to the slowest tenth, in medians."""
    if len(seconds) < 2:
        return 0.0
    tenths = statistics.quantiles(seconds, n=10, method="inclusive")
    return (tenths[-1] - tenths[0]) / statistics.median(seconds)
