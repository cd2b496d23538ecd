"""How many tokens to draft next, and when to stop drafting."""

from typing import Protocol

from specdec_cli.types import Round


class DraftLength(Protocol):
    """Chooses k from what past rounds showed."""

    @property
    def off_reason(self) -> str | None:
        """Why nothing is drafted any more; None while drafting goes on."""
        ...

    def next(self) -> int: ...

    def observe(self, round_: Round) -> None: ...


class FixedLength:
    """Always `k`, until `give_up_after` drafts in a row had not one token accepted."""

    def __init__(self, k: int, *, give_up_after: int = 16) -> None:
        self.off_reason: str | None = "-k 0" if k == 0 else None
        self._k = k
        self._give_up_after = give_up_after
        self._failures = 0

    def next(self) -> int:
        return 0 if self.off_reason else self._k

    def observe(self, round_: Round) -> None:
        if not round_.drafted:
            return
        self._failures = 0 if round_.n_accepted else self._failures + 1
        if self._failures == self._give_up_after:
            self.off_reason = f"no draft token was accepted in {self._give_up_after} drafts in a row"
