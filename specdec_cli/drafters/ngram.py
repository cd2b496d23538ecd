"""Looks back in the text: what followed the last time these tokens stood here (prompt lookup)."""

from collections.abc import Iterable, Iterator, Sequence

from specdec_cli.tokens import Tokens
from specdec_cli.types import Draft, More, to_the_end

DEFAULT_MATCH = 3
"""Tokens that must agree. With two, chance matches cost more wide passes than they save."""


class NgramDrafter:
    """Proposes what followed the most recent earlier occurrence of the last `match` tokens.

    The index grows with the text: every n-gram is entered once, and only a text that no longer
    begins with what was indexed (a new conversation, say) is read again. After Saxena, "Prompt
    lookup decoding", 2023.
    """

    name = "ngram"

    def __init__(self, match: int = DEFAULT_MATCH) -> None:
        self._match = match
        self._seen = Tokens()
        self._follows: dict[tuple[int, ...], int] = {}
        self._n_indexed = 0
        self.n_entered = 0

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        self._index(Tokens.of(tokens))
        start = self._follows.get(tuple(tokens[-self._match :]))
        return Draft() if start is None else Draft(tuple(taken(_copied(tokens, start, k), more)))

    def _index(self, tokens: Tokens) -> None:
        """Enter every n-gram that has a successor; the last one of the text has none yet."""
        if self._seen.n_shared(tokens) < len(self._seen):
            self._follows.clear()
            self._n_indexed = 0
        for end in range(max(self._n_indexed, self._match), len(tokens)):
            self._follows[tuple(tokens[end - self._match : end])] = end
            self.n_entered += 1
        self._n_indexed = len(tokens)
        self._seen = tokens


def taken(tokens: Iterable[int], more: More) -> Iterator[int]:
    """The tokens up to the first after which no more are wanted."""
    for token in tokens:
        yield token
        if not more(None):
            return


def _copied(tokens: Sequence[int], start: int, k: int) -> tuple[int, ...]:
    """`k` tokens from `start` on. Past the end of the text it goes on with its own copy: a loop repeats."""
    copy = list(tokens[start : start + k])
    while len(copy) < k:
        copy.append(copy[len(copy) - (len(tokens) - start)])
    return tuple(copy)
