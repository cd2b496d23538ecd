"""Tiny random models of hybrid architectures: recurrent layers with large states, and attention, by turns.

"qwen35" has gated delta nets, "nemotron_h" and "granitehybrid" have Mamba-2 layers; llama.cpp keeps snapshots of the
first two. Nothing is known of what they compute, except that logits depend on the whole prefix.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.planted import Tensors, add_vocab, make_vocab

N_VOCAB = 320
_WIDTH, _HEADS, _HEAD, _FF = 64, 4, 16, 128
_CONV, _STATE, _GROUPS, _STATE_HEADS, _INNER = 4, 16, 2, 4, 128


class _Random:
    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def matrix(self, n_out: int, n_in: int, size: float = 1.0) -> NDArray[np.float32]:
        """From RMS 1 to RMS `size`."""
        return (self._rng.normal(size=(n_out, n_in)) * size / np.sqrt(n_in)).astype(np.float32)

    def numbers(self, *shape: int) -> NDArray[np.float32]:
        return self._rng.normal(size=shape).astype(np.float32)


def ones(*shape: int) -> NDArray[np.float32]:
    return np.ones(shape, np.float32)


def write_hybrid(path: Path, arch: str, seed: int = 0, disturbance: float = 0.0) -> Path:
    """Four layers of `arch`. `disturbance` > 0 makes a draft for the model of the same seed."""
    add_shape, layers = _ARCHITECTURES[arch]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(4096)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(len(layers))
    writer.add_head_count(_HEADS)
    writer.add_key_length(_HEAD)
    writer.add_value_length(_HEAD)
    writer.add_rope_dimension_count(_HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_ssm_conv_kernel(_CONV)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_group_count(_GROUPS)
    writer.add_ssm_time_step_rank(_STATE_HEADS)
    add_shape(writer)
    add_vocab(writer, make_vocab(N_VOCAB))
    w = _Random(seed)
    tensors: Tensors = {
        "token_embd.weight": w.matrix(N_VOCAB, _WIDTH, np.sqrt(_WIDTH)),
        "output.weight": w.matrix(N_VOCAB, _WIDTH, 3.0),
        "output_norm.weight": ones(_WIDTH),
    }
    for i, layer in enumerate(layers):
        of_layer = {"attn_norm.weight": ones(_WIDTH), **layer(w)}
        tensors |= {f"blk.{i}.{name}": tensor for name, tensor in of_layer.items()}
    tensors["output.weight"] += disturbance * _Random(seed + 1).matrix(N_VOCAB, _WIDTH)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _attention(w: _Random, gated: bool = False) -> Tensors:
    n = _HEADS * _HEAD
    return {
        "attn_q.weight": w.matrix(2 * n if gated else n, _WIDTH),
        "attn_k.weight": w.matrix(n, _WIDTH),
        "attn_v.weight": w.matrix(n, _WIDTH),
        "attn_output.weight": w.matrix(_WIDTH, n),
    }


def _feed_forward(w: _Random) -> Tensors:
    return {"ffn_up.weight": w.matrix(_FF, _WIDTH), "ffn_down.weight": w.matrix(_WIDTH, _FF)}


def _gated_feed_forward(w: _Random) -> Tensors:
    return {"ffn_gate.weight": w.matrix(_FF, _WIDTH), **_feed_forward(w)}


def _mamba2(w: _Random) -> Tensors:
    convolved = _INNER + 2 * _GROUPS * _STATE
    return {
        "ssm_in.weight": w.matrix(_INNER + convolved + _STATE_HEADS, _WIDTH),
        "ssm_conv1d.weight": w.matrix(convolved, _CONV),
        "ssm_conv1d.bias": w.numbers(convolved),
        "ssm_dt.bias": w.numbers(_STATE_HEADS),
        "ssm_a": -np.exp(w.numbers(_STATE_HEADS, 1)),
        "ssm_d": w.numbers(_STATE_HEADS, 1),
        "ssm_norm.weight": ones(_GROUPS, _INNER // _GROUPS),
        "ssm_out.weight": w.matrix(_WIDTH, _INNER),
    }


def _delta_net(w: _Random) -> Tensors:
    values = _STATE * _STATE_HEADS
    convolved = 2 * _STATE * _GROUPS + values
    return {
        "attn_qkv.weight": w.matrix(convolved, _WIDTH),
        "attn_gate.weight": w.matrix(values, _WIDTH),
        "ssm_conv1d.weight": w.matrix(convolved, _CONV),
        "ssm_dt.bias": w.numbers(_STATE_HEADS),
        "ssm_a": -np.exp(w.numbers(_STATE_HEADS)),
        "ssm_beta.weight": w.matrix(_STATE_HEADS, _WIDTH),
        "ssm_alpha.weight": w.matrix(_STATE_HEADS, _WIDTH),
        "ssm_norm.weight": ones(_STATE),
        "ssm_out.weight": w.matrix(_WIDTH, values),
    }


# --- qwen35 ---------------------------------------------------------------------------------------------


def _qwen35_shape(writer: gguf.GGUFWriter) -> None:
    writer.add_ssm_inner_size(_STATE * _STATE_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_feed_forward_length(_FF)
    writer.add_array("qwen35.rope.dimension_sections", [_HEAD // 4, _HEAD // 4, 0, 0])
    writer.add_uint32("qwen35.full_attention_interval", 2)


def _qwen35_recurrent(w: _Random) -> Tensors:
    return {"post_attention_norm.weight": ones(_WIDTH), **_delta_net(w), **_gated_feed_forward(w)}


def _qwen35_attention(w: _Random) -> Tensors:
    norms = {f"attn_{name}_norm.weight": ones(_HEAD) for name in "qk"}
    gates = _attention(w, gated=True)
    return {"post_attention_norm.weight": ones(_WIDTH), **gates, **norms, **_gated_feed_forward(w)}


# --- nemotron_h -----------------------------------------------------------------------------------------


def _nemotron_h_shape(writer: gguf.GGUFWriter) -> None:
    writer.add_ssm_inner_size(_INNER)
    writer.add_layer_norm_eps(1e-6)
    writer.add_head_count_kv([0, 0, 0, _HEADS])
    writer.add_feed_forward_length([0, _FF, 0, 0])


# --- granitehybrid --------------------------------------------------------------------------------------


def _granite_shape(writer: gguf.GGUFWriter) -> None:
    writer.add_ssm_inner_size(_INNER)
    writer.add_head_count_kv([0, _HEADS, 0, _HEADS])
    writer.add_feed_forward_length(_FF)
    for name in ("logit_scale", "residual_scale", "embedding_scale"):
        writer.add_float32(f"granitehybrid.{name}", 1.0)
    writer.add_float32("granitehybrid.attention.scale", _HEAD**-0.5)


def _granite_recurrent(w: _Random) -> Tensors:
    return {"ffn_norm.weight": ones(_WIDTH), **_mamba2(w), **_gated_feed_forward(w)}


def _granite_attention(w: _Random) -> Tensors:
    return {"ffn_norm.weight": ones(_WIDTH), **_attention(w), **_gated_feed_forward(w)}


_Layer = Callable[[_Random], Tensors]
_ARCHITECTURES: Mapping[str, tuple[Callable[[gguf.GGUFWriter], None], list[_Layer]]] = {
    "qwen35": (_qwen35_shape, [_qwen35_recurrent, _qwen35_attention] * 2),
    "nemotron_h": (_nemotron_h_shape, [_mamba2, _feed_forward, _mamba2, _attention]),
    "granitehybrid": (_granite_shape, [_granite_recurrent, _granite_attention] * 2),
}
