"""Texts drawn at random from what a grammar allows: no model, every byte a token of its own."""

import random
import re

from specdec_cli.decode.tokens import Tokens
from specdec_cli.errors import DecodeFailed
from specdec_cli.structured.compiler import reason_against, translated
from specdec_cli.structured.masks import TokenMasks
from specdec_cli.structured.source import GrammarSource, Kind
from specdec_cli.structured.tokenizer import END_OF_BYTES, byte_tokenizer

_TOKENIZER = byte_tokenizer()
_CLOSING = frozenset(b'"]}')


class Texts:
    """Raises UsageError for a grammar that is refused, by the checks that need no process of their own."""

    def __init__(self, text: str, kind: Kind = "json-schema") -> None:
        grammar = translated(GrammarSource(kind, text))
        self.refusal = reason_against(grammar)
        self._masks = None if self.refusal else TokenMasks(_TOKENIZER, grammar, frozenset({END_OF_BYTES}))
        self._hints = frozenset(re.sub(r"\\u\{[0-9a-f]+\}", "", text).encode())

    def draw(self, seed: int, *, usual: int = 60, most: int = 600) -> bytes | None:
        """A text, which is brought to an end after `usual` bytes; None if it had none after `most`.

        Raises DecodeFailed where nothing may follow that is allowed.
        """
        draw, text = random.Random(seed), bytearray()
        assert self._masks is not None
        while len(text) < most:
            allowed = set(self._masks.all_allowed(Tokens(list(text)), 0).tolist())
            if END_OF_BYTES in allowed and (len(allowed) == 1 or len(text) >= usual or draw.random() < 0.15):
                return bytes(text)
            allowed.discard(END_OF_BYTES)
            if len(text) >= usual:
                allowed = allowed & _CLOSING or (draw.random() < 0.8 and allowed & self._hints) or allowed
            elif draw.random() < 0.6:
                allowed = (allowed & self._hints) or {byte for byte in allowed if 32 <= byte < 127} or allowed
            text.append(draw.choice(sorted(allowed)))
        return None


def fails(texts: Texts, seed: int) -> str:
    """Why no text can be drawn, empty if one can."""
    try:
        texts.draw(seed)
    except DecodeFailed as error:
        return str(error)
    return ""
