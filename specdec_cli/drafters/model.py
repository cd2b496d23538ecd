"""Asks a smaller model, which draws by the target's own rule, settings and noise."""

from collections.abc import Sequence

from specdec_cli.decode.coupled import Rule
from specdec_cli.decode.sampling import Row, argmax, probability
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Distribution, Draft, More, Target, to_the_end
from specdec_cli.errors import DecodeFailed


class ModelDrafter:
    """Proposes what the draft model would write with the target's settings and seed.

    Stops at an end token, and with `p_min` before a token that is less likely for the draft. A rule
    that needs q must not depend on the token drawn there (dropping the unlikely ones would change q):
    then a draft stops where even the likeliest token is below `p_min`.
    When its context is full, or once the draft model has failed, it says so and proposes nothing: a
    draft never ends a run.
    """

    name = "model"

    def __init__(self, session: Target, rule: Rule, end_tokens: frozenset[int], *, p_min: float = 0.0) -> None:
        self._session = session
        self._rule = rule
        self._end_tokens = end_tokens
        self._p_min = p_min
        self._off_reason: str | None = None

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        if self._off_reason is not None:
            return Draft(off_reason=self._off_reason)
        if len(tokens) > self._session.n_ctx:
            return Draft(off_reason=f"the draft's context of {self._session.n_ctx} tokens is full (--ctx-draft)")
        try:
            return self._continue(Tokens.of(tokens), k, more)
        except DecodeFailed as error:
            self._off_reason = f"the draft model failed: {error}"
            return Draft(off_reason=self._off_reason)

    def _continue(self, context: Tokens, k: int, more: More) -> Draft:
        start = len(context)
        probs: list[Distribution] = []
        wants_confidence = more is not to_the_end
        while len(context) < start + k and len(context) <= self._session.n_ctx:
            row = self._session.score(context, 1)[0]
            token, q, confidence = self._rule.draw(row, context, start, wants_confidence=wants_confidence)
            if self._p_min > 0 and self._is_unsure(row, context, token, q):
                break
            context = context.then((token,))
            if q is not None:
                probs.append(q)
            if not more(confidence) or token in self._end_tokens:
                break
        return Draft(tuple(context[start:]), probs=tuple(probs) if probs else None)

    def _is_unsure(self, row: Row, context: Sequence[int], token: int, q: Distribution | None) -> bool:
        row = self._rule.law.adjusted(row, context)
        return probability(row, token if q is None else argmax(row)) < self._p_min
