"""The chi-square test, without a statistics library."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.rejection import at
from specdec_cli.decode.types import Distribution

_Numbers = NDArray[np.float64]

_FEWEST = 5.0
"""Expected counts below this are taken together: the test's own law is good only above."""


def survival(statistic: float, freedom: int) -> float:
    """The chance of a chi-square variable above `statistic`.

    For whole degrees of freedom the integral is a finite sum: Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1), from
    Q(1/2, x) = erfc(sqrt x) or Q(1, x) = e^-x. All terms are positive, so nothing cancels far out.
    """
    if statistic <= 0 or freedom == 0:
        return 1.0
    if math.isinf(statistic):
        return 0.0
    x, a = statistic / 2, 0.5 if freedom % 2 else 1.0
    chance = math.erfc(math.sqrt(x)) if freedom % 2 else math.exp(-x)
    while a < freedom / 2:
        chance += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return min(chance, 1.0)


def distance(counts: Mapping[int, int], p: Distribution) -> tuple[float, int]:
    """The chi-square statistic of counts of tokens against p, and its degrees of freedom (0: says nothing).

    A token that p cannot give makes the statistic infinite.
    """
    n, ids = sum(counts.values()), np.array(sorted(counts), np.intp)
    if not at(p, ids).all():
        return math.inf, 1
    seen = at(Distribution(ids, np.array([float(counts[i]) for i in ids])), p.ids)
    found, wanted = _cells(seen, n * p.probs)
    if len(wanted) < 2:
        return 0.0, 0
    return float(((found - wanted) ** 2 / wanted).sum()), len(wanted) - 1


def _cells(seen: _Numbers, expected: _Numbers) -> tuple[_Numbers, _Numbers]:
    """With what is expected too seldom taken together, and with the rarest of the others if still too seldom."""
    is_common = expected >= _FEWEST
    seen, rest = seen[is_common], seen[~is_common].sum()
    expected, rest_expected = expected[is_common], expected[~is_common].sum()
    if rest_expected >= _FEWEST:
        return np.append(seen, rest), np.append(expected, rest_expected)
    if len(expected):
        rarest = expected.argmin()
        seen[rarest] += rest
        expected[rarest] += rest_expected
    return seen, expected
