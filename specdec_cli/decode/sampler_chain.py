"""The law of the next token: what sampler settings make of a row of logits, given the text before it.

The order is llama.cpp's: bias and bans, penalties, DRY, then the cuts (top-n-sigma, top-k, typical,
top-p, min-p), temperature last. A grammar comes before the cuts, so that they see nothing but what
may come. Target and draft obey the same law, each with its own logits and the prefix it stands at.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.penalties import NO_BREAKERS, Breakers, discourage_repeats, penalize
from specdec_cli.decode.sampling import Ids, Row, SamplingParams, argmax, survivors, top_k
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Distribution, Grammar
from specdec_cli.errors import NothingAllowed

_FIRST_ASKED, _MOST_ASKED_FIRST = 64, 1024
"""A grammar is asked about so many of the likeliest tokens first, if at most so many are needed."""


class Law:
    """`n_shared` is the number of token ids that both models know: rows may be longer (padding), and
    nothing at or above it ever comes. `banned` ids never come either; `bias` is added to logits. At most
    `most_forced` tokens are `forced` at once.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        n_shared: int,
        banned: Sequence[int] = (),
        bias: Mapping[int, float] | None = None,
        breakers: Breakers = NO_BREAKERS,
        grammar: Grammar | None = None,
        most_forced: int = 0,
    ) -> None:
        self.params = params
        self.n_shared = n_shared
        self._bias = {t: b for t, b in {**(bias or {}), **dict.fromkeys(banned, -math.inf)}.items() if t < n_shared}
        self._biased = np.array(list(self._bias), np.intp)
        self._amounts = np.array(list(self._bias.values()), np.float32)
        self._breakers = breakers
        self._grammar = grammar
        self.most_forced = most_forced
        self._answer_begins = 0

    @property
    def longest_forced(self) -> int:
        """Tokens that may be `forced` at once: none without a grammar."""
        return self.most_forced if self._grammar is not None else 0

    @property
    def grammar(self) -> Grammar | None:
        """What the text keeps to, if anything."""
        return self._grammar

    def with_params(self, params: SamplingParams) -> "Law":
        """The same law with other sampler settings."""
        other = copy(self)
        other.params = params
        return other

    def for_drafts(self, n_tokens: int) -> "Law":
        """The same law for rows of `n_tokens`, those beyond `n_shared` of a draft alone. It obeys no grammar: what it
        leads to are guesses."""
        other = copy(self)
        other.n_shared, other._grammar = n_tokens, None
        return other

    def begin(self, prompt: Sequence[int]) -> None:
        """From here on the answer begins after `prompt`: what a grammar is about."""
        self._answer_begins = len(prompt)
        if self._grammar is not None:
            self._grammar.begin(prompt)

    def only(self, tokens: Sequence[int]) -> int | None:
        """The token that the grammar forces after `tokens`, if it is known that no other may come."""
        if self._grammar is None or not self.most_forced:
            return None
        token = self._grammar.only(Tokens.of(tokens), self._answer_begins)
        return token if token is not None and token < self.n_shared and token not in self._bias else None

    def forced(self, tokens: Sequence[int], room: int, *, n_drafted: int = 0) -> tuple[int, ...]:
        """The tokens that the grammar forces after `tokens`, one after the other: at most `room`, and with `n_drafted`
        before them no more than a pass has rows for."""
        text = Tokens.of(tokens)
        most = min(room, self.most_forced - n_drafted)
        while len(text) < len(tokens) + most and (token := self.only(text)) is not None:
            text = text.then((token,))
        return tuple(text[len(tokens) :])

    def may_end(self, tokens: Sequence[int], end_tokens: Collection[int]) -> bool | None:
        """Whether the grammar lets the text end after `tokens`; None without a grammar."""
        if self._grammar is None:
            return None
        try:
            ids = np.array(sorted(end_tokens), np.intp)
            return bool(self._grammar.allowed(Tokens.of(tokens), self._answer_begins, ids).any())
        except NothingAllowed:
            return False

    def adjusted(self, row: Row, tokens: Sequence[int]) -> Row:
        """The row after `tokens` without padding, with bias, bans, penalties and DRY, shape [n_shared]."""
        row = row[: self.n_shared]
        if len(self._biased):
            row = row.copy()
            row[self._biased] += self._amounts
        if self.params.has_penalties:
            row = penalize(row, tokens, self.params)
        if self.params.has_dry:
            row = discourage_repeats(row, tokens, self.params, self._breakers)
        return row

    def allowed(self, row: Row, tokens: Sequence[int]) -> Row:
        """The adjusted row with minus infinity for what the grammar forbids.

        Also for tokens so unlikely that the cuts would take them anyway, which it was not asked about.
        """
        row = self.adjusted(row, tokens)
        if self._grammar is None:
            return row
        text, n_needed = Tokens.of(tokens), self._candidates_needed()
        ids = self._likeliest_allowed(row, text, n_needed)
        if len(ids) < n_needed:
            ids = self._grammar.all_allowed(text, self._answer_begins)
            ids = ids[ids < len(row)]
            ids = ids[np.isfinite(row[ids])]
        if not len(ids):
            raise NothingAllowed(
                "The grammar allows no further token of this model.", hint="Check the grammar and --ban."
            )
        kept = np.full_like(row, -np.inf)
        kept[ids] = row[ids]
        return kept

    def _likeliest_allowed(self, row: Row, text: Tokens, n_needed: float) -> Ids:
        """What is allowed of the likeliest tokens, if that can be enough."""
        if n_needed > _MOST_ASKED_FIRST or self._grammar is None:
            return np.array([], np.intp)
        ids = top_k(row, min(max(_FIRST_ASKED, 4 * int(n_needed)), len(row)))
        return ids[self._grammar.allowed(text, self._answer_begins, ids)]

    def _candidates_needed(self) -> float:
        """How many of the likeliest allowed tokens the cuts look at; infinity for all."""
        params = self.params
        if params.top_n_sigma > 0:
            return math.inf
        if params.is_greedy and params.typical == 1:
            return 1
        return params.top_k or math.inf

    def candidates(self, row: Row, tokens: Sequence[int]) -> tuple[Ids, NDArray[np.float64]]:
        """The tokens that may follow `tokens` and their untempered logits, both [n]; one if greedy.

        Raises DecodeFailed if the row is not numbers, or the grammar leaves nothing.
        """
        return self.cut(self.allowed(row, tokens))

    def cut(self, row: Row) -> tuple[Ids, NDArray[np.float64]]:
        """What the cuts leave of a row that is `allowed` already: the same as `candidates`."""
        if self.params.is_greedy:
            best = self.best_of(row)
            return np.array([best]), row[[best]].astype(np.float64)
        return survivors(row, self.params)

    def best(self, row: Row, tokens: Sequence[int]) -> int:
        """The token that a greedy law has after `tokens`: the one of its `candidates`, without the arrays."""
        return self.best_of(self.allowed(row, tokens))

    def best_of(self, row: Row) -> int:
        """The same of a row that is `allowed` already."""
        return argmax(row) if self.params.typical == 1 else int(survivors(row, self.params)[0][0])

    def distribution(self, row: Row, tokens: Sequence[int]) -> Distribution:
        """The probabilities of what may follow `tokens`."""
        if self.params.is_greedy:
            return certain(self.best(row, tokens))
        ids, logits = self.candidates(row, tokens)
        order = np.argsort(ids, kind="stable")  # quick where they are sorted already
        weights = np.exp((logits[order] - logits.max()) / self.params.temperature)
        return Distribution(ids[order], weights / weights.sum())


def certain(token: int) -> Distribution:
    """One token, always."""
    return Distribution(np.array([token]), np.ones(1))
