"""Models that think first: the grammar begins where the thought has been closed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Grammar

MARKS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""What opens and closes a thought, in the templates of models that were taught to."""


@dataclass(frozen=True, slots=True)
class ThoughtTokens:
    """The single tokens that open and close a thought, those that may stand between it and the answer, and those that
    would end the text."""

    opening: int
    closing: int
    spaces: frozenset[int]
    end_tokens: frozenset[int]


class AfterThought:
    """A grammar that a thought may come before.

    A prompt that ends with an open thought leaves all tokens free until it is closed, but for an end of the text. Where
    the prompt opens none the model may do so with its first token, unless the prompt has closed one for it. A line
    break may stand between the thought and the answer.
    """

    def __init__(self, grammar: Grammar, tokens: ThoughtTokens, n_vocab: int) -> None:
        self._grammar = grammar
        self._tokens = tokens
        self._everything = np.ones(n_vocab, np.bool_)
        self._everything[list(tokens.end_tokens)] = False
        self._is_open = self._may_open = False
        self._asked = Tokens()
        self._closed_at: int | None = None

    def begin(self, prompt: Sequence[int]) -> None:
        self._grammar.begin(prompt)
        self._asked, self._closed_at = Tokens(), None
        tail = [token for token in prompt[-4:] if token not in self._tokens.spaces]
        last = tail[-1] if tail else None
        self._is_open = last == self._tokens.opening
        self._may_open = last not in (self._tokens.opening, self._tokens.closing)

    def allowed(self, tokens: Tokens, start: int, ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        begins = self._answer_begins(tokens, start)
        if begins is None:
            found: NDArray[np.bool_] = self._everything[ids]
            return found
        return self._grammar.allowed(tokens, begins, ids) | np.isin(ids, self._also(tokens, start, begins))

    def all_allowed(self, tokens: Tokens, start: int) -> NDArray[np.intp]:
        begins = self._answer_begins(tokens, start)
        if begins is None:
            return np.flatnonzero(self._everything)
        return np.union1d(self._grammar.all_allowed(tokens, begins), self._also(tokens, start, begins))

    def only(self, tokens: Tokens, start: int) -> int | None:
        begins = self._answer_begins(tokens, start)
        if begins is None or self._also(tokens, start, begins).size:
            return None
        return self._grammar.only(tokens, begins)

    def _answer_begins(self, tokens: Tokens, start: int) -> int | None:
        """Where the text that the grammar is about begins; None while the model thinks."""
        if not self._is_open and not (self._may_open and len(tokens) > start and tokens[start] == self._tokens.opening):
            return start
        closed = self._closed(tokens, start)
        if closed is None:
            return None
        begins = closed + 1
        return begins + (begins < len(tokens) and tokens[begins] in self._tokens.spaces)

    def _closed(self, tokens: Tokens, start: int) -> int | None:
        """Where the thought is closed. What was looked through before is not looked through again."""
        shared = max(self._asked.n_shared(tokens), start)
        if self._closed_at is None or self._closed_at >= shared:
            new = tokens[shared:]
            self._closed_at = shared + new.index(self._tokens.closing) if self._tokens.closing in new else None
        self._asked = tokens
        return self._closed_at

    def _also(self, tokens: Tokens, start: int, begins: int) -> NDArray[np.intp]:
        """What may come beside what the grammar allows."""
        if begins < len(tokens):
            return np.array([], np.intp)
        if begins == start:
            return np.array([self._tokens.opening] if self._may_open else [], np.intp)
        has_space = tokens[-1] in self._tokens.spaces
        return np.array([] if has_space else sorted(self._tokens.spaces), np.intp)
