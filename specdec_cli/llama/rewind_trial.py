"""Tests whether a context can really undo tokens: llama.cpp may refuse, or claim success and be wrong."""

from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp
import numpy as np

from specdec_cli.decode.types import Logits
from specdec_cli.errors import DecodeFailed
from specdec_cli.llama.cached_prefix import CachedPrefix
from specdec_cli.llama.rewind import StartOver, Way
from specdec_cli.settings import ContextSettings

TRIED_POSITIONS = 8
"""Enough for the trial, in the smallest context."""
_SAME_SHARE = 0.5
_SAME = 0.01
"""Logits may differ by so much where the prefix hardly moves them."""

Score = Callable[[Sequence[int], int], Logits]


def goes_back(
    way: Way,
    context: Any,
    prefix: CachedPrefix,
    score: Score,
    *,
    n_vocab: int,
    settings: ContextSettings,
    most_at_once: int,
) -> bool:
    """Whether logits after going back are those of a text that was never longer, and nothing was started over.

    `score` evaluates tokens in this context and gives the last rows; `most_at_once` tokens go into one pass. Starting
    over always works.
    """
    if way.kind is StartOver:
        return True
    if llama_cpp.llama_n_rs_seq(context) < way.n_snapshots:
        return False
    try:
        return _tries(prefix, score, n_vocab, settings, most_at_once)
    except DecodeFailed:
        return False


def _tries(prefix: CachedPrefix, score: Score, n_vocab: int, settings: ContextSettings, most_at_once: int) -> bool:
    """Logits may differ as much as rounding makes them, so what another prefix does to them is the measure."""
    first, second, third, fourth, wrong = ((i + 1) * n_vocab // 7 for i in range(5))
    text, n_wrong = [first, second, third], min(settings.n_back, 2)
    if settings.max_rows > 1:
        n_wrong = min(n_wrong, most_at_once - 1)
        score(text + [wrong] * n_wrong, 1 + n_wrong)
    else:
        for n in range(n_wrong + 1):
            score(text + [wrong] * n, 1)
    back = score([*text, fourth], 1).copy()
    if prefix.n_resets:
        return False
    prefix.clear()
    straight = score([*text, fourth], 1).copy()
    other = score([*text, fourth, fourth], 1)
    error, difference = np.abs(back - straight).max(), np.abs(other - straight).max()
    return bool(error <= max(_SAME_SHARE * difference, _SAME))
