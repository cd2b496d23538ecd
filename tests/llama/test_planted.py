"""The planted models do what the tests built on them take for granted, in llama.cpp itself."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

import llama_cpp as ll
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.planted import (
    BYTES,
    EOS,
    UNK,
    Arch,
    PlantedPair,
    VocabKind,
    coupled_rate,
    disturbed,
    log_chain,
    make_vocab,
    overlap,
    random_chain,
    write_planted,
    write_tiny_hybrid,
    write_tiny_mamba,
    write_tiny_swa,
    write_vocab_only,
)

Handle = ctypes.c_void_p


@contextmanager
def opened(path: Path, *, n_ctx: int = 256, n_rs_seq: int = 0, swa_full: bool = False) -> Iterator[Handle]:
    """A context for one model file, on one thread, at most 64 tokens at once."""
    ll.llama_backend_init()
    model = ll.llama_model_load_from_file(str(path).encode(), ll.llama_model_default_params())
    assert model, "llama.cpp refused the file"
    params = ll.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = n_ctx, 1, 1
    params.n_batch, params.n_ubatch = 64, 64
    params.n_rs_seq, params.swa_full = n_rs_seq, swa_full
    context = ll.llama_init_from_model(model, params)
    assert context, "no context"
    try:
        yield context
    finally:
        ll.llama_free(context)
        ll.llama_model_free(model)


@contextmanager
def opened_vocab(path: Path) -> Iterator[Handle]:
    params = ll.llama_model_default_params()
    params.vocab_only = True
    model = ll.llama_model_load_from_file(str(path).encode(), params)
    assert model, "llama.cpp refused the file"
    try:
        yield ll.llama_model_get_vocab(model)
    finally:
        ll.llama_model_free(model)


def decode(context: Handle, tokens: Sequence[int], start: int = 0) -> NDArray[np.float32]:
    """Logits after each token, which stand from position `start` on. Shape [len(tokens), n_vocab]."""
    batch = ll.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, True
        batch.seq_id[i][0] = 0
    status = ll.llama_decode(context, batch)
    ll.llama_batch_free(batch)
    assert status == 0
    n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(ll.llama_get_model(context)))
    return np.ctypeslib.as_array(ll.llama_get_logits(context), (len(tokens), n_vocab)).copy()


def can_take_back(context: Handle, first: int) -> bool:
    return bool(ll.llama_memory_seq_rm(ll.llama_get_memory(context), 0, first, -1))


def tokenize(vocab: Handle, text: str) -> list[int]:
    data, room = text.encode(), len(text) + 8
    ids = (ll.llama_token * room)()
    return ids[: ll.llama_tokenize(vocab, data, len(data), ids, room, True, False)]


def piece(vocab: Handle, token: int) -> bytes:
    text = ctypes.create_string_buffer(64)
    length = ll.llama_token_to_piece(vocab, token, text, len(text), 0, False)
    return text.raw[:length]


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True), dtype=np.float64)
    return weights / weights.sum(axis=-1, keepdims=True)


# --- the distribution is the planted one ----------------------------------------------------------------


@pytest.mark.parametrize("arch", get_args(Arch))
@pytest.mark.parametrize("n_vocab", [64, 96, 320])
def test_logits_are_the_log_of_the_chain(tmp_path: Path, arch: Arch, n_vocab: int) -> None:
    chain = random_chain(n_vocab, seed=n_vocab, p_eos=0.01)
    tokens = np.random.default_rng(1).integers(n_vocab, size=40).tolist()
    with opened(write_planted(tmp_path / "m.gguf", chain, arch=arch)) as context:
        logits = decode(context, tokens)
    difference = logits - log_chain(chain)[tokens]
    assert np.abs(difference - difference.mean(axis=1, keepdims=True)).max() < 2e-3
    assert softmax(logits)[:, EOS] == pytest.approx(0.01, rel=1e-3)
    assert softmax(logits)[:, UNK].max() < 1e-30


def test_float16_matrices_and_deep_models_keep_the_chain(tmp_path: Path) -> None:
    chain = random_chain(64, seed=0)
    path = write_planted(tmp_path / "m.gguf", chain, n_layers=4, n_head=2, n_ff=256, dtype=np.float16)
    with opened(path) as context:
        assert softmax(decode(context, [5, 9, 63])) == pytest.approx(chain[[5, 9, 63]], abs=2e-3)


@pytest.mark.parametrize("pad_logit", [-20.0, 20.0])
def test_padding_rows_have_the_logit_they_were_given(tmp_path: Path, pad_logit: float) -> None:
    chain = random_chain(64, seed=3)
    path = write_planted(tmp_path / "m.gguf", chain, n_vocab_pad=7, pad_logit=pad_logit)
    with opened(path) as context:
        logits = decode(context, [4, 5, 70])
        vocab = ll.llama_model_get_vocab(ll.llama_get_model(context))
        attributes = [ll.llama_vocab_get_attr(vocab, token) for token in range(71)]
    assert logits.shape == (3, 71)
    assert logits[:2, 64:] == pytest.approx(pad_logit, abs=1e-3)
    assert softmax(logits[:2, :64]) == pytest.approx(chain[[4, 5]], abs=1e-5)
    assert logits[2] == pytest.approx(0.0, abs=1e-6), "after an unused token everything is equally likely"
    assert {i for i, a in enumerate(attributes) if a & ll.LLAMA_TOKEN_ATTR_UNUSED} == set(range(64, 71))


def test_pair_shares_its_vocabulary_and_writes_words(planted_pair: PlantedPair) -> None:
    p, q = planted_pair.p, planted_pair.q
    assert p.shape == q.shape == (320, 320)
    assert p[:, [UNK, EOS, *BYTES]].max() == q[:, [UNK, EOS, *BYTES]].max() == 0.0
    for path, chain in ((planted_pair.target, p), (planted_pair.draft, q)):
        with opened(path) as context:
            assert softmax(decode(context, [300])) == pytest.approx(chain[[300]], abs=1e-5)


# --- chains ---------------------------------------------------------------------------------------------


def test_rates_are_those_of_the_race() -> None:
    p = random_chain(12, seed=0, sharpness=1.0, p_eos=0.1)
    q = disturbed(p, 0.8, seed=1)
    assert p.sum(axis=1) == pytest.approx(1.0)
    assert q.sum(axis=1) == pytest.approx(1.0)
    noise = np.random.default_rng(2).gumbel(size=(20_000, 1, 12))
    same = (log_chain(p) + noise).argmax(axis=2) == (log_chain(q) + noise).argmax(axis=2)
    assert coupled_rate(p, q) == pytest.approx(same.mean(axis=0), abs=0.02)
    assert (coupled_rate(p, q) <= overlap(p, q)).all()
    assert coupled_rate(p, p) == pytest.approx(1.0)


# --- memories -------------------------------------------------------------------------------------------

TINY = {"swa": write_tiny_swa, "mamba": write_tiny_mamba, "hybrid": write_tiny_hybrid}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return {name: write(folder / f"{name}.gguf", seed=5) for name, write in TINY.items()}


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_look_at_the_prefix(tiny: dict[str, Path], name: str) -> None:
    with opened(tiny[name]) as context:
        one = decode(context, [260, 261, 262, 263])[-1]
    with opened(tiny[name]) as context:
        other = decode(context, [259, 261, 262, 263])[-1]
    assert np.isfinite(one).all()
    assert np.abs(softmax(one) - softmax(other)).sum() > 0.01
    assert softmax(one)[[UNK, EOS]].max() < 1e-6


def test_recurrent_memory_gives_nothing_back(tiny: dict[str, Path]) -> None:
    with opened(tiny["mamba"]) as context:
        decode(context, [260, 261])
        assert not can_take_back(context, 1)


def test_hybrid_memory_gives_back_what_it_was_told_to_keep(tiny: dict[str, Path]) -> None:
    with opened(tiny["hybrid"]) as context:
        decode(context, [260, 261])
        assert not can_take_back(context, 1)
    with opened(tiny["hybrid"], n_rs_seq=2) as context:
        straight = decode(context, [260, 261, 262])[1:]
        assert can_take_back(context, 1)
        assert decode(context, [261, 262], start=1) == pytest.approx(straight, abs=1e-3)


@pytest.mark.parametrize("swa_full", [False, True])
def test_sliding_window_forgets_unless_the_cache_keeps_all(tiny: dict[str, Path], swa_full: bool) -> None:
    tokens = np.random.default_rng(0).integers(259, 320, size=512).tolist()
    with opened(tiny["swa"], n_ctx=1024, swa_full=swa_full) as context:
        for start in range(0, 512, 64):
            decode(context, tokens[start : start + 64], start)
        first = ll.llama_memory_seq_pos_min(ll.llama_get_memory(context), 0)
    assert (first == 0) == swa_full


# --- vocabularies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", get_args(VocabKind))
def test_text_comes_back(tmp_path: Path, kind: VocabKind) -> None:
    vocab = make_vocab(400, kind)
    text = " a b Z aa bcd Ünïcode\n" if kind == "gpt2" else "a b Z aa bcd Ünïcode\n"
    with opened_vocab(write_vocab_only(tmp_path / "v.gguf", vocab)) as handle:
        ids = tokenize(handle, text)
        assert [vocab.tokens[i][1:] for i in ids[1:5]] == ["a", "b", "Z", "aa"]
        assert b"".join(piece(handle, i) for i in ids).decode().strip() == text.strip()
        assert ll.llama_vocab_n_tokens(handle) == 400


def test_small_vocabulary_reads_its_words(tmp_path: Path) -> None:
    vocab = make_vocab(96)
    with opened_vocab(write_vocab_only(tmp_path / "v.gguf", vocab)) as handle:
        assert [vocab.tokens[i] for i in tokenize(handle, "a c 9 ab")] == ["<s>", "▁a", "▁c", "▁9", "▁ab"]


def test_vocabulary_variants_reach_llama(tmp_path: Path) -> None:
    variant = replace(make_vocab(320).renamed({7: "<other>"}), bos=5, eos=6, add_bos=False)
    with opened_vocab(write_vocab_only(tmp_path / "v.gguf", variant)) as handle:
        assert ll.llama_vocab_get_text(handle, 7) == b"<other>"
        assert (ll.llama_vocab_bos(handle), ll.llama_vocab_eos(handle)) == (5, 6)
        assert not ll.llama_vocab_get_add_bos(handle)
