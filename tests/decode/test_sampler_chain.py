"""The law of the next token: what each part does to a row, and that a grammar asked lazily is one asked in full."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specdec_cli.decode.penalties import Breakers
from specdec_cli.decode.sampler_chain import Law, certain
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.tokens import Tokens
from specdec_cli.errors import DecodeFailed

UNCUT = SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0)
GREEDY = SamplingParams(temperature=0)
N = 700
Row = NDArray[np.float32]

SETTINGS = {
    "greedy": GREEDY,
    "uncut": UNCUT,
    "defaults": SamplingParams(),
    "top-k": replace(UNCUT, top_k=5, temperature=0.6),
    "top-k of many": replace(UNCUT, top_k=100),
    "top-p": replace(UNCUT, top_p=0.7),
    "min-p": replace(UNCUT, min_p=0.1),
    "typical": replace(UNCUT, typical=0.6),
    "typical, top-k": replace(UNCUT, typical=0.6, top_k=12),
    "greedy typical": replace(GREEDY, typical=0.3, top_k=0),
    "greedy typical, top-k": replace(GREEDY, typical=0.3, top_k=8),
    "top-n-sigma": replace(UNCUT, top_n_sigma=1.5),
    "greedy top-n-sigma": replace(GREEDY, top_n_sigma=1.5),
    "penalties": replace(SamplingParams(), repeat_penalty=1.5, frequency_penalty=0.3),
}


class EveryNth:
    """Allows the ids that leave the rest `len(text) % n`; counts how many it was asked about."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.asked = 0
        self.texts: list[list[int]] = []

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def only(self, tokens: Tokens, start: int) -> int | None:
        found = self.all_allowed(tokens, start)
        return int(found[0]) if len(found) == 1 else None

    def allowed(self, tokens: Tokens, start: int, ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        self.asked += len(ids)
        self.texts.append(tokens[start:])
        return ids % self.n == (len(tokens) - start) % self.n

    def all_allowed(self, tokens: Tokens, start: int) -> NDArray[np.intp]:
        ids = np.arange(2 * N)
        return ids[self.allowed(tokens, start, ids)]


def random_row(seed: int) -> Row:
    return (np.random.default_rng(seed).normal(size=N) * 2).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from(list(SETTINGS)), st.sampled_from([1, 2, 30, 350, 699]), st.integers(0, 50)
)
def test_a_grammar_comes_before_the_cuts(seed: int, name: str, n: int, length: int) -> None:
    """As if the forbidden tokens had been impossible from the start."""
    row, text = random_row(seed), list(range(3, 3 + length))
    law = Law(SETTINGS[name], n_shared=N, grammar=EveryNth(n))
    forbidden = [t for t in range(N) if t % n != length % n]

    found = law.distribution(row, text)
    expected = Law(SETTINGS[name], n_shared=N, banned=forbidden).distribution(row, text)

    assert found.ids.tolist() == expected.ids.tolist()
    assert found.probs == pytest.approx(expected.probs, abs=1e-12)


def test_a_grammar_is_asked_about_the_likeliest_first() -> None:
    grammar = EveryNth(2)
    Law(GREEDY, n_shared=N, grammar=grammar).candidates(random_row(1), [])
    assert grammar.asked == 64


def test_a_grammar_sees_the_answer_and_not_the_prompt() -> None:
    grammar = EveryNth(2)
    law = Law(SamplingParams(), n_shared=N, grammar=grammar)
    law.begin([1, 2, 3])
    law.candidates(random_row(1), [7, 8, 9, 20, 21])
    assert set(map(tuple, grammar.texts)) == {(20, 21)}


def test_a_grammar_that_leaves_nothing_is_an_error_in_words() -> None:
    law = Law(GREEDY, n_shared=2, banned=[0], grammar=EveryNth(2))
    with pytest.raises(DecodeFailed, match="grammar"):
        law.candidates(np.zeros(2, np.float32), [])


def test_bias_moves_and_bans_forbid() -> None:
    row = np.zeros(4, np.float32)
    law = Law(UNCUT, n_shared=4, bias={1: 1.0, 2: -1.0, 9: 5.0}, banned=[3, 700])

    probs = law.distribution(row, [])

    assert probs.ids.tolist() == [0, 1, 2]
    assert probs.probs == pytest.approx(np.array([1, np.e, 1 / np.e]) / (1 + np.e + 1 / np.e))
    assert not row.any()


@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
def test_tokens_above_the_shared_vocabulary_never_come(params: SamplingParams) -> None:
    row = random_row(2)
    row[400:] = 50
    distribution = Law(params, n_shared=400).distribution(row, [3, 650, 3])
    assert distribution.ids.max() < 400
    assert distribution.probs.sum() == pytest.approx(1.0, abs=1e-12)


def test_penalties_and_dry_see_the_text_they_are_given() -> None:
    row, text = np.ones(12, np.float32), [1, 2, 3, 9, 1, 2, 3]
    params = replace(UNCUT, presence_penalty=0.25, repeat_last_n=2, dry_multiplier=1.0)

    law = Law(params, n_shared=12)
    law.begin([0] * 6)  # most of the text is the prompt, which counts like the rest
    changed = law.adjusted(row, text)

    assert changed.tolist() == [1, 1, 0.75, 0.75, 1, 1, 1, 1, 1, 1 - 1.75, 1, 1]
    assert Law(params, n_shared=12, breakers=Breakers({1: ((),)})).adjusted(row, text)[9] == 0, "1 begins anew"
    assert Law(params, n_shared=12).adjusted(row, []).tolist() == [1] * 12


def test_a_distribution_is_that_of_the_survivors_tempered() -> None:
    row = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], np.float32))
    found = Law(replace(UNCUT, top_k=3, temperature=0.5), n_shared=5).distribution(row, [])

    weights = np.array([0.4, 0.25, 0.2]) ** 2
    assert found.ids.tolist() == [1, 3, 4]
    assert found.probs == pytest.approx(weights / weights.sum(), rel=1e-6)


def test_greedy_is_one_token_always() -> None:
    found = Law(GREEDY, n_shared=5).distribution(np.array([0, 3, 3, 1, 2], np.float32), [])
    assert (found.ids.tolist(), found.probs.tolist()) == ([1], [1.0])
    assert (certain(4).ids.tolist(), certain(4).probs.tolist()) == ([4], [1.0])


def test_greedy_with_typical_takes_the_likeliest_of_the_typical() -> None:
    """The likeliest token of all may be too little of a surprise."""
    probabilities = np.array([0.45, *[0.55 / 20] * 20], np.float32)
    assert Law(GREEDY, n_shared=21).distribution(np.log(probabilities), []).ids.tolist() == [0]
    assert Law(replace(GREEDY, typical=0.2), n_shared=21).distribution(np.log(probabilities), []).ids.tolist() == [1]


def test_settings_are_named_when_they_do_something() -> None:
    names = [str(params) for params in SETTINGS.values()]
    assert len(set(names)) == len(names) - 2, "greedy with top-k or top-n-sigma is greedy, but not with typical"
    for a, b in itertools.pairwise(("typical 0.6", "penalties 1.5/0.3/0 over 64")):
        assert any(a in name for name in names)
        assert any(b in name for name in names)
