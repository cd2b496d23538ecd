"""Asks a model with another vocabulary, which draws by the target's own settings and noise."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.coupled import Rule, SharedNoise
from specdec_cli.decode.sampling import Row, probability
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Draft, More, Target, to_the_end
from specdec_cli.drafters.cross.reader import TextReader, Tokenizer, continuation
from specdec_cli.drafters.draw import DrawLoop, NextRow
from specdec_cli.errors import DecodeFailed, NothingAllowed
from specdec_cli.models.translation import Translation

_WHO = "the draft model"
_PIECES_FOR_A_TOKEN = 4
"""The draft's tokens that are drawn at most for each of the target's."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """What a draft with another vocabulary needs. `by_text` hands over text, not tokens that both have; the `reader`
    keeps what the draft has read of the text."""

    translation: Translation
    target: Tokenizer
    reader: TextReader
    by_text: bool


class Columns:
    """Puts the draft's logits under the target's ids. Behind these, if wanted, stand the draft's other tokens, which
    have ids of their own from `n_target` on."""

    def __init__(self, translation: Translation, *, with_others: bool) -> None:
        self.n_target = len(translation.target_pieces)
        pairs = np.array(translation.pairs, np.intp).reshape(-1, 2)
        others = np.setdiff1d(_texts_and_ends(translation), pairs[:, 1]) if with_others else np.array([], np.intp)
        self._places = np.concatenate([pairs[:, 0], self.n_target + np.arange(len(others))])
        self._sources = np.concatenate([pairs[:, 1], others])
        self._row: NDArray[np.float32] = np.full(self.n_target + len(others), -np.inf, np.float32)
        self._draft_ids = dict(zip(self._places.tolist(), self._sources.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self._row)

    def row(self, logits: Row) -> Row:
        """The draft's `logits` [n_draft] by the ids of `self`; minus infinity where it has no such token. Valid until
        the next call."""
        self._row[self._places] = logits[self._sources]
        return self._row

    def draft_id(self, token: int) -> int:
        """The draft's id of a token that was drawn from such a row."""
        own: int = self._draft_ids[token]
        return own


@functools.lru_cache(maxsize=2)
def _columns(translation: Translation, *, with_others: bool) -> Columns:
    """Made once for a pair: it takes a tenth of a second for 262,144 tokens."""
    return Columns(translation, with_others=with_others)


_MOST_SHARED = 0.97
"""Share of a text's tokens, in the language that has fewest, from which on tokens alone are handed over."""


_LEAST_SHARED = 0.5
"""The same in the language that has most, below which rules that need the draft's probabilities are refused."""


def shares_too_little(translation: Translation) -> bool:
    """Whether the two have too few tokens in common to draft with nothing else."""
    return max(share.target_known for share in translation.overlap().values()) < _LEAST_SHARED


def hands_over_text(translation: Translation) -> bool:
    """Whether text is to be handed over, since the two have too few tokens in common."""
    return min(share.target_known for share in translation.overlap().values()) < _MOST_SHARED


def _texts_and_ends(translation: Translation) -> NDArray[np.intp]:
    ends = translation.draft.end_tokens
    return np.array([i for i, piece in enumerate(translation.draft_pieces) if piece or i in ends], np.intp)


class SharedTokensDrafter:
    """Proposes tokens that both models have: full coupling, and a known q for the rules that need one.

    A draft begins where the text ends with a whole character.
    """

    name = "model"
    needs_only_text = True

    def __init__(
        self, session: Target, crossing: Crossing, rule: Rule, end_tokens: frozenset[int], *, p_min: float = 0.0
    ) -> None:
        self._session = session
        self._reader = crossing.reader
        self._columns = _columns(crossing.translation, with_others=False)
        self._loop = DrawLoop(_WHO, rule, end_tokens, p_min=p_min)

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        text = Tokens.of(tokens)
        read = self._reader.read(text)
        own, start, n_ctx = Tokens(read.tokens), len(text), self._session.n_ctx
        if self._loop.failure is None and len(own) > n_ctx:
            return _full(n_ctx)
        if read.pending or not len(own):
            return Draft()

        def next_row(context: Tokens) -> NextRow:
            drafted = [self._columns.draft_id(token) for token in context[start:]]
            return self._columns.row(self._session.score(own.then(drafted), 1)[0]), None

        return self._loop.draft(text, min(start + k, start + n_ctx - len(own) + 1), more, next_row)


