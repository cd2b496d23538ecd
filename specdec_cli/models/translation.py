"""What two different tokenizers have in common: which tokens spell the same bytes, and how much of a text they are.

A draft whose tokens mean other text can still draft: its tokens are handed over as the target's where both have them,
or as text. What that is worth depends on the share of a text that is the same token in both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from specdec_cli.models.vocabulary import CONTROL, SAMPLES, UNUSED, Vocabulary

_UNKNOWN, _USER_DEFINED, _BYTE = 1 << 0, 1 << 4, 1 << 5
_SENTENCEPIECE_SPACE = "▁"
_SPELT = ("SPM", "BPE")
"""Vocabulary types whose tokens spell a text byte by byte."""

_TEXT_ENDS = frozenset(
    (b"<|endoftext|>", b"<|end_of_text|>", b"</s>", b"<eos>", "<｜end▁of▁sentence｜>".encode(), b"[EOS]")
)
"""Names of tokens that end a whole text; other end tokens end the turn of a chat."""


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte: byte-level tokenizers write their tokens so."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_ALPHABET = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class Overlap:
    """Shares of one language's sample, from 0 to 1: of the draft's tokens, those that the target has as well; of the
    target's tokens, those that the draft has."""

    draft_known: float
    target_known: float


class Translation:
    """The tokens of a target and a draft by the bytes that they spell: `target_pieces` [n_target] and `draft_pieces`
    [n_draft], b"" for markers."""

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self.target, self.draft = target, draft
        self.target_pieces, self.draft_pieces = pieces(target), pieces(draft)

    @cached_property
    def target_ids(self) -> Mapping[bytes, int]:
        """The target's token for these bytes."""
        return _by_piece(self.target, self.target_pieces)

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(target's, draft's) id of tokens that spell the same, ascending by the target's, and of the tokens that end a
        text and a turn."""
        draft_ids = _by_piece(self.draft, self.draft_pieces)
        both = {ours: draft_ids[piece] for piece, ours in self.target_ids.items() if piece in draft_ids}
        for is_turn in (False, True):
            ours, theirs = _end(self.target, is_turn=is_turn), _end(self.draft, is_turn=is_turn)
            if ours is not None and theirs is not None:
                both[ours] = theirs
        return tuple(sorted(both.items()))

    @cached_property
    def markers(self) -> Mapping[int, int]:
        """The draft's marker for each of the target's that it has under the same name, or for the same end."""
        names = {self.draft.texts[i]: i for i in _markers(self.draft)}
        same = {i: names[text] for i in _markers(self.target) if (text := self.target.texts[i]) in names}
        ends = {end: _end(self.draft, is_turn=_ends_turn(self.target, end)) for end in self.target.end_tokens}
        return {**{ours: end for ours, end in ends.items() if end is not None}, **same}

    def target_end(self, end: int) -> int | None:
        """The target's end token for the draft's: that of a turn for that of a turn, where there are both."""
        return _end(self.target, is_turn=_ends_turn(self.draft, end))

    def overlap(self) -> Mapping[str, Overlap]:
        """By language of the samples."""
        ours, theirs = {o for o, _ in self.pairs}, {d for _, d in self.pairs}
        samples = zip(SAMPLES, self.target.sample_ids, self.draft.sample_ids, strict=True)
        return {language: Overlap(_share(draft, theirs), _share(target, ours)) for language, target, draft in samples}

    def why_not(self) -> str | None:
        """Why no text can be translated between the two; None if it can."""
        for which, vocabulary, spelt in (
            ("target", self.target, self.target_pieces),
            ("draft", self.draft, self.draft_pieces),
        ):
            if vocabulary.kind not in _SPELT:
                return f"the {which}'s tokens ({vocabulary.kind}) do not spell a text byte by byte"
            for text, ids in zip(SAMPLES.values(), vocabulary.sample_ids, strict=True):
                if b"".join(spelt[i] for i in ids).decode("utf-8", "replace").strip() != text.strip():
                    return f"the {which}'s tokens do not spell the text that they were made from"
        return None


def figures(overlap: Mapping[str, Overlap]) -> str:
    """The shares in a line."""
    parts = (f"{language} {100 * o.draft_known:.0f}/{100 * o.target_known:.0f} %" for language, o in overlap.items())
    return f"draft tokens that the target has / target tokens that the draft has: {', '.join(parts)}"


def pieces(vocabulary: Vocabulary) -> tuple[bytes, ...]:
    """What each token adds to a text, as llama.cpp's llama_token_to_piece has it; b"" for markers. Shape [n]."""
    read = _spm_piece if vocabulary.kind == "SPM" else _bpe_piece
    return tuple(map(read, vocabulary.texts, vocabulary.attrs))


def _spm_piece(text: bytes, attr: int) -> bytes:
    if attr & (CONTROL | _UNKNOWN | UNUSED):
        return b""
    if attr & _BYTE:
        return bytes([int(text[3:-1], 16)])
    return text if attr & _USER_DEFINED else text.replace(_SENTENCEPIECE_SPACE.encode(), b" ")


def _bpe_piece(text: bytes, attr: int) -> bytes:
    if attr & (CONTROL | _UNKNOWN | UNUSED):
        return b""
    if attr & _USER_DEFINED:
        return text
    try:
        return bytes(_BYTE_ALPHABET[c] for c in text.decode())
    except (KeyError, UnicodeDecodeError):
        return text


def _by_piece(vocabulary: Vocabulary, spelt: Sequence[bytes]) -> dict[bytes, int]:
    """The token for each piece; of several the ordinary one, and of these the first."""
    found: dict[bytes, int] = {}
    for token in range(len(spelt) - 1, -1, -1):
        piece, attr = spelt[token], vocabulary.attrs[token]
        if piece and not (attr & (_BYTE | _USER_DEFINED) and piece in found):
            found[piece] = token
    return found


def _markers(vocabulary: Vocabulary) -> list[int]:
    return [i for i, attr in enumerate(vocabulary.attrs) if attr & CONTROL]


def _ends_turn(vocabulary: Vocabulary, end: int) -> bool:
    return vocabulary.texts[end] not in _TEXT_ENDS


def _end(vocabulary: Vocabulary, *, is_turn: bool) -> int | None:
    """The token that ends a turn, or a text; the other one where there is only that."""
    named = [end for end in (vocabulary.eot, vocabulary.eos) if end is not None]
    return next((end for end in named if _ends_turn(vocabulary, end) == is_turn), named[0] if named else None)


def _share(ids: Sequence[int], known: set[int]) -> float:
    return sum(i in known for i in ids) / len(ids) if ids else 0.0
