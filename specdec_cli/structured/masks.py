"""Which tokens may follow a text, for any text asked about, through llguidance.

Like a session, it is handed the whole text: what it shares with the text before stays consumed, the rest is rolled
back. Masks of the last positions are kept, because drafter and verification ask about the same ones.
"""

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from specdec_cli.decode.tokens import shared_prefix
from specdec_cli.errors import DecodeFailed

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
        self._matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
        self._ends = end_tokens
        self._end_ids = np.array(sorted(end_tokens), np.intp)
        self._n_vocab = tokenizer.vocab_size
        self._text: list[int] = []
        self._masks: dict[int, Mask] = {}  # by length of the text
        self._bits = allocate_token_bitmask(1, self._n_vocab)

    def begin(self, prompt: Sequence[int]) -> None:
        """Every answer is a text of its own; which one is asked about shows in the questions."""

    def allowed(self, text: Sequence[int], ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of `ids` [n] may follow `text`, shape [n]. Raises DecodeFailed for a text outside the grammar."""
        return self._mask(list(text))[ids]

    def all_allowed(self, text: Sequence[int]) -> NDArray[np.intp]:
        """All token ids that may follow `text`, ascending, shape [n]. Raises DecodeFailed as `allowed`."""
        return np.flatnonzero(self._mask(list(text)))

    def only(self, text: Sequence[int]) -> int | None:
        """The token that must follow `text`, if just one may. Raises DecodeFailed as `allowed`."""
        found = self.all_allowed(text)
        return int(found[0]) if len(found) == 1 else None

    def _mask(self, text: list[int]) -> Mask:
        shared = shared_prefix(self._text, text)
        if any(token in self._ends for token in text[shared:]):
            return np.ones(self._n_vocab, np.bool_)
        self._go_back(shared)
        new = text[shared:]
        n_consumed = self._matcher.try_consume_tokens(new)
        self._text += new[:n_consumed]
        if n_consumed < len(new):
            self._check()
            raise DecodeFailed("The text no longer follows the grammar.", hint="Please report this with the command.")
        if len(text) not in self._masks:
            self._masks[len(text)] = self._computed()
            if len(self._masks) > _KEPT:
                del self._masks[min(self._masks)]
        return self._masks[len(text)]

    def _go_back(self, length: int) -> None:
        n = len(self._text) - length
        if n == 0:
            return
        self._matcher.rollback(n)
        self._check()
        del self._text[length:]
        for later in [at for at in self._masks if at > length]:
            del self._masks[later]

    def _computed(self) -> Mask:
        fill_next_token_bitmask(self._matcher, self._bits)
        self._check()
        mask = np.unpackbits(self._bits.view(np.uint8)[0], bitorder="little")[: self._n_vocab].view(np.bool_)
        # Where nothing fits any more llguidance offers the end, whether or not the text is complete.
        if mask[self._end_ids].any() and not self._matcher.is_accepting():
            raise DecodeFailed("The grammar allows no token here.", hint="Check the grammar.")
        return mask

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = " ".join(self._matcher.get_error().split())[:200]
            raise DecodeFailed(f"The grammar failed: {reason}.", hint="Use a simpler grammar.")
