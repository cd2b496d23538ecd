"""Rounds in, text with origins out: UTF-8 is never cut, stop strings end the text across token borders."""

import codecs
import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from specdec_cli.decode.types import Origin, Round


@dataclass(frozen=True, slots=True)
class Span:
    """Text of one origin: that of the token which completed each character."""

    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Moment:
    """New text, in seconds after the first token, and how many tokens there are with it."""

    seconds: float
    spans: tuple[Span, ...]
    tokens: int


class Reply:
    """One answer, made from its rounds: its tokens with their origins, and its text.

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
        self.origins: list[Origin] = []
        self.stopped_by_string = False
        self._token_bytes = token_bytes
        self._end_tokens = end_tokens
        self._stop_strings = tuple(s for s in stop_strings if s)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[Span] = []
        self._ready: list[Span] = []
        self._taken = io.StringIO()

    def add(self, round_: Round) -> tuple[Round, list[Span]]:
        """Take in a round: the part of it that belongs to the answer, and the text that has become certain.

        A round in which a stop string is completed ends the answer there (its `finish` says so).
        """
        for n, (token, origin) in enumerate(zip(round_.tokens, round_.origins, strict=True), 1):
            self.tokens.append(token)
            self.origins.append(origin)
            if token not in self._end_tokens and self._push(token, origin):
                return round_.ending_after(n), self._take()
        return round_, self._take()

    @property
    def text(self) -> str:
        """All that has become certain so far."""
        return self._taken.getvalue()

    def close(self) -> list[Span]:
        """The last of the text: nothing can complete a held-back stop string any more."""
        self._decoder.reset()  # half a character, cut off by the limit: it is nobody's text
        for span in self._held:
            _append(self._ready, span)
        self._held = []
        return self._take()

    def _push(self, token: int, origin: Origin) -> bool:
        """Whether a stop string is complete with the token."""
        text = self._decoder.decode(self._token_bytes(token))
        if not text:
            return False
        if not self._stop_strings:
            _append(self._ready, Span(text, origin))
            return False
        self._held.append(Span(text, origin))
        return self._settle()

    def _take(self) -> list[Span]:
        ready, self._ready = self._ready, []
        for span in ready:
            self._taken.write(span.text)
        return ready

    def _settle(self) -> bool:
        held = "".join(span.text for span in self._held)
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
            span = self._held.pop(0)
            if len(span.text) > n_chars:
                self._held.insert(0, Span(span.text[n_chars:], span.origin))
            _append(self._ready, Span(span.text[:n_chars], span.origin))
            n_chars -= len(span.text)


def _append(spans: list[Span], span: Span) -> None:
    """Neighbours of one origin become one span."""
    if spans and spans[-1].origin == span.origin:
        spans[-1] = Span(spans[-1].text + span.text, span.origin)
    else:
        spans.append(span)


def longest_open_stop(text: str, stop_strings: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of some stop string."""
    longest = 0
    for stop in stop_strings:
        for n in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:n]):
                longest = n
                break
    return longest
