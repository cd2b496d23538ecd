"""Targets, drafters and a clock in pure numpy, for tests of the rule and its edges."""

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.types import Draft, Logits, Target

Choose = Callable[[NDArray[np.float32], Sequence[int]], int]
"""Picks the next token from a row of logits, shape [n_vocab], and the tokens before it."""


def greedy(row: NDArray[np.float32], _tokens: Sequence[int]) -> int:
    return int(row.argmax())


class FakeLM:
    """What the fake targets share: they count calls and rows, and refuse what a real model would.

    The rows of the last call are spoilt by the next, as the protocol allows, so that a caller that
    keeps them is found out.
    """

    def __init__(self, n_vocab: int, seed: int, n_ctx: int = 4096, scale: float = 1.5) -> None:
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.seed = seed
        self.scale = scale
        self.calls = 0
        self.rows = 0
        self._last: Logits = np.empty((0, n_vocab), np.float32)

    def row(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        """Logits after `prefix`, shape [n_vocab]."""
        raise NotImplementedError

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:
        assert 1 <= n_last <= len(tokens) <= self.n_ctx
        assert all(0 <= token < self.n_vocab for token in tokens)
        self.calls += 1
        self.rows += n_last
        self._last.fill(np.nan)
        ends = range(len(tokens) - n_last + 1, len(tokens) + 1)
        self._last = np.array([self.row(tokens[:end]) for end in ends], np.float32)
        return self._last


class TableLM(FakeLM):
    """Logits depend on the last token only: `table`, shape [n_vocab, n_vocab]."""

    def __init__(self, n_vocab: int, seed: int, n_ctx: int = 4096, scale: float = 1.5) -> None:
        super().__init__(n_vocab, seed, n_ctx, scale)
        self.table = np.random.default_rng(seed).normal(size=(n_vocab, n_vocab)) * scale

    def row(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        return self.table[prefix[-1]]


class HashLM(FakeLM):
    """Logits depend on every token before: two different prefixes have nothing in common."""

    def row(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        # Python salts the hashes of strings, not those of numbers: this one is the same in every run.
        rng = np.random.default_rng(hash((self.seed, *prefix)) % 2**64)
        return rng.normal(size=self.n_vocab) * self.scale


class ScriptedDrafter:
    """Returns the given drafts in turn, whatever k is, then empty ones. `asked` keeps every (tokens, k)."""

    name = "scripted"

    def __init__(self, *drafts: Draft | Sequence[int]) -> None:
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self._drafts = iter(drafts)

    def propose(self, tokens: Sequence[int], k: int, *_: object) -> Draft:
        self.asked.append((tuple(tokens), k))
        draft = next(self._drafts, Draft())
        return draft if isinstance(draft, Draft) else Draft(tuple(draft))


class PerfectDrafter:
    """Proposes what the target will choose. `lm` has the target's weights but is not the target itself."""

    name = "perfect"

    def __init__(self, lm: Target, choose: Choose = greedy) -> None:
        self.lm = lm
        self.choose = choose

    def propose(self, tokens: Sequence[int], k: int, *_: object) -> Draft:
        known = list(tokens)
        for _ in range(min(k, self.lm.n_ctx - len(tokens))):
            known.append(self.next_token(known))
        return Draft(tuple(known[len(tokens) :]))

    def next_token(self, tokens: Sequence[int]) -> int:
        return self.choose(self.lm.score(tokens, 1)[-1], tokens)


class WrongDrafter(PerfectDrafter):
    """Proposes at each place the token after the one that the target would choose there: all are rejected."""

    name = "wrong"

    def next_token(self, tokens: Sequence[int]) -> int:
        return (super().next_token(tokens) + 1) % self.lm.n_vocab


class FakeHead:
    """A trained head that says what `lm` says of the tokens in `drafts` (None: of all) and minus infinity of others.

    `failure` is raised by the first call after `calls_left` others. The draft so far is in `read`.
    """

    def __init__(
        self,
        lm: FakeLM,
        *,
        name: str = "eagle3",
        drafts: Sequence[int] | None = None,
        longest: int | None = None,
        confidences: Sequence[float] = (),
        failure: Exception | None = None,
        calls_left: int = 0,
    ) -> None:
        self.name = name
        self.n_ctx = lm.n_ctx
        self.longest = longest
        self.confidence: float | None = None
        self.asked: list[int] = []
        self.read: list[int] = []
        self._lm = lm
        self._drafts = drafts
        self._confidences = confidences
        self._failure = failure
        self._calls_left = calls_left
        self._start = 0

    def start(self, tokens: Sequence[int], k: int) -> NDArray[np.float32]:
        self.asked.append(k)
        self.read, self._start = list(tokens), len(tokens)
        return self._row()

    def advance(self, token: int) -> NDArray[np.float32]:
        self.read.append(token)
        return self._row()

    def _row(self) -> NDArray[np.float32]:
        self._calls_left -= 1
        if self._failure is not None and self._calls_left < 0:
            raise self._failure
        if self._confidences:
            self.confidence = self._confidences[len(self.read) - self._start]
        row = self._lm.score(self.read, 1)[0]
        if self._drafts is not None:
            kept = np.full_like(row, -np.inf)
            kept[list(self._drafts)] = row[list(self._drafts)]
            row = kept
        return row


class FakeClock:
    """The first reading is `now`; each is later than the one before by the next of `steps`, over and over."""

    def __init__(self, steps: Iterable[float] = (1.0,), now: float = 0.0) -> None:
        self.now = now
        self._steps = itertools.cycle(steps)

    def __call__(self) -> float:
        now = self.now
        self.advance(next(self._steps))
        return now

    def advance(self, seconds: float) -> None:
        self.now += seconds
