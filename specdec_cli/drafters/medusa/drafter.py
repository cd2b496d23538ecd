"""Asks heads that were trained on the target's last state: one small product for each token, no second model."""

from collections.abc import Iterator, Sequence

from specdec_cli.decode.coupled import Rule
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Draft, HiddenStates, More, to_the_end
from specdec_cli.drafters.draw import DrawLoop, NextRow
from specdec_cli.drafters.medusa.heads import Heads


class MedusaDrafter:
    """Proposes what each head makes of the state that gave the text's last token, drawn by the target's rule.

    Head i was trained to tell the token i + 1 after the next: the next is the text's last token, which the target has
    chosen itself, so head 0 tells the first of the draft. The heads do not see each other's tokens. A draft also ends
    where the heads do. Where the target has no such state (its last pass was about something else) nothing is proposed
    that time. After Cai et al., "Medusa", arXiv 2401.10774, as a chain, without its tree.
    """

    name = "medusa"
    wants_hidden = True

    def __init__(self, target: HiddenStates, heads: Heads, rule: Rule, end_tokens: frozenset[int]) -> None:
        self._target = target
        self._heads = heads
        self._loop = DrawLoop("the heads", rule, end_tokens)

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        context = Tokens.of(tokens)
        rows = self._rows(context, k)
        return self._loop.draft(context, len(context) + k, more, lambda _: next(rows, None))

    def _rows(self, context: Tokens, k: int) -> Iterator[NextRow]:
        """What the first `k` heads say; nothing where the target shows no state."""
        state = self._target.hidden(context.first(len(context) - 1))
        if state is not None:
            yield from ((row, None) for row in self._heads.rows(state, k))
