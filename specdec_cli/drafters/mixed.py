"""Looks back in the text first, and asks a model where that promises more."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from specdec_cli.decode.types import Draft, Drafter, More, to_the_end


class Turns(Protocol):
    """Says what the sources are worth: tokens that a round should bring beyond one without a draft."""

    def turn(self, name: str) -> None:
        """What is drafted from here on comes from this source."""
        ...

    def worth(self, name: str) -> float:
        """Of asking this source, before it drafts; 0 or less if it should not be asked now."""
        ...

    def value(self) -> float:
        """Of what was drafted since the last turn; 0 if nothing was, or nothing worth verifying."""
        ...


class MixedDrafter:
    """Lookup costs next to nothing, so it is always asked; the model only where it should beat what was found.

    Without `turns` whatever lookup finds is taken.
    """

    def __init__(self, lookup: Drafter, model: Drafter, turns: Turns | None) -> None:
        self.name = f"{lookup.name}+{model.name}"
        self._lookup = lookup
        self._model = model
        self._turns = turns
        self.gave_up: str | None = None
        """Why the model drafts no more; lookup goes on."""

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        if self._turns is not None:
            self._turns.turn(self._lookup.name)
        found = self._ask(self._lookup, tokens, k, more)
        if self.gave_up is not None or not self._is_better(found):
            return found
        if self._turns is not None:
            self._turns.turn(self._model.name)
        drafted = self._ask(self._model, tokens, k, more)
        self.gave_up = drafted.off_reason
        return replace(drafted, off_reason=None)

    def _is_better(self, found: Draft) -> bool:
        """Whether the model should bring more than this draft."""
        if self._turns is None:
            return not found.tokens
        value = self._turns.value() if found.tokens else 0.0
        return self._turns.worth(self._model.name) > value

    @staticmethod
    def _ask(drafter: Drafter, tokens: Sequence[int], k: int, more: More) -> Draft:
        """Its draft, signed."""
        draft = drafter.propose(tokens, k, more)
        return replace(draft, source=draft.source or drafter.name) if draft.tokens else draft
