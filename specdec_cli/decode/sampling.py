"""Sampler settings, and which tokens of a row of logits survive their cuts.

The order is llama.cpp's: top-n-sigma, top-k, typical, top-p, min-p, all on the untempered
distribution, and temperature last. Nothing here sorts or exponentiates a whole vocabulary unless the
settings need it: a threshold first finds the few tokens that can matter.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_cli.errors import DecodeFailed, NothingAllowed, UsageError

Row = NDArray[np.float32]
Ids = NDArray[np.intp]

_FIRST_TOP_P_CANDIDATES = 256
"""Top-p without top-k looks at this many tokens first; a few are nearly always enough."""
_GROUP = 128
"""Logits per group when the largest are looked for. Of 64 to 256 the quickest for 262,144 logits."""


_ALLOWED: tuple[tuple[str, str, Callable[[float], bool]], ...] = (
    ("temperature", "0 or more", lambda value: value >= 0),
    ("top_k", "0 (off) or more", lambda value: value >= 0),
    ("top_p", "above 0 and at most 1 (off)", lambda value: 0 < value <= 1),
    ("min_p", "from 0 (off) to 1", lambda value: 0 <= value <= 1),
    ("typical", "above 0 and at most 1 (off)", lambda value: 0 < value <= 1),
    ("top_n_sigma", "0 (off) or more", lambda value: value >= 0),
    ("repeat_penalty", "above 0; 1 is off", lambda value: value > 0),
    ("frequency_penalty", "that is a number; 0 is off", lambda _: True),
    ("presence_penalty", "that is a number; 0 is off", lambda _: True),
    ("repeat_last_n", "0 (off) or more", lambda value: value >= 0),
    ("dry_multiplier", "0 (off) or more", lambda value: value >= 0),
    ("dry_base", "1 or more", lambda value: value >= 1),
    ("dry_allowed_length", "0 or more", lambda value: value >= 0),
    ("dry_last_n", "0 (off) or more", lambda value: value >= 0),
)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Defaults are llama.cpp's. Temperature 0 is greedy.

    Nothing is cut by top-k 0, top-p 1, min-p 0, typical 1 and top-n-sigma 0. Penalties look at the
    last `repeat_last_n` tokens and do nothing at 1 (repeat) and 0 (frequency, presence); DRY looks at
    the last `dry_last_n` and is off with a multiplier of 0. Both windows include the prompt.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical: float = 1.0
    top_n_sigma: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_last_n: int = 64

    def __post_init__(self) -> None:
        for name, allowed, holds in _ALLOWED:
            value = getattr(self, name)
            if not (holds(value) and math.isfinite(value)):
                raise UsageError(f"{name.replace('_', '-')} cannot be {value}.", hint=f"Use a value {allowed}.")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def cuts(self) -> bool:
        """Whether any token is taken away before the temperature."""
        return (self.top_k, self.top_p, self.min_p, self.typical, self.top_n_sigma) != (0, 1, 0, 1, 0)

    @property
    def has_penalties(self) -> bool:
        changes = (self.repeat_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)
        return changes and self.repeat_last_n > 0

    @property
    def has_dry(self) -> bool:
        return self.dry_multiplier > 0 and self.dry_last_n > 0

    def __str__(self) -> str:
        words = ["greedy"] if self.is_greedy else [f"temperature {self.temperature:g}", *self._cuts()]
        words += [f"typical {self.typical:g}"] if self.typical < 1 else []
        words += [f"top-n-sigma {self.top_n_sigma:g}"] if self.top_n_sigma > 0 and not self.is_greedy else []
        if self.has_penalties:
            amounts = (self.repeat_penalty, self.frequency_penalty, self.presence_penalty)
            words.append("penalties {:g}/{:g}/{:g} over {}".format(*amounts, self.repeat_last_n))
        words += [f"DRY {self.dry_multiplier:g} over {self.dry_last_n}"] if self.has_dry else []
        return ", ".join(words)

    def _cuts(self) -> tuple[str, ...]:
        return f"top-k {self.top_k}", f"top-p {self.top_p:g}", f"min-p {self.min_p:g}"


def argmax(row: Row) -> int:
    """The most likely token; of equal ones the lowest id. Raises DecodeFailed if the row is not numbers."""
    best = int(row.argmax())
    if not math.isfinite(row[best]):
        raise _nothing_to_choose(float(row[best]))
    return best


def runner_up(row: Row, best: int) -> float:
    """The highest of the logits beside that of `best`; minus infinity where there is no other.

    The row is changed for a moment: taking the two halves apart would read it as often.
    """
    highest = row[best]
    row[best] = -math.inf
    second = float(row.max())
    row[best] = highest
    return second


def checked(row: Row) -> Row:
    """The row, if some token can come and none is NaN or infinitely likely. Raises DecodeFailed."""
    _highest(row)
    return row


def _highest(row: Row) -> float:
    highest = float(row.max())  # NaN if there is one anywhere
    if not math.isfinite(highest):
        raise _nothing_to_choose(highest)
    return highest


def survivors(row: Row, params: SamplingParams) -> tuple[Ids, NDArray[np.float64]]:
    """The tokens left by the cuts, most likely first, and their logits, both [n].

    Without top-n-sigma, top-k, typical and top-p they are in order of id. Raises DecodeFailed if the
    row is not numbers.
    """
    if params.typical < 1 or params.top_n_sigma > 0:
        return _survivors_of_all_cuts(checked(row), params)
    if 0 < params.top_k < len(row):
        ids, highest = _top_k(row, params.top_k)
        if not math.isfinite(highest):
            raise _nothing_to_choose(highest)
        logits = row[ids].astype(np.float64)
        if params.top_p < 1:
            kept = n_within_top_p(logits, log_total(logits), params.top_p)
            ids, logits = ids[:kept], logits[:kept]
    elif params.top_p < 1:
        ids, logits = _top_p_of_all(checked(row), params.top_p)
    else:
        highest = _highest(row)
        ids = _above(row, highest + math.log(params.min_p) if params.min_p > 0 else -math.inf)
        return ids, row[ids].astype(np.float64)
    return _min_p(ids, logits, params.min_p)


def _min_p(ids: Ids, logits: NDArray[np.float64], min_p: float) -> tuple[Ids, NDArray[np.float64]]:
    if min_p == 0:
        return ids, logits
    kept = int((logits >= logits[0] + math.log(min_p)).sum())
    return ids[:kept], logits[:kept]


def _survivors_of_all_cuts(row: Row, params: SamplingParams) -> tuple[Ids, NDArray[np.float64]]:
    """The whole order, each cut on what the one before it left."""
    ids = np.flatnonzero(np.isfinite(row))
    if params.top_n_sigma > 0:
        ids = ids[within_top_n_sigma(row[ids].astype(np.float64), params.top_n_sigma)]
    ids = ids[top_k(row[ids], params.top_k or len(ids))]
    logits = row[ids].astype(np.float64)
    if params.typical < 1:
        kept_ones = typical(logits, params.typical)
        ids, logits = ids[kept_ones], logits[kept_ones]
    if params.top_p < 1:
        kept = n_within_top_p(logits, log_total(logits), params.top_p)
        ids, logits = ids[:kept], logits[:kept]
    return _min_p(ids, logits, params.min_p)


def within_top_n_sigma(logits: NDArray[np.float64], n: float) -> NDArray[np.bool_]:
    """Which of the finite `logits` lie within `n` standard deviations of the highest: Tang et al.,
    "Top-nσ", arXiv 2411.07641."""
    kept: NDArray[np.bool_] = logits >= logits.max() - n * logits.std()
    return kept


def typical(logits: NDArray[np.float64], mass: float) -> Ids:
    """Indices, ascending, of the tokens whose surprise is nearest to the entropy and that hold more than
    `mass`: Meister et al., "Locally typical sampling", arXiv 2202.00666."""
    log_p = logits - log_total(logits)
    p = np.exp(log_p)
    order = np.argsort(np.abs(-log_p + (p * log_p).sum()), kind="stable")
    kept = int(np.searchsorted(np.cumsum(p[order]), mass, side="right")) + 1
    return np.sort(order[:kept])


def top_k(row: Row, k: int) -> Ids:
    """The `k` most likely tokens, most likely first, equal ones by id, shape [k]; fewer if fewer are finite."""
    return _top_k(row, k)[0]


def _top_k(row: Row, k: int) -> tuple[Ids, float]:
    """The `top_k`, and the highest logit: NaN if there is one anywhere in the row.

    The row is dealt into groups; the k-th largest of the groups' maxima has at least k tokens at or
    above it, so only the k groups with such a maximum (and what was left over) hold candidates, and
    all others are read just once.
    """
    n_groups = max(k, len(row) // _GROUP)
    depth = len(row) // n_groups
    if depth < 2:
        ids, highest = np.arange(len(row)), float(row.max())
    else:
        groups = row[: depth * n_groups].reshape(depth, n_groups)
        maxima = groups.max(axis=0)
        left_over = row[depth * n_groups :]
        highest = float((np.append(maxima, left_over) if len(left_over) else maxima).max())
        threshold = np.partition(maxima, n_groups - k)[n_groups - k]
        high = np.flatnonzero(maxima >= threshold)
        if len(high) > 4 * k:  # many equal ones, such as minus infinity
            ids = np.flatnonzero(row >= threshold)
        else:
            member, place = np.divmod(np.flatnonzero(groups.take(high, axis=1) >= threshold), len(high))
            ids = member * n_groups + high[place]
            if len(left_over):
                ids = np.append(ids, np.flatnonzero(left_over >= threshold) + depth * n_groups)
    order = np.argsort(-row[ids], kind="stable")
    ids = ids[order[:k]]
    return ids[np.isfinite(row[ids])], highest


def n_within_top_p(logits: NDArray[np.float64], log_of_total: float, top_p: float) -> int:
    """How many of these tokens, most likely first, make up `top_p`; the one that reaches it is kept."""
    cumulative = np.cumsum(np.exp(logits - log_of_total))
    return min(int(np.searchsorted(cumulative, top_p)) + 1, len(logits))


def log_total(logits: Row | NDArray[np.float64]) -> float:
    """log of the sum of exp: what turns logits [n] into log-probabilities."""
    highest = float(logits.max())
    return highest + math.log(float(np.exp(logits - logits.dtype.type(highest)).sum(dtype=np.float64)))


def probability(row: Row, token: int) -> float:
    """The token's untempered, uncut probability in the whole row."""
    return math.exp(float(row[token]) - log_total(row))


def _top_p_of_all(row: Row, top_p: float) -> tuple[Ids, NDArray[np.float64]]:
    log_of_total = log_total(row)
    n = min(_FIRST_TOP_P_CANDIDATES, len(row))
    while True:
        ids = top_k(row, n)
        logits = row[ids].astype(np.float64)
        if n == len(row) or np.exp(logits - log_of_total).sum() >= top_p:
            kept = n_within_top_p(logits, log_of_total, top_p)
            return ids[:kept], logits[:kept]
        n = min(n * 8, len(row))


def _above(row: Row, lowest: float) -> Ids:
    if lowest == -math.inf:
        return np.flatnonzero(np.isfinite(row))
    return np.flatnonzero(row >= np.float32(lowest))


def _nothing_to_choose(highest: float) -> DecodeFailed:
    if highest == -math.inf:
        return NothingAllowed("No token may come here.", hint="Ban fewer tokens, or run with --log FILE.")
    return DecodeFailed(
        "The model's output contains NaN.",
        hint="The file may be damaged, or its layers overflow on this device; try --ngl 0 or another quantization.",
    )
