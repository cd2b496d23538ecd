"""Tokens in, whole characters out: UTF-8 is never cut, stop strings end the text across token borders."""

import codecs
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of text and the index (in emitted order) of the token that completed it."""

    text: str
    token_index: int


class Reply:
    """The text of one answer, built token by token.

    Text that may still turn out to be the start of a stop string, and bytes that are not yet a
    whole character, are held back until it is known what they are.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        end_tokens: Collection[int],
        stop_strings: Sequence[str] = (),
    ) -> None:
        self.tokens: list[int] = []
        self.stopped_by_string = False
        self._token_bytes = token_bytes
        self._end_tokens = end_tokens
        self._stop_strings = tuple(s for s in stop_strings if s)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[Piece] = []
        self._ready: list[Piece] = []
        self._taken: list[str] = []

    def push(self, token: int) -> bool:
        """Add an emitted token; True when the answer ends with it."""
        index = len(self.tokens)
        self.tokens.append(token)
        if token in self._end_tokens:
            return True
        text = self._decoder.decode(self._token_bytes(token))
        if not text:
            return False
        if not self._stop_strings:
            self._ready.append(Piece(text, index))
            return False
        self._held.append(Piece(text, index))
        return self._settle()

    @property
    def text(self) -> str:
        """All that was taken so far."""
        return "".join(self._taken)

    def take(self) -> list[Piece]:
        """The text that has become certain since the last call."""
        ready, self._ready = self._ready, []
        self._taken += [p.text for p in ready]
        return ready

    def close(self) -> list[Piece]:
        """The last of the text: nothing can complete a held-back stop string any more."""
        self._decoder.reset()  # half a character, cut off by the limit: it is nobody's text
        self._ready += self._held
        self._held = []
        return self.take()

    def _settle(self) -> bool:
        held = "".join(p.text for p in self._held)
        # The one that is complete first, as if characters came one by one: token borders must not matter.
        found = [(at + len(s), at) for s in self._stop_strings if (at := held.find(s)) >= 0]
        if found:
            self._release(min(found)[1])
            self._held = []
            self._decoder.reset()
            self.stopped_by_string = True
            return True
        self._release(len(held) - longest_open_stop(held, self._stop_strings))
        return False

    def _release(self, n_chars: int) -> None:
        while n_chars > 0:
            piece = self._held[0]
            if len(piece.text) > n_chars:
                self._ready.append(Piece(piece.text[:n_chars], piece.token_index))
                self._held[0] = Piece(piece.text[n_chars:], piece.token_index)
                return
            self._ready.append(self._held.pop(0))
            n_chars -= len(piece.text)


def longest_open_stop(text: str, stop_strings: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of some stop string."""
    longest = 0
    for stop in stop_strings:
        for n in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:n]):
                longest = n
                break
    return longest
