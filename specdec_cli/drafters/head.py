"""Asks a trained head, which reads the target's hidden states and draws by the target's own rule and noise."""

from collections.abc import Sequence

from specdec_cli.decode.coupled import Rule
from specdec_cli.decode.sampling import checked
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Draft, Head, More, to_the_end
from specdec_cli.drafters.draw import DrawLoop, NextRow


class HeadDrafter:
    """Proposes what the head would write with the target's settings and seed.

    Its vocabulary is often a part of the target's: a draft also ends where the rule allows nothing that the head can
    draft. When its context is full it says so and proposes nothing.
    """

    def __init__(self, head: Head, rule: Rule, end_tokens: frozenset[int], *, p_min: float = 0.0) -> None:
        self.name = head.name
        self._head = head
        self._loop = DrawLoop("the head", rule, end_tokens, p_min=p_min)

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        head, start = self._head, len(tokens)
        if self._loop.failure is None and start > head.n_ctx - 1:
            return Draft(off_reason=f"the head's context of {head.n_ctx} tokens is full (--ctx-draft)")
        end = min(start + min(k, head.longest or k), head.n_ctx)

        def next_row(context: Tokens) -> NextRow:
            n = len(context)
            row = head.start(context, end - start) if n == start else head.advance(context[n - 1])
            return checked(row), head.confidence

        return self._loop.draft(Tokens.of(tokens), end, more, next_row)
