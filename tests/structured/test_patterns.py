"""Patterns of JSON Schema in Rust's syntax: random ones, against Python's `re`."""

import json
import random
import re
import warnings

import pytest

from specdec_cli.errors import DecodeFailed, UsageError
from specdec_cli.structured.patterns import PatternError, rust_pattern
from tests.random_texts import Texts

ATOMS = ("a", "b", "]", "-", ".", r"\d", r"\w", r"\S", r"\W", r"\.", r"\x41", r"\u0042", "é", "😀")
CLASS_ITEMS = ("a", "b", "a-c", "[", "&&", "--", "^", r"\d", r"\W", r"\s", r"\]", "é", r"\-", ":", "~~")


def random_pattern(draw: random.Random, depth: int = 2) -> str:
    """An alternation of anchored or free sequences."""

    def atom() -> str:
        kind = draw.random()
        if kind < 0.3:
            return f"[{'^' * (draw.random() < 0.3)}a{''.join(draw.choices(CLASS_ITEMS, k=draw.randint(1, 3)))}]"
        if kind < 0.45 and depth:
            return f"({random_pattern(draw, depth - 1)})"
        return draw.choice(ATOMS)

    def sequence() -> str:
        parts = (atom() + draw.choice(("", "", "*", "+?", "?", "{2}", "{1,3}")) for _ in range(draw.randint(1, 3)))
        begin, end = ("^" * (draw.random() < 0.6), "$" * (draw.random() < 0.6)) if depth == 2 else ("", "")
        return begin + "".join(parts) + end

    return "|".join(sequence() for _ in range(draw.choice((1, 1, 2))))


def test_what_is_written_by_a_random_pattern_is_matched_by_python() -> None:
    draw, n_kept, n_texts = random.Random(4), 0, 0
    for _ in range(120):
        pattern = random_pattern(draw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # sets within sets, which Python may have one day
            try:
                compiled = re.compile(pattern)
            except re.error:  # ranges such as a-\d
                continue
        try:
            texts = Texts(json.dumps({"type": "string", "pattern": pattern}))
        except UsageError:
            continue
        if texts.refusal:
            continue
        n_kept += 1
        for seed in range(4):
            text = drawn(texts, seed)
            if text is not None:
                n_texts += 1
                assert compiled.search(json.loads(text.decode())), (pattern, text)
    assert n_kept > 60
    assert n_texts > 150


def drawn(texts: Texts, seed: int) -> bytes | None:
    """None for a text that could not be finished."""
    try:
        return texts.draw(seed)
    except DecodeFailed:
        return None


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        (r"[a[&&b]", r"[a\u{5b}\u{26}\u{26}b]"),
        (r"(?<name>a)", "(?:a)"),
        (r"\uD83D\uDE00", r"\u{1f600}"),
        (r"[\w-.]", r"[0-9A-Za-z_\u{2d}\u{2e}]"),
        (r"[\b]\cJ", r"[\u{8}]\u{a}"),
    ],
)
def test_patterns_are_written_anew(pattern: str, written: str) -> None:
    assert rust_pattern(pattern) == written


@pytest.mark.parametrize("pattern", [r"\ud800", r"\u{110000}", r"\x4", r"\q", "(", ")", "[a", "a**", "a{2,1}", "\\"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        rust_pattern(pattern)
