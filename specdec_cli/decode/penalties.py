"""Samplers that look back: penalties for what was said, and DRY against saying a passage again.

Both are pure functions of a row of logits and the text before it, prompt included, and do what
llama.cpp's samplers of the same names do. At row i of a pass the text is the true prefix of row i,
so a rejected token never counts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.sampling import Row, SamplingParams

_LOG_OF_LARGEST_FLOAT = 88.7228391


@dataclass(frozen=True, slots=True)
class Breakers:
    """Tokens with which a passage ends for DRY: `tails[t]` are the continuations that token t needs.

    An empty continuation says that the token alone is a breaker.
    """

    tails: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    def is_one(self, token: int) -> bool:
        return () in self.tails.get(token, ())


NO_BREAKERS = Breakers()
_LONGEST_BREAKER, _LONGEST_TAIL = 40, 20  # bytes and tokens, as llama.cpp cuts them


def breakers_from(texts: Sequence[str], pieces: Sequence[bytes], tokenize: Callable[[str], Sequence[int]]) -> Breakers:
    """Which tokens break a passage, given the breakers as text and the bytes of every token (`pieces` [n_vocab]).

    A token that ends in the beginning of a breaker needs the rest of it, tokenized, as its tail.
    """
    tails: dict[int, dict[tuple[int, ...], None]] = {}
    for data in (text.encode()[:_LONGEST_BREAKER] for text in texts if text):
        rests = {data[:n]: data[n:].decode("utf-8", "ignore") for n in range(1, len(data))}
        for token, piece in enumerate(pieces):
            if data in piece:
                tails.setdefault(token, {})[()] = None
                continue
            for beginning in (b for b in rests if piece.endswith(b)):
                tail = tuple(tokenize(rests[beginning])[:_LONGEST_TAIL])
                tails.setdefault(token, {})[tail] = None
    return Breakers({token: tuple(found) for token, found in tails.items()})


def penalize(row: Row, tokens: Sequence[int], params: SamplingParams) -> Row:
    """The row [n_vocab] with repetition, frequency and presence penalties for the last tokens of `tokens`.

    Positive logits are divided by the repetition penalty and others multiplied, after Keskar et al.,
    arXiv 1909.05858, with llama.cpp's mend; then frequency times the count and presence are taken off.
    """
    said, counts = np.unique(_last(tokens, params.repeat_last_n), return_counts=True)
    counts, said = counts[said < len(row)], said[said < len(row)]
    row = row.copy()
    logits = row[said]
    logits = np.where(
        logits <= 0, logits * np.float32(params.repeat_penalty), logits / np.float32(params.repeat_penalty)
    )
    row[said] = logits - (counts * params.frequency_penalty + params.presence_penalty).astype(np.float32)
    return row


def discourage_repeats(row: Row, tokens: Sequence[int], params: SamplingParams, breakers: Breakers) -> Row:
    """The row [n_vocab] after DRY: a token that would carry on a repeated passage of length n loses
    multiplier * base ** (n - allowed length). After p-e-w, "DRY: a modern repetition penalty", 2024."""
    row = row.copy()
    for token, length in repeats(tokens, params, breakers).items():
        if token < len(row) and not breakers.is_one(token):
            row[token] -= np.float32(params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length))
    return row


def repeats(tokens: Sequence[int], params: SamplingParams, breakers: Breakers) -> dict[int, int]:
    """By token: the length of the longest passage at the end of `tokens` that it followed before.

    Only lengths from `dry_allowed_length` up to where the penalty stops to grow are told apart.
    """
    text = _last(tokens, params.dry_last_n)
    limit = min(_passage_limit(text, breakers), params.dry_allowed_length + _largest_exponent(params.dry_base))
    if len(text) <= params.dry_allowed_length or limit < params.dry_allowed_length:
        return {}
    ends = np.arange(len(text) - 1)  # a passage may end at any place but the last
    found: dict[int, int] = {int(text[end + 1]): 0 for end in ends} if params.dry_allowed_length == 0 else {}
    for length in range(1, limit + 1):
        ends = ends[ends >= length - 1]
        ends = ends[text[ends - (length - 1)] == text[-length]]
        if not len(ends):
            break
        if length >= params.dry_allowed_length:
            found.update({int(token): length for token in text[ends + 1]})
    return found


def _last(tokens: Sequence[int], n: int) -> NDArray[np.int64]:
    return np.array(tokens[-n:] if n > 0 else (), np.int64)


def _largest_exponent(base: float) -> int:
    """Above it the penalty would overflow, or (with a base of 1) does not grow at all."""
    return int(_LOG_OF_LARGEST_FLOAT / math.log(base)) if base > 1.000001 else 0


def _passage_limit(text: NDArray[np.int64], breakers: Breakers) -> int:
    """How many tokens at the end of `text` come after the last breaker."""
    backwards = text[::-1].tolist()
    for i, token in enumerate(backwards):
        # The tail of a breaker follows its head, so in this direction it comes just before.
        whole = [len(tail) for tail in breakers.tails.get(token, ()) if _follows(backwards, i, tail)]
        if whole:
            return i - max(whole)
    return len(backwards)


def _follows(backwards: list[int], i: int, tail: tuple[int, ...]) -> bool:
    return len(tail) <= i and all(backwards[i - 1 - n] == token for n, token in enumerate(tail))
