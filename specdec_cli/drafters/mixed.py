"""n-gram lookup first; the draft model where it promises more."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from specdec_cli.decode.types import AheadDrafter, Draft, Drafter, HiddenDrafter, More, to_the_end


class Turns(Protocol):
    """Says which of two sources should draft. A round begins with the first one."""

    def passes_on(self, name: str, draft: Draft) -> bool:
        """Whether the source of this name should bring more than the `draft` of the first one, which may be empty.

        If so, it is its turn: what is told about draft tokens from here on is about its own.
        """
        ...


class MixedDrafter:
    """Lookup costs next to nothing, so it always drafts first; the model drafts where it should beat what was found.

    Without `turns` any draft that lookup finds is taken.
    """

    def __init__(self, lookup: Drafter, model: Drafter, turns: Turns | None) -> None:
        self.name = f"{lookup.name}+{model.name}"
        self._lookup = lookup
        self._model = model
        self._turns = turns
        self.gave_up: str | None = None
        """Why the model drafts no more; lookup goes on."""

    @property
    def wants_hidden(self) -> bool:
        return isinstance(self._model, HiddenDrafter) and self._model.wants_hidden

    @property
    def needs_only_text(self) -> bool:
        return all(isinstance(one, AheadDrafter) and one.needs_only_text for one in (self._lookup, self._model))

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        found = self._ask(self._lookup, tokens, k, more)
        if self.gave_up is not None or not self._passes_on(found):
            return found
        drafted = self._ask(self._model, tokens, k, more)
        self.gave_up = drafted.off_reason
        return replace(drafted, off_reason=None)

    def _passes_on(self, found: Draft) -> bool:
        """Whether it is the model's turn."""
        if self._turns is None:
            return not found.tokens
        return self._turns.passes_on(self._model.name, found)

    @staticmethod
    def _ask(drafter: Drafter, tokens: Sequence[int], k: int, more: More) -> Draft:
        """Its draft, signed."""
        draft = drafter.propose(tokens, k, more)
        return replace(draft, source=draft.source or drafter.name) if draft.tokens else draft
