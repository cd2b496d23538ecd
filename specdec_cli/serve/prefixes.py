"""Beginnings of earlier requests, kept with their state: whoever comes back with one need not have it read again.

The sessions keep the text they were given last. A chat whose turns alternate with requests of another prompt would lose
its text each time; here it is put aside before it is lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.tokens import shared_prefix
from specdec_cli.generation.pair import OpenHead, OpenModel, Pair

_LEAST = 32
"""Tokens that are read faster than a state is copied."""

State = tuple[list[int], NDArray[np.uint8]]
"""Tokens of one model, and the state [bytes] after them."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What both models knew of one text; the draft's is None where there is none to keep."""

    target: State
    draft: State | None

    @property
    def n_bytes(self) -> int:
        return sum(len(state[1]) for state in (self.target, self.draft) if state is not None)


class Prefixes:
    """At most `most_bytes` of states, the ones used last. Memories that cannot be cropped are not kept."""

    def __init__(self, pair: Pair, most_bytes: int) -> None:
        self._pair = pair
        self._most_bytes = most_bytes if pair.target.session.can_crop else 0
        self._kept: list[Kept] = []

    @property
    def n_bytes(self) -> int:
        return sum(one.n_bytes for one in self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def prepare(self, prompt: Sequence[int]) -> None:
        """Put into the sessions what is known of `prompt`, and aside what they would lose by it."""
        if not self._most_bytes:
            return
        ids = list(prompt)
        current = list(self._pair.target.session.cached)
        shared = shared_prefix(current, ids)
        best = max(self._kept, key=lambda one: shared_prefix(one.target[0], ids), default=None)
        in_best = shared_prefix(best.target[0], ids) if best is not None else 0
        if len(current) - shared >= _LEAST:
            self._put_aside(current)
        if best is not None and in_best >= shared + _LEAST:
            self._take_up(best)

    def _put_aside(self, current: list[int]) -> None:
        if any(len(current) - shared_prefix(one.target[0], current) < _LEAST for one in self._kept):
            return
        session = self._pair.target.session
        if session.cache_bytes * len(current) / session.n_ctx > self._most_bytes:
            return
        target, draft = _snapshot(self._pair.target), self._pair.draft
        if target is None:
            return
        kept = Kept(target, _snapshot(draft) if draft is not None else None)
        # What it continues is not needed beside it. The last tokens of an answer seldom come again as they were.
        self._kept = [one for one in self._kept if len(one.target[0]) - shared_prefix(one.target[0], current) >= _LEAST]
        self._kept.append(kept)
        while self._kept and self.n_bytes > self._most_bytes:
            del self._kept[0]

    def _take_up(self, kept: Kept) -> None:
        is_still_kept = any(one is kept for one in self._kept)
        self._kept = [one for one in self._kept if one is not kept]
        if not self._pair.target.session.restore(*kept.target):
            return
        if self._pair.draft is not None and kept.draft is not None:
            self._pair.draft.session.restore(*kept.draft)
        if is_still_kept:  # and was not pushed out by what has just been put aside
            self._kept.append(kept)


def _snapshot(opened: OpenModel | OpenHead) -> State | None:
    """None for a memory that cannot be cropped, or that holds nothing."""
    session = opened.session
    if not session.can_crop:
        return None
    tokens, state = session.snapshot(session.n_ctx)
    return (tokens, state) if tokens else None
