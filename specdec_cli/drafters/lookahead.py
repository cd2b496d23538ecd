"""Lets the target guess ahead of the text in the same pass, and proposes what such guesses have said before."""

import random
from collections.abc import Sequence

from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Branches, Draft, Logits, More, to_the_end

DEFAULT_WINDOW = 8
"""Places ahead that are guessed at in every pass."""
DEFAULT_LENGTH = 4
"""Tokens of an n-gram, at least 3. A pass evaluates window x (length - 1) tokens, one of which it evaluates anyway."""

MOST_NGRAMS = 1 << 15
"""That are kept: every pass adds up to two for each place, most of them never seen again."""

Ngram = tuple[int, ...]


class LookaheadDrafter:
    """Solves the places ahead by Jacobi iteration, and keeps the n-grams of `length` tokens met on the way.

    A level is a row of guesses at `window` places, each level one place further on than the one before; there are
    `length` - 1. In every pass column i of the levels stands beside the text as a branch, behind the text and the
    first i guesses of the first level, and the target's likeliest token after it is a new guess: the column and that
    guess are an n-gram, and the new guesses are the next last level. The n-grams of the text itself are kept as well.
    A draft is the newest n-gram that was seen after the last two tokens, or after the last alone, and so on from its
    end. After Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", arXiv
    2402.02057, which verifies several n-grams in a round and knows them by one token; here it is one, known by two.

    Guesses never decide what the text is. Ids from `n_shared` on are never guessed.
    """

    name = "lookahead"

    def __init__(self, n_shared: int, *, window: int = DEFAULT_WINDOW, length: int = DEFAULT_LENGTH) -> None:
        self._n_shared = n_shared
        self._window = window
        self._length = length
        self._levels: list[list[int]] = []
        self._follows: dict[Ngram, Ngram] = {}
        """By the last token and by the last two: what came after them, `length` - 1 tokens."""
        self._n_entered = 0

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        tokens = Tokens.of(tokens)
        if not self._levels:
            draw = random.Random(0)
            self._levels = [draw.choices(tokens, k=self._window) for _ in range(self._length - 1)]
        self._enter_text(tokens)
        draft: list[int] = []
        for token in self._known_after(tokens, k):
            draft.append(token)
            if not more(None):
                break
        return Draft(tuple(draft), beside=self._branches(tokens))

    def _enter_text(self, tokens: Tokens) -> None:
        """Enter the n-grams that came since; a text that is shorter than the last one is another."""
        start = self._n_entered if self._n_entered <= len(tokens) + 1 else 0
        new = tokens[max(start - self._length - 1, 0) :]  # with the n-gram before, and what was before that
        for end in range(max(start - len(tokens) + len(new), self._length), len(new) + 1):
            begin = end - self._length
            self._enter(new[max(begin - 1, 0) : begin], new[begin], tuple(new[begin + 1 : end]))
        self._n_entered = len(tokens) + 1

    def _enter(self, before: Sequence[int], first: int, rest: Ngram) -> None:
        """Make (`first`, *`rest`) the newest n-gram that begins with `first`, also after the token `before`, if any."""
        self._put((first,), rest)
        if before:
            self._put((*before, first), rest)

    def _put(self, after: Ngram, rest: Ngram) -> None:
        self._follows.pop(after, None)  # so that the order is that of age
        self._follows[after] = rest
        if len(self._follows) > MOST_NGRAMS:
            del self._follows[next(iter(self._follows))]

    def _known_after(self, tokens: Tokens, k: int) -> list[int]:
        """Up to `k` tokens from n-grams, each found by the end of the text with those before it."""
        known = tokens[-2:]
        start = len(known)
        while len(known) < start + k:
            rest = self._follows.get(tuple(known[-2:])) or self._follows.get((known[-1],))
            if rest is None:
                break
            known += rest
        return known[start : start + k]

    def _branches(self, tokens: Tokens) -> Branches:
        """The first level is a chain of which the text's last token is the first; from each hangs its column."""
        ids, parents = self._levels[0][1:], list(range(-1, self._window - 2))
        for column in range(self._window):
            parent = column - 1
            for level in self._levels[1:]:
                ids.append(level[column])
                parents.append(parent)
                parent = len(ids) - 1
        return Branches(tuple(ids), tuple(parents), lambda rows: self._learn(tokens, rows))

    def _learn(self, tokens: Tokens, rows: Logits) -> None:
        """Take the guesses after each column, `rows` [window, n_vocab]: the leaves are the columns, in order."""
        first = [*tokens[-2:], *self._levels[0][1:]]
        offset = len(first) - self._window  # where a text has only one token there is none before it
        guesses = [int(row[: self._n_shared].argmax()) for row in rows]
        for column, guess in enumerate(guesses):
            at = column + offset
            rest = (*(level[column] for level in self._levels[1:]), guess)
            self._enter(first[max(at - 1, 0) : at], first[at], rest)
        self._levels = [*self._levels[1:], guesses]
