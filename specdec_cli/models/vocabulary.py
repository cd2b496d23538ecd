"""A tokenizer as plain values, so that two of them can be compared without llama.cpp."""

from collections.abc import Mapping
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

SAMPLES: Mapping[str, str] = {
    "English": "The harbour was quiet before the first ferry came in. A few people stood on the pier with their bags "
    'and watched the water, which was as grey as the sky. "It is always late on Mondays," said the woman who sold '
    "tickets, and nobody answered her. Later, when the sun had risen above the warehouses, children ran down to the "
    "beach.",
    "Russian": "Утром в гавани было тихо, пока не пришёл первый паром. Несколько человек стояли на причале со своими "
    "сумками и смотрели на воду, серую, как небо. «По понедельникам он всегда опаздывает», — сказала женщина, которая "
    "продавала билеты, и никто ей не ответил. Позже, когда солнце поднялось над складами, дети побежали к берегу.",
    "Chinese": "清晨，第一班渡轮到来之前，港口十分安静。几个人提着行李站在码头上，望着和天空一样灰的海水。"
    "“星期一总是晚点，”卖票的女人说，没有人回答她。后来，太阳升到仓库上方，孩子们跑向海滩。",
    "code": "def merge(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:\n    result = []\n"
    "    for start, end in sorted(intervals):\n        if result and start <= result[-1][1]:\n"
    "            result[-1] = (result[-1][0], max(end, result[-1][1]))\n        else:\n"
    "            result.append((start, end))\n    return result\n",
}
"""Short texts in the languages of the benchmark's prompts: what two tokenizers have in common is measured on them."""


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
    attribute bits, `probe_ids` the encoding of `PROBE_TEXT`, `sample_ids` those of `SAMPLES`. Absent special tokens are
    None.
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
    sample_ids: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.texts)
