"""The index of passages against a search of the whole text."""

import time
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.drafters.ngram.suffix_index import SuffixIndex

TEXTS = st.integers(0, 3).flatmap(lambda most: st.lists(st.integers(0, most), max_size=40))


def longest_match(tokens: Sequence[int]) -> tuple[int, int]:
    """Length of the longest end of the text that stood in it before, and the most recent place after it."""
    n = len(tokens)
    for length in range(n - 1, 0, -1):
        for place in range(n - 1, length - 1, -1):
            if tokens[place - length : place] == tokens[n - length :]:
                return length, place
    return 0, 0


def continuations(tokens: Sequence[int], length: int) -> list[int]:
    """What followed the last `length` tokens wherever they stood before."""
    n = len(tokens)
    return [tokens[p] for p in range(length, n) if tokens[p - length : p] == tokens[n - length :]]


@given(TEXTS)
def test_the_match_is_the_longest_and_its_place_the_most_recent(tokens: list[int]) -> None:
    index = SuffixIndex()
    for n, token in enumerate(tokens, 1):
        index.append(token)
        length, place = longest_match(tokens[:n])
        match = index.match()
        assert index.length(match) == length
        if length:
            assert index.place(match) == place


@given(TEXTS)
def test_agreement_is_about_all_earlier_places(tokens: list[int]) -> None:
    index = SuffixIndex(tokens)
    match = index.match()
    if length := index.length(match):
        followed = continuations(tokens, length)
        expected = "differ" if len(set(followed)) > 1 else "once" if len(followed) == 1 else "agree"
        assert index.agreement(match) == expected


@given(TEXTS, st.integers(1, 8))
def test_a_step_leads_to_the_longer_passage(tokens: list[int], n_steps: int) -> None:
    index = SuffixIndex(tokens)
    state = index.match()
    length, place = index.length(state), index.place(state)
    for token in tokens[place : place + n_steps] if length else ():
        state, length, place = index.step(state, token), length + 1, place + 1
        assert index.length(state) >= length
        assert index.place(state) == place or place == len(tokens), "what is copied is the most recent, too"


def test_a_loop_that_repeats_often_is_still_matched_in_full() -> None:
    """More passages end there than are marked: the place may be an older one, but it says the same."""
    period = [1, 2, 3, 4, 5]
    index = SuffixIndex(period * 400 + [1, 2, 9, 1, 2])
    match = index.match()

    assert index.length(match) == 2
    assert index.tokens[index.place(match) - 2 : index.place(match)] == [1, 2]
    assert index.agreement(match) == "differ"

    index = SuffixIndex(period * 400)
    assert (index.length(index.match()), index.place(index.match())) == (1995, 1995)


def test_a_token_costs_the_same_however_long_the_text_is() -> None:
    rng = np.random.default_rng(0)
    texts = {
        "words": (rng.zipf(1.3, size=32_768) % 5000).tolist(),
        "one token": [7] * 32_768,
        "a loop": list(range(11)) * 2979,
        "two letters": rng.integers(0, 2, size=32_768).tolist(),
    }
    for name, tokens in texts.items():
        index, steps = SuffixIndex(), [0]
        for begin in range(0, 32_768, 4096):
            index.extend(tokens[begin : begin + 4096])
            steps.append(index.n_steps)
        per_token = np.diff(steps) / 4096
        assert per_token.max() < 70, name
        assert per_token[-1] < 1.4 * per_token[1], (name, per_token)


def test_a_long_text_is_read_in_little_time() -> None:
    tokens = (np.random.default_rng(0).zipf(1.3, size=8192) % 5000).tolist()
    began = time.process_time()
    SuffixIndex(tokens)
    assert time.process_time() - began < 2, "a fiftieth of a second on a machine that does nothing else"
