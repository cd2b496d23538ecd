"""A tokenizer as plain values, so that two of them can be compared without llama.cpp."""

from dataclasses import dataclass

UNUSED = 1 << 1
"""Bit of a token's attributes (llama.cpp's LLAMA_TOKEN_ATTR_*): the row exists only to fill the matrix."""
CONTROL = 1 << 3
"""Bit of a token's attributes: a marker such as <|im_end|>, not text."""

PROBE_TEXT = (
    "Hello, world! The quick brown fox can't jump 1234567.89 times\n\n\tif (x != y) { return 'été' + \"naïve\"; }  "
    "Привет, мир. 你好，世界。 こんにちは 🦙👩‍🚀 https://example.org/a?b=c&d=%20 ...   end"
)
"""Encoded by both tokenizers: merges and pre-tokenizer rules show here even when the token lists agree."""


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token that is found by its name before the tokenizer sees the text.

    A control token only where control tokens are read at all, any other (`<think>` of some models, runs of line ends)
    in every text. White space before or after the name belongs to it where it `strips` that side.
    """

    id: int
    text: str
    is_control: bool
    strips_left: bool
    strips_right: bool


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything about a tokenizer that decides whether two models speak in the same ids.

    `texts` [n_tokens] are the raw token strings of the file, `attrs` [n_tokens] llama.cpp's
    attribute bits, `probe_ids` the encoding of `PROBE_TEXT`. Absent special tokens are None.
    """

    name: str
    kind: str
    pre_tokenizer: str | None
    texts: tuple[bytes, ...]
    attrs: tuple[int, ...]
    bos: int | None
    eos: int | None
    eot: int | None
    add_bos: bool
    add_eos: bool
    end_tokens: frozenset[int]
    probe_ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.texts)
