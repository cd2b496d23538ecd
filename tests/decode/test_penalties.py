"""Penalties and DRY: by hand, and against llama.cpp's own samplers; and the whole order against its chain."""

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import llama_cpp as ll
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specdec_cli.decode.penalties import NO_BREAKERS, Breakers, breakers_from, discourage_repeats, penalize, repeats
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.llama.model import LlamaModel
from specdec_cli.settings import ModelSettings
from tests.planted import make_vocab, write_vocab_only

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0)
N = 300
BREAKER_TEXTS = ("\n", ":", '"', "*")
Row = NDArray[np.float32]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = write_vocab_only(tmp_path_factory.mktemp("vocab") / "v.gguf", make_vocab(N))
    with LlamaModel(ModelSettings(path), vocab_only=True) as opened:
        yield opened


def breakers(model: LlamaModel, texts: Sequence[str]) -> Breakers:
    return breakers_from(
        texts,
        [model.marked_bytes(token) for token in range(N)],
        lambda text: model.tokenize(text, add_special=False, parse_special=False),
    )


# --- llama.cpp's chain --------------------------------------------------------------------------------------


@contextmanager
def chain(*samplers: object) -> Iterator[object]:
    whole = ll.llama_sampler_chain_init(ll.llama_sampler_chain_default_params())
    for sampler in samplers:
        ll.llama_sampler_chain_add(whole, sampler)
    try:
        yield whole
    finally:
        ll.llama_sampler_free(whole)


def applied(sampler: object, tokens: Sequence[int], row: Row) -> dict[int, float]:
    """Token to logit, for the finite ones that llama.cpp leaves after the text `tokens`."""
    for token in tokens:
        ll.llama_sampler_accept(sampler, token)
    data = np.zeros(len(row), np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
    data["id"], data["logit"] = np.arange(len(row)), row
    pointer = data.ctypes.data_as(ctypes.POINTER(ll.llama_token_data))
    array = ll.llama_token_data_array(data=pointer, size=len(row), selected=-1, sorted=False)
    ll.llama_sampler_apply(sampler, ctypes.byref(array))
    kept = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
    return {token: logit for token, logit in kept if math.isfinite(logit)}


def dry_sampler(model: LlamaModel, params: SamplingParams, texts: Sequence[str]) -> object:
    names = (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
    return ll.llama_sampler_init_dry(
        model.vocab_handle,
        params.dry_multiplier,
        params.dry_base,
        params.dry_allowed_length,
        params.dry_last_n,
        names,
        len(texts),
    )


def penalties_sampler(params: SamplingParams) -> object:
    return ll.llama_sampler_init_penalties(
        N, params.repeat_last_n, params.repeat_penalty, params.frequency_penalty, params.presence_penalty
    )


def random_row(seed: int) -> Row:
    return (np.random.default_rng(seed).normal(size=N) * 3).astype(np.float32)


def random_text(seed: int, length: int, n_words: int) -> list[int]:
    """Of few words, so that passages come again."""
    rng = np.random.default_rng(seed)
    return rng.choice(rng.permutation(N)[:n_words], size=length).tolist()


texts = st.builds(random_text, st.integers(0, 2**32), st.integers(0, 150), st.sampled_from([1, 2, 3, 8, 60]))
windows = st.sampled_from([0, 1, 2, 5, 64, 1000])


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    texts,
    windows,
    st.sampled_from([1.0, 1.1, 1.5, 0.7]),
    st.sampled_from([0.0, 0.5, -0.2]),
    st.sampled_from([0.0, 0.7]),
)
def test_penalties_are_llama_cpps(
    seed: int, text: list[int], window: int, repeat: float, frequency: float, presence: float
) -> None:
    params = replace(
        OFF, repeat_penalty=repeat, frequency_penalty=frequency, presence_penalty=presence, repeat_last_n=window
    )
    row = random_row(seed)
    with chain(penalties_sampler(params)) as sampler:
        expected = applied(sampler, text, row)

    assert dict(enumerate(penalize(row, text, params).tolist())) == pytest.approx(expected, abs=1e-5)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    text=texts,
    window=windows,
    multiplier=st.sampled_from([0.8, 2.0]),
    base=st.sampled_from([1.0, 1.2, 1.75, 3.0]),
    allowed=st.sampled_from([0, 1, 2, 4]),
    # Not " b": of a SentencePiece token alone llama.cpp drops the leading space, and so does not find it there.
    names=st.sampled_from([(), BREAKER_TEXTS, ("ab", "a b c"), (" a 9",)]),
)
def test_dry_is_llama_cpps(
    model: LlamaModel,
    seed: int,
    text: list[int],
    window: int,
    multiplier: float,
    base: float,
    allowed: int,
    names: tuple[str, ...],
) -> None:
    params = replace(OFF, dry_multiplier=multiplier, dry_base=base, dry_allowed_length=allowed, dry_last_n=window)
    row = random_row(seed)
    with chain(dry_sampler(model, params, names)) as sampler:
        expected = applied(sampler, text, row)

    found = discourage_repeats(row, text, params, breakers(model, names))

    assert dict(enumerate(found.tolist())) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@settings(max_examples=400, deadline=None, derandomize=True)  # a sum at a cut's border may round either way
