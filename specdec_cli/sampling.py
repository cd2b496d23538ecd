"""Sampler settings, and which tokens of a row of logits survive their cuts.

The order is llama.cpp's: top-k, then top-p, then min-p, all on the untempered distribution, and
temperature last. Nothing here sorts or exponentiates a whole vocabulary unless the settings need it:
a threshold first finds the few tokens that can matter.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_cli.errors import DecodeFailed, UsageError

Row = NDArray[np.float32]
Ids = NDArray[np.intp]

_FIRST_TOP_P_CANDIDATES = 256
"""Top-p without top-k looks at this many tokens first; a few are nearly always enough."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Defaults are llama.cpp's. Temperature 0 is greedy; top-k 0, top-p 1 and min-p 0 cut nothing."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05

    def __post_init__(self) -> None:
        _require(
            self.temperature >= 0 and math.isfinite(self.temperature), "temperature", self.temperature, "0 or more"
        )
        _require(self.top_k >= 0, "top-k", self.top_k, "0 (off) or more")
        _require(0 < self.top_p <= 1, "top-p", self.top_p, "above 0 and at most 1 (off)")
        _require(0 <= self.min_p <= 1, "min-p", self.min_p, "from 0 (off) to 1")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def __str__(self) -> str:
        if self.is_greedy:
            return "greedy"
        return f"temperature {self.temperature:g}, top-k {self.top_k}, top-p {self.top_p:g}, min-p {self.min_p:g}"


def _require(holds: bool, name: str, value: float, allowed: str) -> None:
    if not holds:
        raise UsageError(f"{name} cannot be {value}.", hint=f"Use a value {allowed}.")


def argmax(row: Row) -> int:
    """The most likely token; of equal ones the lowest id. Raises DecodeFailed if the row is not numbers."""
    best = int(row.argmax())
    if not math.isfinite(row[best]):
        raise _not_numbers()
    return best


def survivors(row: Row, params: SamplingParams) -> tuple[Ids, NDArray[np.float64]]:
    """The tokens left by top-k, top-p and min-p, most likely first, and their logits, both [n].

    Without top-k and top-p they are in order of id. Raises DecodeFailed if the row is not numbers.
    """
    highest = float(row.max())  # NaN if there is one anywhere
    if not math.isfinite(highest):
        raise _not_numbers()
    if 0 < params.top_k < len(row):
        ids = top_k(row, params.top_k)
        logits = row[ids].astype(np.float64)
        if params.top_p < 1:
            kept = n_within_top_p(logits, log_total(logits), params.top_p)
            ids, logits = ids[:kept], logits[:kept]
    elif params.top_p < 1:
        ids, logits = _top_p_of_all(row, params.top_p)
    else:
        ids = _above(row, highest + math.log(params.min_p) if params.min_p > 0 else -math.inf)
        return ids, row[ids].astype(np.float64)
    if params.min_p > 0:
        kept = int((logits >= logits[0] + math.log(params.min_p)).sum())
        ids, logits = ids[:kept], logits[:kept]
    return ids, logits


def top_k(row: Row, k: int) -> Ids:
    """The `k` most likely tokens, most likely first, equal ones by id, shape [k]; fewer if fewer are finite.

    The row is dealt into groups; the k-th largest of the groups' maxima has at least k tokens at or
    above it, so it is a threshold that leaves few candidates at the price of one pass over the row.
    """
    threshold = -np.inf
    n_groups = max(k, len(row) // 64)
    if n_groups * 2 <= len(row):
        depth = len(row) // n_groups
        maxima = row[: depth * n_groups].reshape(depth, n_groups).max(axis=0)
        threshold = np.partition(maxima, n_groups - k)[n_groups - k]
    ids = np.flatnonzero(row >= threshold)
    order = np.argsort(-row[ids], kind="stable")
    ids = ids[order[:k]]
    return ids[np.isfinite(row[ids])]


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


def _not_numbers() -> DecodeFailed:
    return DecodeFailed(
        "The model's output is not a number.",
        hint="The file may be damaged, or its layers overflow on this device; try --ngl 0 or another quantisation.",
    )
