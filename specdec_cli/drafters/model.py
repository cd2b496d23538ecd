"""Asks a smaller model, which draws by the target's own rule, settings and noise."""

from collections.abc import Sequence

from specdec_cli.decode.coupled import Rule
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Draft, More, Target, to_the_end
from specdec_cli.drafters.draw import DrawLoop, NextRow


class ModelDrafter:
    """Proposes what the draft model would write with the target's settings and seed.

    When its context is full it says so and proposes nothing.
    """

    name = "model"
    needs_only_text = True

    def __init__(self, session: Target, rule: Rule, end_tokens: frozenset[int], *, p_min: float = 0.0) -> None:
        self._session = session
        self._loop = DrawLoop("the draft model", rule, end_tokens, p_min=p_min, skips_forced=True)

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        n_ctx = self._session.n_ctx
        if self._loop.failure is None and len(tokens) > n_ctx:
            return Draft(off_reason=f"the draft's context of {n_ctx} tokens is full (--ctx-draft)")
        return self._loop.draft(Tokens.of(tokens), min(len(tokens) + k, n_ctx + 1), more, self._next_row)

    def _next_row(self, context: Tokens) -> NextRow:
        return self._session.score(context, 1)[0], None
