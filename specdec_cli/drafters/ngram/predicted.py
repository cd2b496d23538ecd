"""A text that the answer will mostly repeat, such as the file that it edits: a cursor goes along it with the answer."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specdec_cli.drafters.ngram.odds import Agreement

_LOOKED_AT = 32
"""Of the places after a token, the nearest so many."""
_LONGEST_MATCH = 16
"""Tokens before a place that are compared; longer matches are not told apart."""
_SURE = 3
"""Matching tokens from which on the cursor is believed: what lies before it was read, and is looked at last."""
_AHEAD = 2
"""Tokens more that must match where the text was read before."""
_BACK = 8
"""Tokens before the last sure place that count as ahead: behind a line that was added, its indent comes again."""
_NEAR = 32
"""Tokens ahead within which a single matching token is a place to go on from."""
_MOST_AHEAD = 64
"""Tokens that a continuation has at most: more than any draft."""
_START: Agreement = "differ"
"""An answer may begin as the text does, but most say something before."""


class Expected(NamedTuple):
    """The token at the cursor, how many tokens before it match, and whether equally long matches agree on it."""

    token: int
    length: int
    agreement: Agreement


class PredictedText:
    """The cursor moves on while the answer is what the text says. After a difference it goes to the next passage ahead
    that matches the end of the answer: the longest one, and of equally long ones the nearest; back to what was read
    before only where that matches better by far.

    As `NgramDrafter` it finds passages by their ends, but knows where in the text the answer is: of the places where
    a repeated line stands, that is the right one.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tuple(tokens)
        self._after: dict[int, list[int]] = {}
        for place, token in enumerate(self._tokens, 1):
            self._after.setdefault(token, []).append(place)
        self.restart()

    def restart(self) -> None:
        """Another answer begins."""
        self._answer: list[int] = []
        self._places = [0]
        self._length = 0
        self._sure = 0

    @property
    def expected(self) -> Expected | None:
        """What comes next if the text is right; None where the answer is not in the text."""
        return next(self.continuation(), None)

    def continuation(self) -> Iterator[Expected]:
        """The text from the cursor on."""
        if not self._places:
            return
        agreement, place = self._agreement(), self._places[0]
        for i, token in enumerate(self._tokens[place : place + _MOST_AHEAD]):
            yield Expected(token, self._length + i, agreement)

    def read(self, token: int) -> None:
        """The answer goes on with `token`."""
        self._answer.append(token)
        if not self._places or not self._has(self._places[0], token):
            self._realign(token)
            return
        self._places = [place + 1 for place in self._places if self._has(place, token)]
        self._length += 1
        if self._length >= _SURE and len(self._places) == 1:
            self._sure = self._places[0]

    def _has(self, place: int, token: int) -> bool:
        return place < len(self._tokens) and self._tokens[place] == token

    def _realign(self, token: int) -> None:
        """Go to the best place after `token`, or nowhere."""
        places, sure = self._after.get(token, []), self._sure
        first = bisect_right(places, sure - _BACK)
        found: dict[int, int] = {}
        for place in sorted(places[first : first + _LOOKED_AT], key=lambda place: abs(place - sure)):
            length = self._match_length(place)
            if length > 1 or place <= sure + _NEAR:
                found[place] = length + _AHEAD
        for place in reversed(places[max(first - _LOOKED_AT, 0) : first]):
            if (length := self._match_length(place)) >= _SURE:
                found[place] = length
        best = max(found.values(), default=0)
        self._places = [place for place, score in found.items() if score == best]
        self._length = self._match_length(self._places[0]) if found else 0

    def _agreement(self) -> Agreement:
        """Of the places where the answer may be, the cursor's among them."""
        if self._length == 0:
            return _START
        if len(self._places) == 1:
            return "once"
        return "agree" if len({self._tokens[place : place + 1] for place in self._places}) == 1 else "differ"

    def _match_length(self, place: int) -> int:
        length, longest = 1, min(_LONGEST_MATCH, place, len(self._answer))
        while length < longest and self._tokens[place - 1 - length] == self._answer[-1 - length]:
            length += 1
        return length
