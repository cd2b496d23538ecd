"""Asks a trained head, which reads the target's hidden states and draws by the target's own rule and noise."""

from collections.abc import Sequence

from specdec_cli.decode.coupled import Drawn, Rule
from specdec_cli.decode.sampling import Row, argmax, checked, probability
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Distribution, Draft, Head, More, to_the_end
from specdec_cli.errors import DecodeFailed


class HeadDrafter:
    """Proposes what the head would write with the target's settings and seed.

    Stops at an end token, with `p_min` before a token that the head is less sure of (by its own measure where
    it was taught one), and where the rule allows nothing that the head can draft: its vocabulary is often a
    part of the target's. When its context is full, or once it has failed, it says so and proposes nothing.
    """

    def __init__(self, head: Head, rule: Rule, end_tokens: frozenset[int], *, p_min: float = 0.0) -> None:
        self.name = head.name
        self._head = head
        self._rule = rule
        self._end_tokens = end_tokens
        self._p_min = p_min
        self._off_reason: str | None = None

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        if self._off_reason is not None:
            return Draft(off_reason=self._off_reason)
        if len(tokens) > self._head.n_ctx - 1:
            return Draft(off_reason=f"the head's context of {self._head.n_ctx} tokens is full (--ctx-draft)")
        try:
            return self._continue(Tokens.of(tokens), k, more)
        except DecodeFailed as error:
            self._off_reason = f"the head failed: {error}"
            return Draft(off_reason=self._off_reason)

    def _continue(self, context: Tokens, k: int, more: More) -> Draft:
        start = len(context)
        end = min(start + min(k, self._head.longest or k), self._head.n_ctx)
        probs: list[Distribution] = []
        row = self._head.start(context, end - start)
        while True:
            taught = self._head.confidence
            wants_confidence = more is not to_the_end and taught is None
            drawn = self._draw(row, context, start, wants_confidence=wants_confidence)
            if drawn is None or (self._p_min > 0 and self._is_unsure(row, context, drawn)):
                break
            context = context.then((drawn.token,))
            if drawn.q is not None:
                probs.append(drawn.q)
            wants_more = more(drawn.confidence if taught is None else taught)
            if not wants_more or drawn.token in self._end_tokens or len(context) == end:
                break
            row = self._head.advance(drawn.token)
        return Draft(tuple(context[start:]), probs=tuple(probs) if probs else None)

    def _draw(self, row: Row, context: Sequence[int], start: int, *, wants_confidence: bool) -> Drawn | None:
        """The head's token; None if nothing is left of the row where it is one of numbers. Raises DecodeFailed."""
        checked(row)
        try:
            return self._rule.draw(row, context, start, wants_confidence=wants_confidence)
        except DecodeFailed:
            return None

    def _is_unsure(self, row: Row, context: Sequence[int], drawn: Drawn) -> bool:
        if self._head.confidence is not None:
            return self._head.confidence < self._p_min
        row = self._rule.law.adjusted(row, context)
        return probability(row, drawn.token if drawn.q is None else argmax(row)) < self._p_min
