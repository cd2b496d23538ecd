"""Sizes of well-known models, worked out by hand, and estimates held against what llama.cpp says it took."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.models.facts import model_facts
from specdec_cli.models.gguf import ArrayInfo, GgufHeader, TensorInfo, read_model
from specdec_cli.models.memory import (
    DEVICE_RESERVE_BYTES,
    ModelFacts,
    cache_bytes,
    compute_bytes,
    layers_that_fit,
    need,
    repacked_formats,
)
from specdec_cli.settings import CACHE_TYPE_BYTES, ContextSettings, ModelSettings
from tests import real_models

GIB, MIB = 2**30, 2**20


def facts(n_layers: int, n_head_kv: int, head: int, *, layer: int = 0, n_vocab: int = 0, n_embd: int = 0) -> ModelFacts:
    """A model of equal layers of `layer` bytes, an embedding of as many and an output matrix of as many."""
    return ModelFacts(
        weights_bytes=layer * (n_layers + 2),
        n_layers=n_layers,
        n_vocab=n_vocab,
        n_embd=n_embd,
        n_params=0,
        n_ctx_train=0,
        output_bytes=layer,
        layer_bytes=(layer,) * n_layers,
        cache_elements=(n_head_kv * 2 * head,) * n_layers,
    )


def context(n_ctx: int, cache_type: str = "f16", n_ubatch: int = 512, max_rows: int = 5) -> ContextSettings:
    return ContextSettings(n_ctx=n_ctx, n_batch=n_ubatch, n_ubatch=n_ubatch, cache_type=cache_type, max_rows=max_rows)


LLAMA_3_1_8B = facts(32, 8, 128, layer=128 * MIB, n_vocab=128_256, n_embd=4096)


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
        (facts(1, 1, 64), 1, "f16", 2 * 2 * 64 * 256),  # llama.cpp's caches come in steps of 256 tokens
        # A state, and with 5 rows the checkpoints of it: before the last pass, and at the end of the prompt.
        (replace(facts(2, 1, 64), cache_elements=(128, 0), state_bytes=(0, 1000)), 256, "f16", 256 * 256 + 3000),
    ],
)
def test_cache(model: ModelFacts, n_ctx: int, cache_type: str, expected: int) -> None:
    assert cache_bytes(model, context(n_ctx, cache_type)) == expected


@pytest.mark.parametrize("cache_type", CACHE_TYPE_BYTES)
def test_every_cache_type_has_a_size(cache_type: str) -> None:
    assert 0 < cache_bytes(LLAMA_3_1_8B, context(8192, cache_type)) <= 2 * GIB


def test_each_row_of_logits_is_kept_twice_where_logits_are_the_larger_buffer() -> None:
    def of(rows: int) -> int:
        return compute_bytes(LLAMA_3_1_8B, context(4096, n_ubatch=64, max_rows=rows))

    assert of(33) - of(32) == 4 * 2 * 128_256
    assert of(5) < 256 * MIB


def test_everything_is_in_ram_without_a_gpu() -> None:
    found = need(LLAMA_3_1_8B, context(8192))
    assert (found.weights, found.cache, found.gpu) == (34 * 128 * MIB, GIB, 0)
    assert found.ram == found.weights + found.cache + found.compute + found.tokenizer


def test_an_output_matrix_of_its_own_is_in_one_place_and_a_tied_one_in_two() -> None:
    untied = need(LLAMA_3_1_8B, context(8192), 1)
    assert untied.weights + untied.gpu_weights == LLAMA_3_1_8B.weights_bytes
    tied = need(replace(LLAMA_3_1_8B, is_tied=True), context(8192), 1)
    assert tied.weights == LLAMA_3_1_8B.weights_bytes
    assert tied.gpu_weights == LLAMA_3_1_8B.output_bytes


def test_the_output_layer_goes_to_the_gpu_first_and_then_the_last_layers() -> None:
    one, two = need(LLAMA_3_1_8B, context(8192), 1), need(LLAMA_3_1_8B, context(8192), 2)
    assert (one.gpu_weights, one.gpu_cache) == (128 * MIB, 0)
    assert (two.gpu_weights, two.gpu_cache) == (256 * MIB, GIB // 32)
    everything = need(LLAMA_3_1_8B, context(8192), -1)
    assert everything == need(LLAMA_3_1_8B, context(8192), 33) == need(LLAMA_3_1_8B, context(8192), 99)
    assert (everything.gpu_weights, everything.gpu_cache, everything.cache) == (33 * 128 * MIB, GIB, 0)


@given(st.integers(0, 12 * GIB), st.sampled_from([512, 4096, 32_768]))
def test_the_layers_that_fit_do_and_one_more_would_not(free: int, n_ctx: int) -> None:
    n = layers_that_fit(LLAMA_3_1_8B, context(n_ctx), free)
    if n > 0:
        assert need(LLAMA_3_1_8B, context(n_ctx), n).gpu + DEVICE_RESERVE_BYTES <= free
    if n < LLAMA_3_1_8B.n_offloadable:
        assert need(LLAMA_3_1_8B, context(n_ctx), n + 1).gpu + DEVICE_RESERVE_BYTES > free


def test_formats_that_the_processor_reorders_are_there_twice() -> None:
    model = replace(LLAMA_3_1_8B, format_bytes={"Q4_K": GIB, "Q6_K": 2 * GIB})
    assert need(model, context(512), repacked=frozenset({"Q4_K"})).copies == GIB
    assert need(model, context(512), 33, repacked=frozenset({"Q4_K"})).copies == 0
    found = need(model, context(512), repacked=frozenset({"Q4_K"}))
    assert found.resident - found.ram == GIB


@pytest.mark.parametrize(
    ("features", "reordered"),
    [
        ("CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1", {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}),
        ("CPU : AVX2 = 1 | AVX512 = 1 | REPACK = 1 | ", {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4", "Q2_K"}),
        ("CPU : NEON = 1 | DOTPROD = 1", {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0"}),
        ("CPU : AVX = 1 | AVX2 = 0", set()),
    ],
)
def test_what_a_processor_reorders(features: str, reordered: set[str]) -> None:
    assert repacked_formats(features) == reordered


def header(metadata: dict[str, object], *names: str) -> GgufHeader:
    tensors = tuple(TensorInfo(name, (64, 64), "F16", 0, 8192) for name in names)
    return GgufHeader(3, {"general.architecture": "x", **metadata}, tensors, 0, 0, 0)


def test_facts_of_two_parts_are_one_models() -> None:
    both = model_facts(
        [
            header({"x.block_count": 2, "x.embedding_length": 64}, "token_embd.weight", "blk.0.attn_k.weight"),
            header({}, "blk.1.attn_k.weight", "output.weight"),
        ]
    )
    assert (both.weights_bytes, both.n_params, both.layer_bytes) == (4 * 8192, 4 * 4096, (8192, 8192))
    assert both.output_bytes == 8192


def test_a_tied_embedding_goes_to_the_gpu_as_a_copy() -> None:
    assert model_facts([header({"x.block_count": 0}, "token_embd.weight")]).output_bytes == 8192


def test_heads_of_each_layer_are_counted_apart() -> None:
    found = model_facts(
        [
            header(
                {
                    "x.block_count": 3,
                    "x.embedding_length": 256,
                    "x.attention.head_count": 4,
                    "x.attention.head_count_kv": (4, 2, 0),
                    "tokenizer.ggml.tokens": ArrayInfo(8, 1000),
                },
                "blk.0.attn_k.weight",
                "blk.1.attn_k.weight",
                "blk.2.ssm_in.weight",
            )
        ]
    )
    assert found.cache_elements == (4 * 128, 2 * 128, 0)
    assert found.n_vocab == 1000


def test_layers_that_share_a_cache_keep_none() -> None:
    found = model_facts(
        [
            header(
                {
                    "x.block_count": 2,
                    "x.embedding_length": 64,
                    "x.attention.head_count": 1,
                    "x.attention.shared_kv_layers": 1,
                },
                "blk.0.attn_k.weight",
                "blk.1.attn_k.weight",
            )
        ]
    )
    assert found.cache_elements == (128, 0)


def test_latent_attention_keeps_no_values() -> None:
    found = model_facts(
        [
            header(
                {
                    "x.block_count": 1,
                    "x.attention.head_count": 16,
                    "x.attention.head_count_kv": 1,
                    "x.attention.key_length": 576,
                    "x.attention.value_length": 512,
                    "x.attention.key_length_mla": 192,
                },
                "blk.0.attn_kv_a_mqa.weight",
            )
        ]
    )
    assert found.cache_elements == (576,)


@pytest.mark.parametrize(
    ("metadata", "tensor", "elements"),
    [
        ({"x.ssm.inner_size": 512, "x.ssm.state_size": 16, "x.ssm.conv_kernel": 4}, "ssm_in", 3 * 512 + 512 * 16),
        ({"x.embedding_length": 1024, "x.shortconv.l_cache": 3}, "shortconv.in_proj", 2 * 1024),
        ({"x.embedding_length": 768, "x.wkv.head_size": 64}, "time_mix_key", 768 * (2 + 64)),
    ],
)
def test_recurrent_layers_keep_a_state(metadata: dict[str, object], tensor: str, elements: int) -> None:
    found = model_facts([header({"x.block_count": 2, **metadata}, f"blk.0.{tensor}.weight", "blk.1.attn_k.weight")])
    assert found.state_bytes == (4 * elements, 0)


def test_experts_count_as_many_as_work_at_once() -> None:
    data = {"x.block_count": 1, "x.feed_forward_length": 6144, "x.expert_used_count": 8}
    assert model_facts([header(data)]).n_ff == 8 * 6144
    assert model_facts([header({**data, "x.expert_feed_forward_length": 768})]).n_ff == 8 * 768


@pytest.mark.parametrize("make", [lambda: real_models.smollm2("Q4_0"), lambda: real_models.gemma3_270m("Q8_0")])
@pytest.mark.parametrize(("n_ctx", "cache_type"), [(512, "f16"), (3000, "q8_0")])
def test_the_cache_is_what_llama_cpp_takes(make, n_ctx: int, cache_type: str) -> None:
    path = real_models.need(make)
    settings = context(n_ctx, cache_type, n_ubatch=256)
    expected = cache_bytes(model_facts(read_model(path)), settings)
    with LlamaModel(ModelSettings(path)) as model, LlamaSession(model, settings) as session:
        assert session.cache_bytes == pytest.approx(expected, abs=0.02 * MIB)
