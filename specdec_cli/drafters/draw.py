"""The loop of every drafter that has logits: draw by the target's own rule, ask whether to go on."""

from collections.abc import Callable

from specdec_cli.decode.coupled import Drawn, Rule
from specdec_cli.decode.sampler_chain import certain
from specdec_cli.decode.sampling import Row, argmax, checked, probability
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Distribution, Draft, More, to_the_end
from specdec_cli.errors import DecodeFailed, NothingAllowed

NextRow = tuple[Row, float | None]
"""Logits of what follows, and how sure the network itself says it is, from 0 to 1; None if it was not taught that."""


class DrawLoop:
    """Draws drafts with the target's settings and seed from rows that a network gives one after another.

    A draft ends at an end token, and with `p_min` before a token that is less likely than that for the network (or that
    it is less sure of, where it says so). A rule that needs q must not depend on the token drawn there (dropping the
    unlikely ones would change q): then a draft ends where even the likeliest token is below `p_min`. It also ends
    where the rule allows nothing that the network knows.

    Once the network has failed there are no more drafts, and `failure` says why: a draft never ends a run.

    With `skips_forced` the network is not asked where a grammar leaves one token: it reads those with the next one.
    """

    def __init__(
        self, who: str, rule: Rule, end_tokens: frozenset[int], *, p_min: float = 0.0, skips_forced: bool = False
    ) -> None:
        self.failure: str | None = None
        self._who = who
        self._rule = rule
        self._end_tokens = end_tokens
        self._p_min = p_min
        self._skips_forced = skips_forced

    def draft(self, context: Tokens, end: int, more: More, next_row: Callable[[Tokens], NextRow | None]) -> Draft:
        """What may follow `context`, up to `end` tokens with it. `next_row` gives the logits after the tokens so far,
        None if there are no more."""
        if self.failure is None:
            try:
                return self._drawn(context, end, more, next_row)
            except DecodeFailed as error:
                self.failure = f"{self._who} failed: {error}"
        return Draft(off_reason=self.failure)

    def _drawn(self, context: Tokens, end: int, more: More, next_row: Callable[[Tokens], NextRow | None]) -> Draft:
        start, probs = len(context), list[Distribution]()
        wants_confidence = more is not to_the_end
        for _ in range(end - start):
            drawn = self._forced(context) or self._drawn_next(context, start, next_row, wants_confidence)
            if drawn is None:
                break
            token, q, confidence = drawn
            context = context.then((token,))
            if q is not None:
                probs.append(q)
            if not more(confidence) or token in self._end_tokens:
                break
        return Draft(tuple(context[start:]), probs=tuple(probs) if probs else None)

    def _forced(self, context: Tokens) -> Drawn | None:
        """The one token that the grammar leaves; None if there are more, or if none is skipped."""
        if not self._skips_forced:
            return None
        try:
            token = self._rule.law.only(context)
        except NothingAllowed:
            return None
        return None if token is None else Drawn(token, None if self._rule.keeps_text else certain(token), 1.0)

    def _drawn_next(
        self, context: Tokens, start: int, next_row: Callable[[Tokens], NextRow | None], wants_confidence: bool
    ) -> Drawn | None:
        """The network's next token; None where the draft ends before it."""
        found = next_row(context)
        if found is None:
            return None
        row, taught = found
        try:
            drawn = self._rule.draw(row, context, start, wants_confidence=wants_confidence and taught is None)
        except NothingAllowed:
            checked(row)  # a network that gives no numbers at all has failed
            return None
        if self._p_min > 0 and self._is_unsure(row, taught, context, drawn):
            return None
        return drawn if taught is None else drawn._replace(confidence=taught)

    def _is_unsure(self, row: Row, taught: float | None, context: Tokens, drawn: Drawn) -> bool:
        if taught is not None:
            return taught < self._p_min
        row = self._rule.law.adjusted(row, context)
        return probability(row, drawn.token if drawn.q is None else argmax(row)) < self._p_min
