"""Lets the target guess ahead of the text in the same pass, and proposes what such guesses have said before."""

import random
from collections.abc import Sequence

from specdec_cli.drafters.ngram import taken
from specdec_cli.types import Branches, Draft, Logits, More, to_the_end
from specdec_cli.verify import Rule

DEFAULT_WINDOW = 8
"""Places ahead that are guessed at in every pass."""
DEFAULT_LENGTH = 4
"""Tokens of an n-gram. A pass evaluates window x (length - 1) tokens, one of which it evaluates anyway."""
_MOST_KEPT = 8
"""n-grams kept for each first token."""


class LookaheadDrafter:
    """Solves the places ahead by Jacobi iteration, and keeps the n-grams of `length` tokens met on the way.

    A level is a row of guesses at `window` places in a row, each level one place further on than the one before; there
    are `length` - 1. In every pass column i of the levels stands beside the text as a branch, behind the text and the
    first i guesses of the first level, and what the target chooses after it is a new guess: the column and that
    guess are an n-gram, and the new guesses are the next last level. A draft is the newest n-gram that begins with the
    last token of the text, then the one that begins with its last token, and so on. After Fu et al., "Break the
    Sequential Dependency of LLM Inference Using Lookahead Decoding", arXiv 2402.02057, which verifies several n-grams
    in a round; here it is one.

    Guesses are drawn by the rule, with the noise of their places. They never decide what the text is.
    """

    name = "lookahead"

    def __init__(self, rule: Rule, *, window: int = DEFAULT_WINDOW, length: int = DEFAULT_LENGTH) -> None:
        self._rule = rule
        self._window = window
        self._length = length
        self._levels: list[list[int]] = []
        self._n_guessed: int | None = None
        """Length of the text at the last guesses."""
        self._follows: dict[int, list[tuple[int, ...]]] = {}

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        tokens = list(tokens)
        if not self._levels:
            draw = random.Random(0)
            self._levels = [[draw.choice(tokens) for _ in range(self._window)] for _ in range(self._length - 1)]
        if self._n_guessed is not None:
            # The new guesses have moved every level on by one place already.
            self._move(len(tokens) - self._n_guessed - 1)
            self._n_guessed = None
        draft = tuple(taken(self._known_after(tokens[-1], k), more))
        return Draft(draft, beside=self._branches(tokens))

    def _move(self, n: int) -> None:
        """Let every level begin `n` places later; what falls out at the front is the guess at the new places."""
        n %= self._window
        self._levels = [level[n:] + level[:n] for level in self._levels]

    def _known_after(self, token: int, k: int) -> list[int]:
        """Up to `k` tokens that followed `token` in the n-grams, the newest first."""
        known: list[int] = []
        while len(known) < k and token in self._follows:
            known += self._follows[token][-1]
            token = known[-1]
        return known[:k]

    def _branches(self, tokens: list[int]) -> Branches:
        """The first level is a chain of which the text's last token is the first; from each hangs its column."""
        levels, window = self._levels, self._window
        ids, parents = levels[0][1:], list(range(-1, window - 2))
        for column in range(window):
            parent = column - 1
            for level in levels[1:]:
                ids.append(level[column])
                parents.append(parent)
                parent = len(ids) - 1
        return Branches(tuple(ids), tuple(parents), lambda rows: self._learn(tokens, rows))

    def _learn(self, tokens: list[int], rows: Logits) -> None:
        """Take the guesses after each column, `rows` [window, n_vocab]: leaves are columns, in order."""
        levels, first = self._levels, [tokens[-1], *self._levels[0][1:]]
        guesses = []
        for column, row in enumerate(rows):
            behind = [level[column] for level in levels[1:]]
            prefix = [*tokens, *first[1 : column + 1], *behind]
            guesses.append(self._rule.draw(row, prefix, len(tokens)).token)
            self._enter(first[column], (*behind, guesses[-1]))
        self._levels = [*levels[1:], guesses]
        self._n_guessed = len(tokens)

    def _enter(self, first: int, rest: tuple[int, ...]) -> None:
        """Make this the newest n-gram of those that begin with `first`."""
        kept = self._follows.setdefault(first, [])
        if rest in kept:
            kept.remove(rest)
        kept.append(rest)
        del kept[:-_MOST_KEPT]