@given(data=st.data(), seed=st.integers(0, 2**32), text=texts)
def test_the_order_of_all_samplers_is_llama_cpps(
    model: LlamaModel, data: st.DataObject, seed: int, text: list[int]
) -> None:
    """Which tokens are left, and with which logits, for any mixture of settings but one.

    What makes a token impossible (a ban, top-n-sigma, a long repeat for DRY) is left out before typical:
    llama.cpp (0.3.36) takes 0 * log 0 there, which is not a number, and then keeps tokens at random.
    """

    def some(*values: float) -> float:
        return data.draw(st.sampled_from(values))

    params = SamplingParams(
        temperature=1.0,
        top_k=int(some(0, 1, 5, 40, 1000)),
        top_p=some(1.0, 0.9, 0.5),
        min_p=some(0.0, 0.05, 0.3),
        typical=some(1.0, 0.9, 0.4),
        top_n_sigma=some(0.0, 1.0, 2.5),
        repeat_penalty=some(1.0, 1.4),
        presence_penalty=some(0.0, 0.6),
        repeat_last_n=int(some(8, 64)),
        dry_multiplier=some(0.0, 0.8),
    )
    if params.typical < 1:
        params = replace(params, top_n_sigma=0.0, dry_multiplier=0.0)
    bias = {7: 2.5, 290: -3.0, 12: 1.0 if params.typical < 1 else -math.inf}
    row = random_row(seed)
    biases = (ll.llama_logit_bias * 3)(*(ll.llama_logit_bias(token, value) for token, value in bias.items()))
    with chain(
        ll.llama_sampler_init_logit_bias(N, 3, biases),
        penalties_sampler(params),
        dry_sampler(model, params, BREAKER_TEXTS),
        ll.llama_sampler_init_top_n_sigma(params.top_n_sigma),
        ll.llama_sampler_init_top_k(params.top_k),
        ll.llama_sampler_init_typical(params.typical, 0),
        ll.llama_sampler_init_top_p(params.top_p, 0),
        ll.llama_sampler_init_min_p(params.min_p, 0),
    ) as sampler:
        expected = applied(sampler, text, row)
    law = Law(
        params,
        n_shared=N,
        bias={token: value for token, value in bias.items() if math.isfinite(value)},
        banned=[token for token, value in bias.items() if not math.isfinite(value)],
        breakers=breakers(model, BREAKER_TEXTS),
    )

    ids, logits = law.candidates(row, text)

    assert dict(zip(ids.tolist(), logits.tolist(), strict=True)) == pytest.approx(expected, abs=1e-4)


# --- by hand ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], {}, {9: 3}),
        ([1, 2, 3, 9, 1, 2, 3], {"dry_allowed_length": 4}, {}),
        ([5, 6, 7, 5, 6, 8, 5, 6], {}, {7: 2, 8: 2}),
        ([4, 4, 4, 4], {}, {4: 3}),
        ([1, 2, 3, 9, 1, 2, 3], {"dry_last_n": 6}, {9: 2}),
        ([1], {}, {}),
        ([], {}, {}),
    ],
)
def test_repeats_by_hand(text: list[int], changes: Mapping[str, int], expected: dict[int, int]) -> None:
    assert repeats(text, replace(OFF, dry_multiplier=1.0, **changes), NO_BREAKERS) == expected


def test_a_passage_ends_at_a_breaker_and_a_breaker_costs_nothing() -> None:
    params = replace(OFF, dry_multiplier=1.0)
    text, row = [1, 2, 3, 4, 9, 1, 2, 3, 4], np.zeros(12, np.float32)

    assert repeats(text, params, Breakers({2: ((),)})) == {9: 2}
    assert repeats(text, params, Breakers({2: ((3,),)})) == {}, "the breaker is 2 3, and only 4 comes after"
    assert discourage_repeats(row, text, params, NO_BREAKERS)[9] == pytest.approx(-(1.75**2))
    assert discourage_repeats(row, text, params, Breakers({9: ((),)}))[9] == 0


def test_tokens_that_overlap_a_breaker_need_its_rest() -> None:
    found = breakers_from(["ab"], [b"x", b"xabx", b"xa", b"a", b"b"], lambda text: [ord(c) for c in text])

    assert found.tails == {1: ((),), 2: ((98,),), 3: ((98,),)}


def test_text_beyond_the_row_is_nothing_to_penalize() -> None:
    """Ids of a prompt that the draft does not know."""
    row = np.zeros(4, np.float32)
    assert penalize(row, [2, 9, 9], replace(OFF, presence_penalty=1.0)).tolist() == [0, 0, -1, 0]
    assert discourage_repeats(row, [2, 9, 2, 9, 2], replace(OFF, dry_multiplier=1.0), NO_BREAKERS).tolist() == [0] * 4


@pytest.mark.parametrize("change", [penalize, lambda *a: discourage_repeats(*a, NO_BREAKERS)])
def test_the_row_itself_stays(change: Callable[[Row, list[int], SamplingParams], Row]) -> None:
    row = np.ones(5, np.float32)
    row.flags.writeable = False
    changed = change(row, [3, 3, 3, 3], replace(OFF, presence_penalty=1.0, dry_multiplier=1.0))
    assert changed[3] < 1


def test_long_loops_are_followed_no_further_than_they_cost() -> None:
    assert repeats([3] * 5000, replace(OFF, dry_multiplier=1.0, dry_last_n=5000), NO_BREAKERS) == {3: 2 + 158}
