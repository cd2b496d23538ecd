"""Looks back in the text: what followed the longest passage at its end the last time that it stood there."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from specdec_cli.decode.types import Draft, More, to_the_end
from specdec_cli.drafters.ngram.odds import OF_A_PREDICTION, OF_EARLIER_TEXTS, Agreement, CopyOdds
from specdec_cli.drafters.ngram.predicted import PredictedText
from specdec_cli.drafters.ngram.store import NgramStore
from specdec_cli.drafters.ngram.suffix_index import SuffixIndex

LEAST_CHANCE = 0.4
"""Of a whole draft: a token is proposed only if it and all before it are right at least so often."""
LEAST_CHANCE_IF_WEIGHED = 0.05
"""The same where somebody weighs the chances against the time of a pass."""
TEXT, STORE, PREDICTION = "ngram", "store", "prediction"
"""Sources of drafts: the text itself, what was kept of earlier ones, and what the answer is said to repeat."""

Copy = Iterator[tuple[int, float]]
"""Tokens that may follow, each with its chance if all before it are right."""


class NgramDrafter:
    """Proposes what followed the longest earlier occurrence of the text's end, the most recent of them.

    The chance of each token is what matches of that length have been worth so far: it decides how long a match has to
    be, and how far it is followed. Where the earlier texts of `store` or the `predicted` one are likelier to be right,
    these are copied. After Saxena, "Prompt lookup decoding", 2023, and Hu et al., "SAM decoding", arXiv 2411.10666.

    The index grows with the text, so a call costs what the new tokens cost. A text that does not begin with what was
    indexed (a new conversation, a turn taken back) is read again; what was learnt of chances stays. A grammar forces at
    most `most_forced` tokens beside a draft.
    """

    name = "ngram"
    needs_only_text = True

    def __init__(
        self,
        *,
        least_chance: float = LEAST_CHANCE,
        store: NgramStore | None = None,
        predicted: PredictedText | None = None,
        most_forced: int = 0,
    ) -> None:
        self._least_chance = least_chance
        self._store = store
        self._predicted = predicted
        self._index = SuffixIndex()
        self._text_odds = CopyOdds()
        self._store_odds = CopyOdds(OF_EARLIER_TEXTS)
        self._predicted_odds = CopyOdds(OF_A_PREDICTION)
        self._from_the_store: list[tuple[int, int, Agreement]] = []
        self._most_forced = most_forced
        self._asked = 0
        self.n_indexed = 0

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:
        self._follow(tokens)
        self._asked = k
        source, copy = self._likelier()
        drafted = tuple(self._likely(islice(copy, k), more))
        return Draft(drafted, source=source if drafted else "")

    def _likelier(self) -> tuple[str, Copy]:
        """The source whose next token is likeliest, of equal ones the first, and what follows by it."""
        nothing: Copy = iter(())
        best, chosen = 0.0, (TEXT, nothing)
        for source, copy in ((TEXT, self._of_text()), (PREDICTION, self._of_prediction()), (STORE, self._of_store())):
            first = next(copy, None)
            if first is not None and first[1] > best:
                best, chosen = first[1], (source, chain([first], copy))
        return chosen

    def _likely(self, copy: Copy, more: More) -> Iterator[int]:
        """The tokens up to where the draft is not likely enough, or no more are wanted."""
        whole = 1.0
        for token, chance in copy:
            whole *= chance
            if whole < self._least_chance:
                return
            yield token
            if not more(chance):
                return

    def _of_text(self) -> Copy:
        """The text from the match on. Past its end it goes on with its own copy: a loop repeats."""
        index = self._index
        match = state = index.match()
        length, place = index.length(match), index.place(match)
        while length > 0:
            token = index.tokens[place]
            yield token, self._text_odds.chance(length, index.agreement(state))
            state, length, place = index.step(state, token), length + 1, place + 1
            if place == len(index.tokens):
                state, place = match, index.place(match)

    def _of_prediction(self) -> Copy:
        """The predicted text from the cursor on."""
        if self._predicted is not None:
            for token, length, agreement in self._predicted.continuation():
                yield token, self._predicted_odds.chance(length, agreement)

    def _of_store(self) -> Copy:
        """The earlier text from the match on, to its end. What it says is held against what comes."""
        if self._store is None:
            return
        for token, length, agreement in self._store.continuation(self._index.tokens):
            self._from_the_store.append((token, length, agreement))
            yield token, self._store_odds.chance(length, agreement)

    def _follow(self, tokens: Sequence[int]) -> None:
        """Index what is new. A piece longer than a draft, a token and what a grammar forces is a prompt's, of which
        nothing is learnt."""
        if not _goes_on(self._index.tokens, tokens):
            self._index = SuffixIndex()
        new = tokens[len(self._index.tokens) :]
        self.n_indexed += len(new)
        if len(new) <= self._asked + 1 + self._most_forced:
            self._learn_of_store(new)
            for token in new:
                self._learn_of_text(token)
                self._learn_of_prediction(token)
                self._index.append(token)
        else:
            self._index.extend(new)
            self._begin_prediction(new[-1])
        self._from_the_store.clear()

    def _learn_of_text(self, token: int) -> None:
        index, state = self._index, self._index.match()
        if length := index.length(state):
            is_right = index.tokens[index.place(state)] == token
            self._text_odds.observe(length, index.agreement(state), is_right)

    def _begin_prediction(self, first: int) -> None:
        """An answer begins with the token `first`."""
        if self._predicted is not None:
            self._predicted.restart()
            self._predicted.read(first)

    def _learn_of_prediction(self, token: int) -> None:
        if self._predicted is None:
            return
        if (expected := self._predicted.expected) is not None:
            self._predicted_odds.observe(expected.length, expected.agreement, expected.token == token)
        self._predicted.read(token)

    def _learn_of_store(self, new: Sequence[int]) -> None:
        for (copied, length, agreement), token in zip(self._from_the_store, new, strict=False):
            self._store_odds.observe(length, agreement, copied == token)
            if copied != token:
                return


def _goes_on(indexed: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether `tokens` begins with what was indexed, by its end and by samples ever farther before it.

    Nothing but speed is lost where the samples miss a change: a draft is only a guess.
    """
    n = len(indexed)
    return n <= len(tokens) and all(indexed[n - 2**i] == tokens[n - 2**i] for i in range(n.bit_length()))
