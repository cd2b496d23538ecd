"""Sizes of well-known models, worked out by hand."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.memory import (
    DEVICE_RESERVE_BYTES,
    ModelFacts,
    cache_bytes,
    compute_bytes,
    layers_that_fit,
    total_bytes,
)
from specdec_cli.settings import CACHE_TYPE_BYTES

GIB, MIB = 2**30, 2**20


def facts(
    n_layers: int, n_head_kv: int, head: int, *, weights: int = 0, n_vocab: int = 0, n_embd: int = 0
) -> ModelFacts:
    return ModelFacts(
        weights_bytes=weights,
        n_layers=n_layers,
        n_vocab=n_vocab,
        n_embd=n_embd,
        n_params=0,
        n_ctx_train=0,
        n_head_kv=n_head_kv,
        key_length=head,
        value_length=head,
    )


LLAMA_3_1_8B = facts(32, 8, 128, weights=5 * GIB, n_vocab=128_256, n_embd=4096)


@pytest.mark.parametrize(
    ("model", "n_ctx", "cache_type", "expected"),
    [
        (LLAMA_3_1_8B, 8192, "f16", GIB),
        (LLAMA_3_1_8B, 8192, "bf16", GIB),
        (LLAMA_3_1_8B, 8192, "f32", 2 * GIB),
        (LLAMA_3_1_8B, 131_072, "f16", 16 * GIB),
        # Blocks of 32 numbers with a scale of two bytes: 34 bytes of 8 bits, 18 of 4.
        (LLAMA_3_1_8B, 8192, "q8_0", GIB * 34 // 64),
        (LLAMA_3_1_8B, 8192, "q4_0", GIB * 18 // 64),
        (facts(80, 8, 128), 4096, "f16", 1280 * MIB),  # Llama 3.1 70B
        (facts(24, 2, 64), 32_768, "f16", 384 * MIB),  # Qwen2.5 0.5B
        (facts(30, 3, 64), 2048, "f16", 45 * MIB),  # SmolLM2 135M
        (dataclasses.replace(facts(1, 1, 192), value_length=128), 1, "f16", 640),  # keys and values of two sizes
        (LLAMA_3_1_8B, 0, "f16", 0),
    ],
)
def test_cache(model: ModelFacts, n_ctx: int, cache_type: str, expected: int) -> None:
    assert cache_bytes(model, n_ctx, cache_type) == expected


@pytest.mark.parametrize("cache_type", CACHE_TYPE_BYTES)
def test_every_cache_type_has_a_size(cache_type: str) -> None:
    assert 0 < cache_bytes(LLAMA_3_1_8B, 8192, cache_type) <= 2 * GIB


def test_the_rows_of_a_pass_and_not_of_the_context_are_counted() -> None:
    """One row of logits for each token of a context of 32k would be 16 GB."""
    assert compute_bytes(LLAMA_3_1_8B, 512, 9) - compute_bytes(LLAMA_3_1_8B, 512, 8) == 4 * 2 * 128_256
    assert compute_bytes(LLAMA_3_1_8B, 512, 5) < 256 * MIB


def test_the_total_is_weights_cache_and_a_pass() -> None:
    total = total_bytes(LLAMA_3_1_8B, 8192, "f16", 512, 5)

    assert total == 6 * GIB + compute_bytes(LLAMA_3_1_8B, 512, 5)


@pytest.mark.parametrize(
    ("needed", "free", "expected"),
    [
        (6 * GIB, 24 * GIB, 33),  # all layers, and the output layer
        (6 * GIB, 6 * GIB + DEVICE_RESERVE_BYTES, 33),
        (6 * GIB, 6 * GIB + DEVICE_RESERVE_BYTES - 1, 32),
        (33 * GIB, 10 * GIB + DEVICE_RESERVE_BYTES, 10),
        (33 * GIB, GIB + DEVICE_RESERVE_BYTES - 1, 0),
        (6 * GIB, DEVICE_RESERVE_BYTES, 0),
        (6 * GIB, 0, 0),
        (0, GIB, 33),
    ],
)
def test_layers_that_fit(needed: int, free: int, expected: int) -> None:
    assert layers_that_fit(LLAMA_3_1_8B, needed, free) == expected


@given(st.integers(0, 200), st.integers(0, 2**42), st.integers(0, 2**42))
def test_layers_stay_within_the_model_and_the_device(n_layers: int, needed: int, free: int) -> None:
    model = facts(n_layers, 8, 128)
    n = layers_that_fit(model, needed, free)

    assert 0 <= n <= model.n_offloadable == n_layers + 1
    share = n * needed / model.n_offloadable
    assert share <= max(free - DEVICE_RESERVE_BYTES, 0) * (1 + 1e-9)
    if n < model.n_offloadable:
        assert share + max(needed / model.n_offloadable, 1) > (free - DEVICE_RESERVE_BYTES) * (1 - 1e-9)
