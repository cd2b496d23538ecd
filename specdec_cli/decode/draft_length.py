"""How many tokens to draft next, and when to stop drafting."""

from collections.abc import Sequence
from typing import Protocol

from specdec_cli.decode.types import Draft, Round, to_the_end

GIVE_UP_AFTER = 16
"""Drafts in a row without an accepted token after which a fixed length drafts no more."""


class DraftLength(Protocol):
    """Chooses k from what past rounds showed."""

    @property
    def off_reason(self) -> str | None:
        """Why nothing is drafted any more; None while drafting goes on."""
        ...

    @property
    def confidences(self) -> Sequence[float | None]:
        """What `more` was told of the last draft, if lengths are chosen by it."""
        ...

    def begin(self, n_prompt: int) -> None:
        """An answer to a prompt of so many tokens begins."""
        ...

    def next(self, n_tokens: int, room: int) -> int:
        """The most tokens to draft after a text of `n_tokens`, where `room` more can be of use."""
        ...

    def more(self, confidence: float | None) -> bool:
        """Called after each draft token, with how sure the drafter is of it: whether another is worth its time."""
        ...

    def keep(self, draft: Draft) -> int:
        """How many of the draft's tokens are worth verifying; asked where a shorter draft leaves the text the same."""
        ...

    def observe(self, round_: Round) -> None: ...


class FixedLength:
    """Always `k`, until `give_up_after` drafts in a row had not one token accepted."""

    def __init__(self, k: int, *, give_up_after: int = GIVE_UP_AFTER) -> None:
        self.off_reason: str | None = "-k 0" if k == 0 else None
        self._k = k
        self._give_up_after = give_up_after
        self._failures = 0

    more = staticmethod(to_the_end)
    confidences: Sequence[float | None] = ()

    def begin(self, n_prompt: int) -> None:
        pass

    def next(self, n_tokens: int, room: int) -> int:  # noqa: ARG002  (the protocol's names)
        return 0 if self.off_reason else min(self._k, room)

    def keep(self, draft: Draft) -> int:
        return len(draft.tokens)

    def observe(self, round_: Round) -> None:
        if not round_.n_drafted_by_source:
            return
        self._failures = 0 if round_.n_accepted_by_source else self._failures + 1
        if self._failures == self._give_up_after:
            self.off_reason = f"no draft token accepted in {self._give_up_after} drafts in a row"
