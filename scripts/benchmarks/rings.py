"""Rings of words with planted acceptance: what a draft that knows some of the steps must come to, counted.

A target goes round a ring; its draft knows the step after word i where `known[i]`, and takes another one elsewhere. So
which draft tokens are kept greedily depends on the places alone, and `counted` plays an answer without a model. Drawn
at random, a share of known steps gives theory's acceptance only on average: 504 tokens have a standard deviation of up
to 3 points. So `drawn` draws until the answer to be measured has it for every length within half a point.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_cli.bench.measure import Length
from specdec_cli.settings import AUTO

Known = NDArray[np.bool_]
"""Which steps of a ring the draft knows, shape [words]."""

NEAR = 0.005
"""Of theory's accepted / drafted, for every length."""
_MOST_DRAWS = 5_000
_GIVES_UP_AFTER = 16
"""Drafts in a row without an accepted token after which drafting ends."""


def lengths(text: str) -> list[Length]:
    """Whole numbers and "auto" between commas."""
    return [AUTO if word == AUTO else int(word) for word in text.split(",")]


def in_theory(share: float, k: int) -> float:
    """Accepted / drafted where every draft token has this chance, given that all before it were kept."""
    return sum(share ** (i + 1) for i in range(k)) / k


def counted(known: Sequence[bool], n: int, k: int) -> tuple[int, int]:
    """Drafted and accepted tokens of a greedy answer of `n` tokens from the first word on; (0, 0) if it gives up.

    The first round drafts nothing, and a draft leaves room for the target's own token.
    """
    drafted = accepted = failures = 0
    written = 1
    while written < n:
        room = min(k, n - written - 1)
        kept = 0
        while kept < room and known[(written + kept) % len(known)]:
            kept += 1
        if room:
            failures = 0 if kept else failures + 1
        if failures == _GIVES_UP_AFTER:
            return 0, 0
        drafted += room
        accepted += kept
        written += kept + 1
    return drafted, accepted


def drawn(share: float, n_words: int, n: int, ks: Sequence[int], near: float = NEAR, seed: int = 7) -> Known:
    """Places for a share of known steps, such that an answer of `n` tokens has theory's acceptance for each of `ks`.

    Raises ValueError where none of many draws does: then `n` is too small.
    """
    rng = np.random.default_rng(seed)
    for _ in range(_MOST_DRAWS):
        known = rng.permutation(n_words) < round(share * n_words)
        if all(_is_near(known.tolist(), n, k, in_theory(share, k), near) for k in ks):
            return known
    raise ValueError(f"No ring of {n_words} words has {share:g} within {near:g} over {n} tokens; use more of them.")


def _is_near(known: Sequence[bool], n: int, k: int, theory: float, near: float) -> bool:
    drafted, accepted = counted(known, n, k)
    return drafted > 0 and abs(accepted / drafted - theory) <= near
