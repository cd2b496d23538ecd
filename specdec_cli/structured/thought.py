"""Models that think first: the grammar begins where the thought has been closed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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

    def begin(self, prompt: Sequence[int]) -> None:
        self._grammar.begin(prompt)
        tail = [token for token in prompt[-4:] if token not in self._tokens.spaces]
        last = tail[-1] if tail else None
        self._is_open = last == self._tokens.opening
        self._may_open = last not in (self._tokens.opening, self._tokens.closing)

    def allowed(self, text: Sequence[int], ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        start = self._answer_begins(text)
        if start is None:
            found: NDArray[np.bool_] = self._everything[ids]
            return found
        return self._grammar.allowed(text[start:], ids) | np.isin(ids, self._also(text, start))

    def all_allowed(self, text: Sequence[int]) -> NDArray[np.intp]:
        start = self._answer_begins(text)
        if start is None:
            return np.flatnonzero(self._everything)
        return np.union1d(self._grammar.all_allowed(text[start:]), self._also(text, start))

    def only(self, text: Sequence[int]) -> int | None:
        start = self._answer_begins(text)
        if start is None or self._also(text, start).size:
            return None
        return self._grammar.only(text[start:])

    def _answer_begins(self, text: Sequence[int]) -> int | None:
        """Where the text that the grammar is about begins; None while the model thinks."""
        if not self._is_open and not (self._may_open and len(text) and text[0] == self._tokens.opening):
            return 0
        try:
            start = text.index(self._tokens.closing) + 1
        except ValueError:
            return None
        return start + (start < len(text) and text[start] in self._tokens.spaces)

    def _also(self, text: Sequence[int], start: int) -> NDArray[np.intp]:
        """What may come beside what the grammar allows."""
        if start < len(text):
            return np.array([], np.intp)
        if start == 0:
            return np.array([self._tokens.opening] if self._may_open else [], np.intp)
        has_space = text[-1] in self._tokens.spaces
        return np.array([] if has_space else sorted(self._tokens.spaces), np.intp)
