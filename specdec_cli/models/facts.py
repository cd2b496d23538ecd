"""The facts of a model that memory depends on, from its GGUF headers."""

import math
import re
from collections import Counter
from collections.abc import Sequence

from specdec_cli.models.gguf import ArrayInfo, GgufHeader, TensorInfo, tensors_of
from specdec_cli.models.memory import ModelFacts

_LAYER = re.compile(r"blk\.(\d+)\.")
_KEEP_SNAPSHOTS = {"bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe"}
_KEEP_SNAPSHOTS |= {"nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen4exp"}
"""Architectures whose recurrent layers keep earlier states (llama-arch.cpp, llm_arch_supports_rs_rollback)."""
_ONE_MATRIX, _STATE_SPACE = re.compile(r"blk\.(\d+)\.attn_qkv\."), re.compile(r"blk\.(\d+)\.ssm_")
_KEYS_OR_VALUES = re.compile(r"blk\.(\d+)\.(attn_k\.|attn_qkv\.|attn_kv_|attn_k_b\.)")


def model_facts(headers: Sequence[GgufHeader]) -> ModelFacts:
    """Facts of one model; `headers` are those of its parts, the first part first."""
    first = headers[0]
    tensors = tensors_of(headers)
    n_layers = first.number("block_count")
    n_ff = first.number("feed_forward_length")
    if n_used := first.number("expert_used_count"):
        n_ff = max(n_ff if not first.number("expert_feed_forward_length") else 0, _expert_width(first) * n_used)
    layers: Counter[int] = Counter()
    for tensor in tensors:
        if found := _LAYER.match(tensor.name):
            layers[int(found[1])] += tensor.n_bytes
    return ModelFacts(
        weights_bytes=_weights_bytes(headers),
        n_layers=n_layers,
        n_vocab=_length(first, "tokens") or first.number("vocab_size"),
        n_embd=first.number("embedding_length"),
        n_params=sum(math.prod(t.shape) for t in tensors),
        n_ctx_train=first.number("context_length"),
        n_ff=n_ff,
        n_head=max(first.number("attention.head_count"), 1),
        n_merges=_length(first, "merges"),
        has_window=first.number("attention.sliding_window") > 0,
        output_bytes=_output_bytes(tensors),
        is_tied=all(t.name != "output.weight" for t in tensors),
        layer_bytes=tuple(layers[i] for i in range(n_layers)),
        cache_elements=_cache_elements(first, tensors, n_layers),
        state_bytes=_state_bytes(first, tensors, n_layers),
        keeps_snapshots=first.metadata.get("general.architecture") in _KEEP_SNAPSHOTS,
        format_bytes=_format_bytes(tensors),
    )


def _weights_bytes(headers: Sequence[GgufHeader]) -> int:
    """All tensors; where one has a format of unknown size, what the files hold beside their headers."""
    tensors = tensors_of(headers)
    if all(tensor.n_bytes for tensor in tensors):
        return sum(tensor.n_bytes for tensor in tensors)
    return sum(header.size - header.n_bytes for header in headers)


def _expert_width(header: GgufHeader) -> int:
    return header.number("expert_feed_forward_length") or header.number("feed_forward_length")


def _length(header: GgufHeader, key: str) -> int:
    array = header.metadata.get(f"tokenizer.ggml.{key}")
    return array.length if isinstance(array, ArrayInfo) else 0


def _output_bytes(tensors: Sequence[TensorInfo]) -> int:
    """The output matrix; where there is none the token embedding serves, and a GPU gets a copy of it."""
    by_name = {t.name: t.n_bytes for t in tensors}
    matrix = by_name.get("output.weight", by_name.get("token_embd.weight", 0))
    return matrix + by_name.get("output_norm.weight", 0)


def _format_bytes(tensors: Sequence[TensorInfo]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for tensor in tensors:
        if _LAYER.match(tensor.name) and len(tensor.shape) > 1 and tensor.shape[1] % 8 == 0:
            sums[tensor.type] += tensor.n_bytes
    return dict(sums)


def _cache_elements(header: GgufHeader, tensors: Sequence[TensorInfo], n_layers: int) -> tuple[int, ...]:
    """Elements of keys and values that each layer keeps for a token: none in recurrent layers and in those that
    share another layer's cache; only the compressed keys with multi-head latent attention."""
    with_cache = _layers_with(_KEYS_OR_VALUES, tensors)
    # Layers of linear attention have queries, keys and values as one matrix, and no cache.
    with_cache -= _layers_with(_ONE_MATRIX, tensors) & _layers_with(_STATE_SPACE, tensors)
    n_head = max(header.number("attention.head_count"), 1)
    heads = header.numbers("attention.head_count_kv", n_layers) or (n_head,) * n_layers
    usual = header.number("embedding_length") // n_head
    n_own = n_layers - header.number("attention.shared_kv_layers")
    is_latent = header.number("attention.key_length_mla") > 0
    windows = header.numbers("attention.sliding_window_pattern", n_layers) or (0,) * n_layers

    def elements(layer: int) -> int:
        if layer not in with_cache or layer >= n_own:
            return 0
        suffix = "_swa" if windows[layer] and header.number("attention.key_length_swa") else ""
        keys = header.number(f"attention.key_length{suffix}") or usual
        values = 0 if is_latent else header.number(f"attention.value_length{suffix}") or usual
        return heads[layer] * (keys + values)

    return tuple(elements(layer) for layer in range(n_layers))


def _layers_with(part: re.Pattern[str], tensors: Sequence[TensorInfo]) -> set[int]:
    return {int(found[1]) for t in tensors if (found := part.match(t.name))}


def _state_bytes(header: GgufHeader, tensors: Sequence[TensorInfo], n_layers: int) -> tuple[int, ...]:
    """What recurrent layers keep for a sequence (float32), as llama_hparams::n_embd_r and n_embd_s have it."""
    n = _mamba_state(header) or _short_convolution_state(header) or _rwkv_state(header)
    marks = (".ssm_", ".shortconv.", ".time_mix_")
    recurrent = {
        int(found[1]) for t in tensors if any(mark in t.name for mark in marks) and (found := _LAYER.match(t.name))
    }
    return tuple(4 * n if layer in recurrent else 0 for layer in range(n_layers))


def _mamba_state(header: GgufHeader) -> int:
    """The last inputs of the convolution, and the state."""
    inner, state = header.number("ssm.inner_size"), header.number("ssm.state_size")
    convolution = max(header.number("ssm.conv_kernel") - 1, 0) * (inner + 2 * header.number("ssm.group_count") * state)
    return convolution + inner * state


def _short_convolution_state(header: GgufHeader) -> int:
    return header.number("embedding_length") * max(header.number("shortconv.l_cache") - 1, 0)


def _rwkv_state(header: GgufHeader) -> int:
    shifts = header.number("token_shift_count", 2) if header.number("wkv.head_size") else 0
    return header.number("embedding_length") * (shifts + header.number("wkv.head_size"))
