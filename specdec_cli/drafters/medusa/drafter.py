"""Asks heads that were trained on the target's last state: one small product for each token, no second model."""

from collections.abc import Sequence

from specdec_cli.decode.coupled import Rule
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Distribution, Draft, Hidden, HiddenStates, More, to_the_end
from specdec_cli.drafters.medusa.heads import Heads
from specdec_cli.errors import DecodeFailed


class MedusaDrafter:
    """Proposes what each head makes of the state that gave the text's last token, drawn by the target's rule.

    Head i was trained to tell the token i + 1 after the next: the next is the text's last token, which the target has
    chosen itself, so head 0 tells the first of the draft. The heads do not see each other's tokens. Stops at an end
    token and where the heads end. Where the target has no such state (its last pass was about something else) it
    proposes nothing that time; once its numbers are none it says so and proposes nothing any more. After Cai et al.,
    "Medusa", arXiv 2401.10774, as a chain, without its tree.
    """

    name = "medusa"
    wants_hidden = True

    def __init__(self, target: HiddenStates, heads: Heads, rule: Rule, end_tokens: frozenset[int]) -> None:
        self._target = target
        self._heads = heads
        self._rule = rule
        self._end_tokens = end_tokens
        self._off_reason: str | None = None

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        if self._off_reason is not None:
            return Draft(off_reason=self._off_reason)
        context = Tokens.of(tokens)
        state = self._target.hidden(context.first(len(context) - 1))
        if state is None:
            return Draft()
        try:
            return self._continue(context, state, k, more)
        except DecodeFailed as error:
            self._off_reason = f"the heads failed: {error}"
            return Draft(off_reason=self._off_reason)

    def _continue(self, context: Tokens, state: Hidden, k: int, more: More) -> Draft:
        start = len(context)
        probs: list[Distribution] = []
        wants_confidence = more is not to_the_end
        for row in self._heads.rows(state, k):
            token, q, confidence = self._rule.draw(row, context, start, wants_confidence=wants_confidence)
            context = context.then((token,))
            if q is not None:
                probs.append(q)
            if not more(confidence) or token in self._end_tokens:
                break
        return Draft(tuple(context[start:]), probs=tuple(probs) if probs else None)