class TextDrafter:
    """Proposes the draft's text in the target's tokens, for languages where the two have few in common.

    The draft draws token by token, under the target's id and so with its noise where the target has that token, at the
    position that the text so far has in the target's tokens. What the draft's last piece adds is held back while the
    text may still make other tokens of it, unless it is a token of both, or the target's tokens are the shorter ones.
    If the text so far ends inside a character, the draft has to begin with the same bytes.
    """

    name = "model"
    needs_only_text = True

    def __init__(
        self, session: Target, crossing: Crossing, rule: Rule, end_tokens: frozenset[int], *, p_min: float = 0.0
    ) -> None:
        self.failure: str | None = None
        self._session = session
        self._crossing = crossing
        self._columns = _columns(crossing.translation, with_others=True)
        self._rule = SharedNoise(rule.law.for_drafts(len(self._columns)), seed=rule.seed)
        self._end_tokens = end_tokens
        self._p_min = p_min
        translation = crossing.translation
        self._is_finer = len(translation.target_pieces) < len(translation.draft_pieces)

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        if self.failure is not None:
            return Draft(off_reason=self.failure)
        text = Tokens.of(tokens)
        read = self._crossing.reader.read(text)
        own, n_ctx = Tokens(read.tokens), self._session.n_ctx
        if len(own) > n_ctx:
            return _full(n_ctx)
        if not len(own):
            return Draft()
        try:
            return Draft(self._drawn(text, own, read.pending, k, more))
        except DecodeFailed as error:
            self.failure = f"{_WHO} failed: {error}"
            return Draft(off_reason=self.failure)

    def _drawn(self, text: Tokens, own: Tokens, pending: bytes, k: int, more: More) -> tuple[int, ...]:
        """The target's tokens of what the draft writes, as far as they are settled."""
        start, spelt, n_settled, confidence = len(text), b"", 0, 1.0
        proposed: tuple[int, ...] = ()
        for _ in range(min(_PIECES_FOR_A_TOKEN * k, self._session.n_ctx - len(own) + 1)):
            drawn = self._draw(text.then(proposed), own, start, wants_confidence=more is not to_the_end)
            if drawn is None:
                break
            token, sure = drawn
            own = own.then((self._columns.draft_id(token),))
            confidence *= 1.0 if sure is None else sure
            end = self._end(token)
            if end is not None:
                proposed = (*proposed, end)
                n_now = len(proposed)
            else:
                before, spelt = len(spelt), spelt + self._piece(token)
                if not spelt.startswith(pending[: len(spelt)]):
                    break
                proposed = self._target_tokens(spelt, pending)
                is_settled = self._is_finer or (bool(proposed) and proposed[-1] == token)
                n_now = len(proposed) if is_settled else self._n_within(proposed, before - len(pending))
            while n_settled < min(n_now, k):
                n_settled += 1
                told = confidence if more is not to_the_end and sure is not None else None
                confidence = 1.0
                if not more(told):
                    return proposed[:n_settled]
            if n_settled == k or end is not None:
                break
        return proposed[:n_settled]

    def _n_within(self, proposed: Sequence[int], n_bytes: int) -> int:
        """How many of the tokens end within so many bytes."""
        pieces, n = self._crossing.translation.target_pieces, 0
        for i, token in enumerate(proposed):
            n += len(pieces[token])
            if n > n_bytes:
                return i
        return len(proposed)

    def _draw(
        self, context: Tokens, own: Tokens, start: int, *, wants_confidence: bool
    ) -> tuple[int, float | None] | None:
        """A token by the ids of the columns, and how sure the draft is of it; None where it allows nothing, or is less
        sure than it has to be."""
        row = self._columns.row(self._session.score(own, 1)[0])
        try:
            token, _, sure = self._rule.draw(row, context, start, wants_confidence=wants_confidence)
        except NothingAllowed:
            return None
        if self._p_min > 0 and probability(self._rule.law.adjusted(row, context), token) < self._p_min:
            return None
        return token, sure

    def _end(self, token: int) -> int | None:
        """The target's end token, if this is one."""
        if token in self._end_tokens:
            return token
        own = self._columns.draft_id(token)
        translation = self._crossing.translation
        return translation.target_end(own) if own in translation.draft.end_tokens else None

    def _piece(self, token: int) -> bytes:
        return self._crossing.translation.draft_pieces[self._columns.draft_id(token)]

    def _target_tokens(self, spelt: bytes, pending: bytes) -> tuple[int, ...]:
        """The target's tokens for what follows `pending` in what is `spelt`, up to its last whole character."""
        pieces, text = self._crossing.translation.target_pieces, _whole(spelt)
        ids = continuation(self._crossing.target, text.decode())
        if pending:
            ids = self._after(pending, text, ids)
        n, kept = len(pending), 0
        for token in ids:  # bytes decide, not what the tokenizer makes of a text
            if not pieces[token] or not spelt.startswith(pieces[token], n):
                break
            n, kept = n + len(pieces[token]), kept + 1
        return tuple(ids[:kept])

    def _after(self, pending: bytes, text: bytes, ids: list[int]) -> list[int]:
        """Those of `ids`, the tokens of `text`, that follow the bytes `pending`; single bytes where none does."""
        pieces, known = self._crossing.translation.target_pieces, self._crossing.translation.target_ids
        n = 0
        for i, token in enumerate(ids):
            if n == len(pending):
                return ids[i:]
            n += len(pieces[token])
        rest = text[len(pending) :]
        n_bytes = next((i for i, byte in enumerate(rest) if byte & 0xC0 != 0x80), len(rest))
        single = [known.get(rest[i : i + 1]) for i in range(n_bytes)]
        if None in single:
            return []
        return [*(i for i in single if i is not None), *continuation(self._crossing.target, rest[n_bytes:].decode())]


def _whole(data: bytes) -> bytes:
    """Up to the last whole character; up to what is no text."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start]
    return data


def _full(n_ctx: int) -> Draft:
    return Draft(off_reason=f"the draft's context of {n_ctx} tokens is full (--ctx-draft)")
