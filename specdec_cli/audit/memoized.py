"""Models with memoized results: repeated draws at one position evaluate the model once."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from specdec_cli.decode.sampling import Row
from specdec_cli.decode.types import Branches, BranchingTarget, Head, Hidden, HiddenTarget, Logits, Target
from specdec_cli.drafters.medusa.heads import Heads

MOST_BYTES = 256 << 20
"""What each model keeps at most; beyond it rows are computed again."""

T = TypeVar("T")


class ShowingTarget(BranchingTarget, HiddenTarget, Protocol):
    """A target that can do all that drafters ask of one."""


class _Kept(Generic[T]):
    """What was found, by what was asked."""

    def __init__(self) -> None:
        self._found: dict[Hashable, T] = {}
        self._left = MOST_BYTES

    def get(self, key: Hashable, find: Callable[[], tuple[T, int]]) -> T:
        """What `find` gives, or gave before, with its bytes."""
        if key in self._found:
            return self._found[key]
        found, n_bytes = find()
        if n_bytes <= self._left:
            self._found[key] = found
            self._left -= n_bytes
        return found


class Remembered:
    """A model. As a target it scores in rounds of any drafter."""

    def __init__(self, session: Target) -> None:
        self._session = session
        self._rows = _Kept[Logits]()

    @property
    def n_ctx(self) -> int:
        return self._session.n_ctx

    @property
    def n_vocab(self) -> int:
        return self._session.n_vocab

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:
        def find() -> tuple[Logits, int]:
            return _copied(self._session.score(tokens, n_last))

        return self._rows.get((tuple(tokens), n_last), find)


class RememberedTarget(Remembered):
    """A target with its states and the trees beside its passes."""

    def __init__(self, session: ShowingTarget) -> None:
        super().__init__(session)
        self._target = session
        self._states = _Kept[Hidden | None]()

    def score_beside(self, tokens: Sequence[int], n_last: int, branches: Branches) -> Logits:
        def find() -> tuple[Logits, int]:
            after: list[Logits] = []
            taking = replace(branches, take=lambda rows: after.append(rows.copy()))
            return _copied(np.concatenate([self._target.score_beside(tokens, n_last, taking), *after]))

        rows = self._rows.get((tuple(tokens), n_last, branches.tokens, branches.parents), find)
        if len(rows) > n_last:
            branches.take(rows[n_last:])
        return rows[:n_last]

    def hidden(self, tokens: Sequence[int]) -> Hidden | None:
        """The state after any text but none: the first draw of a place has no pass before it."""

        def find() -> tuple[Hidden | None, int]:
            self._target.score(tokens, 1, hidden=True)
            state = self._target.hidden(tokens)
            return state, 0 if state is None else state.nbytes

        return self._states.get(tuple(tokens), find) if tokens else None


class RememberedHead:
    """A trained head, by the text, the length of the draft and the tokens drafted so far."""

    def __init__(self, head: Head) -> None:
        self.name = head.name
        self.n_ctx = head.n_ctx
        self.longest = head.longest
        self.confidence: float | None = None
        self._head = head
        self._rows = _Kept[tuple[Row, float | None]]()
        self._text: tuple[int, ...] = ()
        self._k = 0
        self._drafted: list[int] = []
        self._n_told = -1  # of the tokens drafted; below 0 where the head was not asked about this draft at all

    def start(self, tokens: Sequence[int], k: int) -> Row:
        self._text, self._k, self._drafted, self._n_told = tuple(tokens), k, [], -1
        return self._row()

    def advance(self, token: int) -> Row:
        self._drafted.append(token)
        return self._row()

    def _row(self) -> Row:
        row, self.confidence = self._rows.get((self._text, self._k, tuple(self._drafted)), self._find)
        return row

    def _find(self) -> tuple[tuple[Row, float | None], int]:
        """The head is told of the draft so far what it was not told yet."""
        if self._n_told < 0:
            row, self._n_told = self._head.start(self._text, self._k), 0
        for token in self._drafted[self._n_told :]:
            row = self._head.advance(token)
        self._n_told = len(self._drafted)
        return (row.copy(), self._head.confidence), row.nbytes


class RememberedHeads(Heads):
    """Medusa heads, by the target's state."""

    def __init__(self, heads: Heads) -> None:
        self._asked = heads
        self._found = _Kept[list[Row]]()

    def rows(self, state: Hidden, n: int) -> Iterator[Row]:
        def find() -> tuple[list[Row], int]:
            rows = list(self._asked.rows(state, n))
            return rows, sum(row.nbytes for row in rows)

        return iter(self._found.get((state.tobytes(), n), find))


def _copied(rows: Logits) -> tuple[Logits, int]:
    return rows.copy(), rows.nbytes
