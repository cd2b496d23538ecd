"""An index of all passages of a text that grows with it: where the end of the text stood before."""

from collections.abc import Iterable

from specdec_cli.drafters.ngram.odds import Agreement

_START = 0
"""The state of the empty passage."""
_NONE = -1
_PASSAGES_MARKED = 64
"""A place is noted for so many passages that end there, the longest first. Only text that repeats itself more often
than that has more, and there an older place says the same as a newer one."""


class SuffixIndex:
    """The suffix automaton of a growing text (Blumer et al., "The smallest automaton recognizing the subwords of a
    text", 1985), with the most recent place of every passage.

    A state stands for passages that end at the same places; its link leads to the longest shorter passage that ends
    at others too. So the link of the whole text's state is the longest ending that stood in the text before. A token
    costs the same, on the average, however long the text is.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self.n_steps = 0
        self._last = _START
        # By state. Nearly all have one token that follows: a dictionary for each would take most of the memory.
        self._lengths = [0]
        self._links = [_NONE]
        self._places = [0]
        self._counts = [0]
        self._first_tokens = [_NONE]
        self._first_nexts = [_NONE]
        self._others: dict[int, dict[int, int]] = {}
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """The text goes on with all of these."""
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """The text goes on."""
        self._mark()
        lengths, links = self._lengths, self._links
        firsts, first_nexts, others = self._first_tokens, self._first_nexts, self._others
        self.tokens.append(token)
        new = self._state(len(self.tokens), _START, 0, 0)
        state, found = self._last, _NONE
        while state != _NONE:
            first = firsts[state]
            if first == token:
                found = first_nexts[state]
                break
            if first == _NONE:
                firsts[state], first_nexts[state] = token, new
            else:
                found = others.setdefault(state, {}).setdefault(token, new)
                if found != new:
                    break
            state = links[state]
            self.n_steps += 1
        if state != _NONE:
            links[new] = found if lengths[found] == lengths[state] + 1 else self._split(state, token, found)
        self._last = new

    def match(self) -> int:
        """The state of the longest ending of the text that stood in it before."""
        return max(self._links[self._last], _START)

    def length(self, state: int) -> int:
        """Tokens of the state's longest passage."""
        return self._lengths[state]

    def place(self, state: int) -> int:
        """Where the text went on after the passage, the last time before its end: an index into `tokens`."""
        return self._places[state]

    def agreement(self, state: int) -> Agreement:
        """What followed the passage where it stood before."""
        if state in self._others:
            return "differ"
        return "agree" if self._counts[state] > 1 else "once"

    def step(self, state: int, token: int) -> int:
        """The state of the passage with one more token. Raises KeyError where that never stood in the text."""
        found = self._next(state, token)
        if found == _NONE:
            raise KeyError(token)
        return found

    def _next(self, state: int, token: int) -> int:
        """The state of the passage with one more token, or none."""
        if self._first_tokens[state] == token:
            return self._first_nexts[state]
        others = self._others.get(state)
        return others.get(token, _NONE) if others is not None else _NONE

    def _mark(self) -> None:
        """Note the text's end for the passages that end there; at the next token, so that `place` is always before."""
        places, counts, links, state = self._places, self._counts, self._links, self._last
        place = len(self.tokens)
        for _ in range(_PASSAGES_MARKED):
            if state <= _START:
                return
            places[state] = place
            counts[state] += 1
            state = links[state]
            self.n_steps += 1

    def _state(self, length: int, link: int, place: int, count: int) -> int:
        self._lengths.append(length)
        self._links.append(link)
        self._places.append(place)
        self._counts.append(count)
        self._first_tokens.append(_NONE)
        self._first_nexts.append(_NONE)
        return len(self._lengths) - 1

    def _split(self, state: int, token: int, found: int) -> int:
        """A state of its own for the shorter passages of `found`, which from now on end at one place more."""
        links, first_tokens, first_nexts, others = self._links, self._first_tokens, self._first_nexts, self._others
        short = self._state(self._lengths[state] + 1, links[found], self._places[found], self._counts[found])
        first_tokens[short], first_nexts[short] = first_tokens[found], first_nexts[found]
        if found in others:
            others[short] = dict(others[found])
        while state != _NONE and self._next(state, token) == found:
            if first_tokens[state] == token:
                first_nexts[state] = short
            else:
                others[state][token] = short
            state = links[state]
            self.n_steps += 1
        links[found] = short
        return short
