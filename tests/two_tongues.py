"""Two tokenizers that cut the same text differently, in pure Python: for tests of drafts with another vocabulary."""

import functools
from collections.abc import Sequence

from specdec_cli.models.translation import Translation
from specdec_cli.models.vocabulary import CONTROL, SAMPLES, Vocabulary

_NORMAL = 1 << 2
MARKERS = 2
"""Ids 0 and 1 are the beginning and the end of a text; then come the 256 bytes, then words."""


def _byte_texts() -> list[str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + i) for i in range(256))
    return [chr(byte) if byte in printable else next(others) for byte in range(256)]


_BYTES = _byte_texts()


class Tongue:
    """Cuts a text into the longest pieces that it has, byte by byte where it has none."""

    def __init__(self, *words: str, end: bytes = b"</s>") -> None:
        self.pieces = (b"", b"", *(bytes([byte]) for byte in range(256)), *(word.encode() for word in words))
        self._ids = {piece: i for i, piece in enumerate(self.pieces) if piece}
        self._longest = max(map(len, self.pieces))
        self._end = end

    def __len__(self) -> int:
        return len(self.pieces)

    def tokenize(self, text: str, **_: bool) -> list[int]:
        data, ids, at = text.encode(), list[int](), 0
        while at < len(data):
            n = next(n for n in range(self._longest, 0, -1) if data[at : at + n] in self._ids and at + n <= len(data))
            ids.append(self._ids[data[at : at + n]])
            at += n
        return ids

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]

    def text(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(
            name="tongue.gguf",
            kind="BPE",
            pre_tokenizer="default",
            texts=(b"<s>", self._end, *("".join(_BYTES[byte] for byte in piece).encode() for piece in self.pieces[2:])),
            attrs=(CONTROL,) * MARKERS + (_NORMAL,) * (len(self) - MARKERS),
            bos=0,
            eos=1,
            eot=None,
            add_bos=True,
            add_eos=False,
            end_tokens=frozenset({1}),
            probe_ids=(),
            sample_ids=tuple(tuple(self.tokenize(text)) for text in SAMPLES.values()),
        )


@functools.cache
def translation(target: Tongue, draft: Tongue) -> Translation:
    return Translation(target.vocabulary, draft.vocabulary)
