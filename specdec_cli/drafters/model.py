"""Asks a smaller model, which chooses by the target's own rule and noise."""

from collections.abc import Sequence

from specdec_cli.errors import DecodeFailed
from specdec_cli.sampling import probability
from specdec_cli.types import Draft, Target
from specdec_cli.verify import SharedNoise


class ModelDrafter:
    """Proposes what the draft model would write with the target's settings, seed and noise.

    Stops at an end token, and before a token whose probability for the draft is below `p_min`.
    When its context is full, or once the draft model has failed, it says so and proposes nothing: a
    draft never ends a run.
    """

    name = "model"

    def __init__(self, session: Target, rule: SharedNoise, end_tokens: frozenset[int], *, p_min: float = 0.0) -> None:
        self._session = session
        self._rule = rule
        self._end_tokens = end_tokens
        self._p_min = p_min
        self._off_reason: str | None = None

    def propose(self, tokens: Sequence[int], k: int) -> Draft:
        if self._off_reason is not None:
            return Draft(off_reason=self._off_reason)
        if len(tokens) > self._session.n_ctx:
            return Draft(off_reason=f"the draft's context of {self._session.n_ctx} tokens is full (--ctx-draft)")
        try:
            return Draft(tuple(self._continue(list(tokens), k)))
        except DecodeFailed as error:
            self._off_reason = f"the draft model failed: {error}"
            return Draft(off_reason=self._off_reason)

    def _continue(self, context: list[int], k: int) -> list[int]:
        drafted: list[int] = []
        while len(drafted) < k and len(context) <= self._session.n_ctx:
            row = self._session.score(context, 1)[0]
            token = self._rule.choose(row, len(context))
            if self._p_min > 0 and probability(self._rule.allowed(row), token) < self._p_min:
                break
            drafted.append(token)
            context.append(token)
            if token in self._end_tokens:
                break
        return drafted
