"""How likely counts at least this far from a distribution are: the chi-square test, without a library of statistics."""

import math
from collections.abc import Mapping

import numpy as np

from specdec_cli.rejection import at
from specdec_cli.types import Distribution

_FEWEST = 5.0
"""Expected counts below this are taken together: the test's own law is good only above."""
_ASTRAY = 0.01
"""Share of draws that may be of tokens without a chance, where noise moves the edge of the sampler's cuts."""


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


def distance(counts: Mapping[int, int], p: Distribution, also: Distribution) -> tuple[float, int]:
    """The chi-square statistic of counts of tokens against p, and its degrees of freedom (0: says nothing).

    `also` is p by passes of another width: what lies between the two is nobody's fault, and is taken off every
    difference. A token that neither can give makes the statistic infinite.
    """
    n = sum(counts.values())
    seen = Distribution(np.array(sorted(counts), np.intp), np.array([float(counts[i]) for i in sorted(counts)]))
    ids = np.unique(np.concatenate([p.ids, also.ids, seen.ids]))
    expected = n * at(p, ids)
    columns = np.array([at(seen, ids), expected, np.abs(n * at(also, ids) - expected)])
    impossible = (columns[1] == 0) & (columns[2] == 0)
    if columns[0, impossible].sum() > (_ASTRAY * n if columns[2].any() else 0):
        return math.inf, 1
    found, wanted, slack = _cells(columns)
    if len(wanted) < 2:
        return 0.0, 0
    missed = np.maximum(np.abs(found - wanted) - slack, 0.0)
    return float((missed**2 / wanted).sum()), len(wanted) - 1


def _cells(
    columns: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Seen, expected and slack [3, n], with what is expected too seldom taken together, if need be with the rarest."""
    is_common = columns[1] >= _FEWEST
    common, rest = columns[:, is_common], columns[:, ~is_common].sum(axis=1)
    if rest[1] >= _FEWEST:
        return np.column_stack([common, rest])
    if common.shape[1]:
        common[:, common[1].argmin()] += rest
    return common
