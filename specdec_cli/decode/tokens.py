"""Token lists that grow: whoever has seen the beginning of one need not look at it again."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TypeVar, overload

T = TypeVar("T", list[int], tuple[int, ...])


class Tokens(Sequence[int]):
    """A list of tokens, as a value that never changes: the beginning of a text, and a tail of its own.

    The text under it only ever grows, and is shared by the values that grew from one another. So two of
    them need no comparing as far as both reach into it, and to make one costs what is new of it, not what
    is there already.
    """

    __slots__ = ("_n", "_tail", "_text")

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._text = list(tokens)
        self._n = len(self._text)
        self._tail: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokens: Sequence[int]) -> "Tokens":
        """The same tokens; a list is copied."""
        return tokens if isinstance(tokens, Tokens) else cls(tokens)

    def then(self, more: Sequence[int]) -> "Tokens":
        """With `more` after it, as something that may be taken back, such as a draft. Costs the whole tail."""
        return self._on_the_text(self._n, (*self._tail, *more))

    def grown(self, more: Sequence[int]) -> "Tokens":
        """With `more` after it, for good."""
        if self._n < len(self._text):  # the text has gone on otherwise
            return Tokens([*self, *more])
        self._text += self._tail
        self._text += more
        return self._on_the_text(len(self._text), ())

    def first(self, n: int) -> "Tokens":
        """The first `n` tokens. Costs the whole tail."""
        return self._on_the_text(min(n, self._n), self._tail[: max(n - self._n, 0)])

    def n_shared(self, other: "Tokens") -> int:
        """Length of the longest common beginning."""
        if self._text is not other._text:
            return shared_prefix(list(self), list(other))
        if self._n == other._n:  # within a draft
            return self._n + shared_prefix(self._tail, other._tail)
        n = min(self._n, other._n)
        return n + shared_prefix(self[n:], other[n:])

    def _on_the_text(self, n: int, tail: tuple[int, ...]) -> "Tokens":
        other = Tokens.__new__(Tokens)
        other._text, other._n, other._tail = self._text, n, tail
        return other

    def __len__(self) -> int:
        return self._n + len(self._tail)

    def __iter__(self) -> Iterator[int]:
        return chain(islice(self._text, self._n), self._tail)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        n = self._n
        if isinstance(at, slice):
            start, stop, step = at.indices(n + len(self._tail))
            if step != 1:
                return list(self)[at]
            return [*self._text[start : min(stop, n)], *self._tail[max(start - n, 0) : max(stop - n, 0)]]
        at = range(n + len(self._tail))[at]
        return self._text[at] if at < n else self._tail[at - n]

    def __repr__(self) -> str:
        return f"Tokens({list(self)})"


def shared_prefix(a: T, b: T) -> int:
    """Length of the longest common beginning, by bisection on slices: they compare at C speed."""
    low, high = 0, min(len(a), len(b))
    if (a if high == len(a) else a[:high]) == b[:high]:  # nearly always: the text has only grown
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first place where two texts differ; a shorter one differs at its end."""
    differing = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differing, None if len(a) == len(b) else min(len(a), len(b)))
