"""A model's tokenizer as llguidance wants it: the bytes of every token, and how a text is cut into tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llguidance import LLTokenizer, TokenizerWrapper

_LEAD = "\n"
"""What a text can stand behind, where a tokenizer puts a space before the first word."""


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What the tokens of a model add to a text, by id; b"" for markers, which no grammar may write.

    `encode` gives the tokens of a text, without markers; what it puts before the text is cut off again.
    """

    pieces: Sequence[bytes]
    end_tokens: frozenset[int]
    encode: Callable[[str], list[int]]


def llguidance_tokenizer(tokens: TokenBytes) -> LLTokenizer:
    """Looks at every token: takes seconds for 262,144 of them."""
    ends = sorted(tokens.end_tokens)
    return LLTokenizer(TokenizerWrapper(_Wrapped(tokens, ends[0])), eos_token=ends)


class _Wrapped:
    """The attributes that llguidance reads, and the call that it makes to find the usual tokens of a forced text."""

    bos_token_id = None

    def __init__(self, tokens: TokenBytes, eos: int) -> None:
        self.eos_token_id = eos
        self.special_token_ids = [t for t, piece in enumerate(tokens.pieces) if not piece]
        self.tokens = [piece or f"<{token}>".encode() for token, piece in enumerate(tokens.pieces)]
        self._pieces = tokens.pieces
        self._encode = tokens.encode
        self._by_bytes = {piece: token for token, piece in enumerate(tokens.pieces) if piece}
        self._longest = max(map(len, self._by_bytes), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """Tokens that spell `text` (UTF-8) to the byte."""
        said = text.decode()
        ids = self._encode(said)
        if self._spelt(ids) == text:
            return ids
        lead = self._encode(_LEAD)
        ids = self._encode(_LEAD + said)
        if ids[: len(lead)] == lead and self._spelt(ids[len(lead) :]) == text:
            return ids[len(lead) :]
        return self._greedy(text)

    def _spelt(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._pieces[token] for token in ids)

    def _greedy(self, text: bytes) -> list[int]:
        """The longest token at each place. A byte that no token spells is left out: it can come in no text either."""
        ids, at = [], 0
        while at < len(text):
            sizes = range(min(self._longest, len(text) - at), 0, -1)
            size = next((n for n in sizes if text[at : at + n] in self._by_bytes), 0)
            if size:
                ids.append(self._by_bytes[text[at : at + size]])
            at += max(size, 1)
        return ids


END_OF_BYTES = 256


def byte_tokenizer() -> LLTokenizer:
    """A token for every byte, and `END_OF_BYTES`: for trying a grammar without a model."""
    pieces = [*(bytes([byte]) for byte in range(END_OF_BYTES)), b""]
    return llguidance_tokenizer(TokenBytes(pieces, frozenset({END_OF_BYTES}), lambda text: list(text.encode())))
