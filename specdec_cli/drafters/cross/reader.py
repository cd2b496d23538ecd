"""The target's text in the draft's tokens: only what is new is read, and what was handed on is never read again."""

import codecs
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from specdec_cli.decode.tokens import Tokens

_LONGEST_TAIL = 192
"""Bytes of text that may still be cut otherwise; of a longer tail the first words are settled."""
_SHORTEST_TAIL = 48
_MOST_PROMPTS = 64
"""Prompts whose rendering in the draft's own chat format is remembered."""
_GUARD = "\n"


class Tokenizer(Protocol):
    """What is needed of a model."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...

    def token_bytes(self, token: int) -> bytes: ...


class Read(NamedTuple):
    """A text as the draft has it: its tokens, and bytes at the end that are no whole character yet."""

    tokens: tuple[int, ...]
    pending: bytes


def continuation(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text in the middle of another one: some tokenizers put a space before whatever they are given."""
    if not text:
        return []
    ids = tokenizer.tokenize(text, add_special=False, parse_special=False)
    if b"".join(map(tokenizer.token_bytes, ids)) == text.encode():
        return ids
    guard = tokenizer.tokenize(_GUARD, add_special=False, parse_special=False)
    guarded = tokenizer.tokenize(_GUARD + text, add_special=False, parse_special=False)
    return guarded[len(guard) :] if guarded[: len(guard)] == guard else ids


class TextReader:
    """Reads the target's tokens as the draft's. `pieces` [n_target] are the target's, `markers` the draft's id for each
    of the target's markers that it has; other markers are left out. `first` are the draft's tokens before any text.

    The end of the text may be cut otherwise once it goes on, so it stays open: what lies before the last words is
    settled. Text is settled once and for all, until another text is asked for.
    """

    def __init__(
        self, tokenizer: Tokenizer, pieces: Sequence[bytes], markers: Mapping[int, int], first: Sequence[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._pieces = pieces
        self._markers = markers
        self._first = tuple(first)
        self._prompts: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._seen = Tokens()
        self._settled = list(self._first)
        self._tail = b""

    def tell(self, prompt: Sequence[int], own: Sequence[int]) -> None:
        """`own` is how the draft's own chat template writes the conversation of this `prompt`."""
        self._prompts[tuple(prompt)] = tuple(own)
        if len(self._prompts) > _MOST_PROMPTS:
            del self._prompts[next(iter(self._prompts))]

    def read(self, tokens: Sequence[int]) -> Read:
        """The whole text in the draft's tokens."""
        tokens = Tokens.of(tokens)
        goes_on = tokens.n_shared(self._seen) == len(self._seen)
        prompt = self._known(tokens, beyond=len(self._seen) if goes_on else 0)
        if prompt is not None:
            self._begin(Tokens(prompt), self._prompts[prompt])
        elif not goes_on:
            self._begin(Tokens(), self._first)
        for token in tokens[len(self._seen) :]:
            self._take(token)
        self._seen = tokens
        text, pending = _whole_characters(self._tail)
        return Read((*self._settled, *self._cut(text)), pending)

    def _known(self, tokens: Tokens, *, beyond: int) -> tuple[int, ...] | None:
        """The longest remembered prompt that the text begins with, if it is longer than `beyond`."""
        found = [p for p in self._prompts if beyond < len(p) <= len(tokens) and tuple(tokens[: len(p)]) == p]
        return max(found, key=len, default=None)

    def _begin(self, prompt: Tokens, own: tuple[int, ...]) -> None:
        self._seen = prompt
        self._settled = list(own)
        self._tail = b""

    def _take(self, token: int) -> None:
        piece = self._pieces[token]
        if not piece:
            self._settle(len(self._tail))
            if token in self._markers:
                self._settled.append(self._markers[token])
            return
        self._tail += piece
        if len(self._tail) > _LONGEST_TAIL:
            self._settle(_word_end(self._tail, len(self._tail) - _SHORTEST_TAIL))

    def _settle(self, n: int) -> None:
        """The first `n` bytes of the tail stay as they are cut now."""
        self._settled += self._cut(self._tail[:n].decode("utf-8", "replace"))
        self._tail = self._tail[n:]

    def _cut(self, text: str) -> list[int]:
        return continuation(self._tokenizer, text)


def _word_end(text: bytes, n: int) -> int:
    """The last place up to `n` bytes where a word ends, and so no token goes across; a character's end without one."""
    for i in range(n, 0, -1):
        if text[i : i + 1] in (b" ", b"\n") and text[i - 1 : i] not in (b" ", b"\n"):
            return i
    while n < len(text) and text[n] & 0xC0 == 0x80:
        n += 1
    return n


def _whole_characters(data: bytes) -> tuple[str, bytes]:
    """The text, and the bytes at its end that begin a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(data), decoder.getstate()[0]
