"""Which tokens may follow a text, for any text asked about, through llguidance.

Like a session, it is handed the whole text: what it shares with the text before stays consumed, the rest is rolled
back. Masks of the last positions are kept, because drafter and verification ask about the same ones.
"""

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from specdec_cli.decode.tokens import Tokens
from specdec_cli.errors import NothingAllowed

_KEPT = 64
"""Masks that are kept: more than a draft has positions."""

Mask = NDArray[np.bool_]
"""Whether each token is allowed, shape [n_vocab]."""


def parser_limits() -> LLParserLimits:
    """llguidance's own, with errors that do not quote the parser's state."""
    return LLParserLimits(verbose_errors=False)


class TokenMasks:
    """A grammar of llguidance's over the tokens of one model.

    After an end token everything is allowed: the text is over, and rows behind it are not used.
    """

    def __init__(self, tokenizer: LLTokenizer, grammar: str, end_tokens: frozenset[int]) -> None:
        # An error stays with a matcher for good, whatever is rolled back: this one is never asked, only copied.
        self._first = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
        self._matcher = self._first.deep_copy()
        self._ends = end_tokens
        self._end_ids = np.array(sorted(end_tokens), np.intp)
        self._n_vocab = tokenizer.vocab_size
        self._tokens, self._start = Tokens(), 0
        self._n_consumed = 0  # of the answer in them
        self._masks: dict[int, Mask] = {}  # by length of the answer
        self._bits = allocate_token_bitmask(1, self._n_vocab)

    def begin(self, prompt: Sequence[int]) -> None:
        """Every answer is a text of its own; which one is asked about shows in the questions."""

    def allowed(self, tokens: Tokens, start: int, ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of `ids` [n] may follow, shape [n]. Raises NothingAllowed for an answer outside the grammar."""
        return self._mask(tokens, start)[ids]

    def all_allowed(self, tokens: Tokens, start: int) -> NDArray[np.intp]:
        """All token ids that may follow, ascending, shape [n]. Raises NothingAllowed as `allowed`."""
        return np.flatnonzero(self._mask(tokens, start))

    def only(self, tokens: Tokens, start: int) -> int | None:
        """The token that must follow, if just one may. Raises NothingAllowed as `allowed`."""
        found = self.all_allowed(tokens, start)
        return int(found[0]) if len(found) == 1 else None

    def _mask(self, tokens: Tokens, start: int) -> Mask:
        shared = max(self._tokens.n_shared(tokens) - start, 0) if start == self._start else 0
        shared = min(shared, self._n_consumed)
        new = tokens[start + shared :]
        if not self._ends.isdisjoint(new):
            return np.ones(self._n_vocab, np.bool_)
        self._go_back(shared)
        self._tokens, self._start = tokens, start
        n_accepted = self._matcher.try_consume_tokens(new)
        self._n_consumed += n_accepted
        if n_accepted < len(new):
            self._check()
            raise NothingAllowed("The text no longer follows the grammar.", hint="Please report this with the command.")
        length = self._n_consumed
        if length not in self._masks:
            self._masks[length] = self._computed()
            if len(self._masks) > _KEPT:
                del self._masks[min(self._masks)]
        return self._masks[length]

    def _go_back(self, length: int) -> None:
        n = self._n_consumed - length
        if n == 0:
            return
        self._matcher.rollback(n)
        self._check()
        self._n_consumed = length
        for later in [at for at in self._masks if at > length]:
            del self._masks[later]

    def _computed(self) -> Mask:
        fill_next_token_bitmask(self._matcher, self._bits)
        self._check()
        mask = np.unpackbits(self._bits.view(np.uint8)[0], bitorder="little")[: self._n_vocab].view(np.bool_)
        # Where nothing fits any more llguidance offers the end, whether or not the text is complete.
        if mask[self._end_ids].any() and not self._matcher.is_accepting():
            raise NothingAllowed("The grammar allows no token here.", hint="Check the grammar.")
        return mask

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = " ".join(self._matcher.get_error().split())[:200]
            self._matcher, self._n_consumed = self._first.deep_copy(), 0
            self._masks.clear()
            raise NothingAllowed(f"The grammar failed: {reason}.", hint="Use a simpler grammar.")
