"""Tiny trained heads for the planted targets of `planted`: random ones, and ones that are always right.

A target whose output projections are zero carries the one-hot vector of a token through all its layers, so its
hidden states are known: the input of any layer at position P is e_s, s being the token there. For such a target two
EAGLE-3 heads can be written down that draft without a mistake:

- `by_token` does not look at the states (its projection is zero). Its keys and queries are random vectors of the
  token and so long that a position sees only positions with the same token; their values are that token's one-hot
  vector. Its logits are then log P[token], the target's own. The feed-forward layer makes all that a thousand times
  shorter (the last norm undoes it), so that it does not disturb the next step, whose state it is; for the layer to be
  linear the values carry a long vector in the place of token 0 as well, which must never come.
- `by_state` does not look at the tokens (its attention is zero). The target is to follow a permutation,
  s -> pi(s). The projection turns e_s of position P into the one-hot vector of pi(s), which is the token at P + 1,
  and the feed-forward layer turns that, and later the head's own state, one step further.

Each is right only if tokens, states and positions are put together as they should be.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.planted import (
    RMS_EPSILON,
    Chain,
    Tensors,
    Vocab,
    _ends,
    _feed_forward,
    _keys,
    _Shape,
    _Weights,
    add_vocab,
    log_chain,
    make_vocab,
)

Matrix = NDArray[np.float32]


def permutation_chain(n_vocab: int, seed: int, never: int = 3) -> tuple[Chain, NDArray[np.intp]]:
    """P that follows a permutation with probability 0.999, one circle of all tokens but the first `never`."""
    circle = np.random.default_rng(seed).permutation(np.arange(never, n_vocab))
    follows = np.arange(n_vocab)
    follows[circle] = np.roll(circle, -1)
    follows[:never] = circle[0]
    chain = np.full((n_vocab, n_vocab), 0.0)
    chain[:, never:] = 0.001 / (n_vocab - never - 1)
    chain[np.arange(n_vocab), follows] = 0.999
    return chain, follows


def write_eagle3(
    path: Path,
    n_embd: int,
    *,
    layers: tuple[int, ...] = (0, 1, 2),
    target_width: int | None = None,
    vocab: Vocab | int | None = None,
    drafted: NDArray[np.int64] | None = None,
    own_embeddings: bool = False,
    own_output: bool = True,
    seed: int = 0,
    tensors: Tensors | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """A head of width `n_embd` for a target of `target_width`; random but for `tensors`.

    `vocab` is a tokenizer, a number of tokens without one, or None for a planted target's. `drafted` are the
    target's ids of a reduced vocabulary.
    """
    rng = np.random.default_rng(seed)
    vocab = make_vocab(n_embd) if vocab is None else vocab
    n_tokens = vocab if isinstance(vocab, int) else len(vocab)
    n_drafted = n_tokens if drafted is None else len(drafted)
    width = 3 * (target_width or n_embd)

    def matrix(n_out: int, n_in: int) -> Matrix:
        return (rng.normal(size=(n_out, n_in)) / np.sqrt(n_in)).astype(np.float32)

    ones = np.ones(n_embd, np.float32)
    all_tensors: Tensors = {
        "fc.weight": matrix(n_embd, width),
        "output_norm.weight": ones,
        "blk.0.attn_norm.weight": ones,
        "blk.0.attn_norm_2.weight": ones,
        **{f"blk.0.attn_{name}.weight": matrix(n_embd, 2 * n_embd) for name in "qkv"},
        "blk.0.attn_output.weight": matrix(n_embd, n_embd),
        "blk.0.ffn_norm.weight": ones,
        **{f"blk.0.ffn_{name}.weight": matrix(2 * n_embd, n_embd) for name in ("gate", "up")},
        "blk.0.ffn_down.weight": matrix(n_embd, 2 * n_embd),
    }
    if own_output:
        all_tensors["output.weight"] = 3 * matrix(n_drafted, n_embd)
    if own_embeddings:
        all_tensors["token_embd.weight"] = matrix(n_tokens, n_embd)
    if drafted is not None:
        all_tensors["d2t"] = drafted.astype(np.int64)
    writer = _writer(path, "eagle3", n_embd, 1, vocab)
    writer.add_array("eagle3.target_layers", list(layers))
    writer.add_uint32("eagle3.target_hidden_size", target_width or n_embd)
    return _finish(writer, path, all_tensors | (tensors or {}), metadata)


def by_token(chain: Chain, seed: int = 0) -> Tensors:
    """Weights of a head that draws from `chain` exactly: see the module's text."""
    n, long = len(chain), 30.0
    nothing, values, gate = np.zeros((n, n)), np.eye(n), np.zeros(n)
    values[0] = long
    gate[0] = 1.0
    keys = np.hstack([np.random.default_rng(seed).normal(size=(n, n)) / np.sqrt(n), nothing]).astype(np.float32)
    logits = long * log_chain(chain).T
    logits[:, 0] = 0.0
    return {
        "fc.weight": np.zeros((n, 3 * n), np.float32),
        "blk.0.attn_q.weight": 40 * keys,
        "blk.0.attn_k.weight": keys,
        "blk.0.attn_v.weight": np.hstack([values / np.sqrt(n), nothing]).astype(np.float32),
        "blk.0.attn_output.weight": np.eye(n, dtype=np.float32),
        **_added(-0.999 * long * np.eye(n), gate),
        "output.weight": (logits / np.sqrt(n)).astype(np.float32),
    }


def by_state(chain: Chain, follows: NDArray[np.intp]) -> Tensors:
    """Weights of a head that follows a permutation: see the module's text."""
    n = len(chain)
    step, nothing = np.zeros((n, n)), np.zeros((n, n))
    step[follows, np.arange(n)] = 1.0
    return {
        "fc.weight": np.hstack([nothing, step, nothing]).astype(np.float32),
        "blk.0.attn_output.weight": np.zeros((n, n), np.float32),
        **_added(step - np.eye(n), np.ones(n)),
        "output.weight": (30 * np.eye(n) / np.sqrt(n)).astype(np.float32),
    }


def _added(change: NDArray[np.float64], gate: NDArray[np.float64]) -> Tensors:
    """A feed-forward layer that adds `change` x / sqrt(n) to a vector x that its norm and `gate` make sqrt(n) long."""
    n, large = len(change), 20.0  # SiLU leaves that as it is
    nothing = np.zeros((n, n))
    return {
        "blk.0.ffn_gate.weight": np.vstack([np.tile(large * gate / np.sqrt(n), (n, 1)), nothing]).astype(np.float32),
        "blk.0.ffn_up.weight": np.vstack([np.eye(n), nothing]).astype(np.float32),
        "blk.0.ffn_down.weight": np.hstack([change / (large * np.sqrt(n)), nothing]).astype(np.float32),
    }


def write_mtp(
    path: Path,
    chain: Chain,
    *,
    part: Literal["both", "trunk", "head"] = "both",
    reads: Literal["token", "state", "random"] = "random",
    follows: NDArray[np.intp] | None = None,
    n_nextn: int = 1,
    mixing: float = 0.0,
    seed: int = 0,
    metadata: Mapping[str, Any] | None = None,
    without: str = "",
    half: bool = False,
) -> Path:
    """A planted model of the architecture glm4moe with a layer that predicts a further token, or one of the two alone.

    Such a layer joins a token's embedding and the target's last state, both normed. If it `reads` one of them and
    nothing else it is always right: the token for any chain, the state for a permutation (`follows`).
    """
    n, trunk = len(chain), 2
    weights = _Weights(seed, np.dtype(np.float32), mixing)
    shape = _Shape(n, trunk, 4, 2 * n, 0, 4096)
    ones, nothing, step = np.ones(n, np.float32), np.zeros((n, n)), np.zeros((n, n))
    if follows is not None:
        step[follows, np.arange(n)] = 1.0

    def attention() -> Tensors:
        return {
            **_keys(weights, shape),
            "attn_output.weight": weights.back(n, n),
            "post_attention_norm.weight": ones,
        }

    tensors: Tensors = {**_ends(chain, 0, 0.0, np.dtype(np.float32)), "output_norm.weight": ones}
    for layer in range(trunk if part != "head" else 0):
        ffn = {**_feed_forward(weights, shape), "ffn_down.weight": weights.back(n, 2 * n)}
        del ffn["ffn_norm.weight"]
        tensors |= {f"blk.{layer}.{name}": tensor for name, tensor in {**attention(), **ffn}.items()}
    joined = {
        "token": np.hstack([np.eye(n), nothing]),
        "state": np.hstack([nothing, step]),
        "random": np.random.default_rng(seed).normal(size=(n, 2 * n)) / np.sqrt(2 * n),
    }
    for layer in range(trunk, trunk + n_nextn if part != "trunk" else trunk):
        experts = {
            "ffn_gate_inp.weight": weights.inner(_EXPERTS, n),
            "exp_probs_b.bias": np.zeros(_EXPERTS, np.float32),
            **{
                f"ffn_{name}_exps.weight": weights.inner(_EXPERTS * 32, n).reshape(_EXPERTS, 32, n)
                for name in ("gate", "up")
            },
            "ffn_down_exps.weight": np.zeros((_EXPERTS, n, 32), np.float32),
            **{f"ffn_{name}_shexp.weight": weights.inner(32, n) for name in ("gate", "up")},
            "ffn_down_shexp.weight": np.zeros((n, 32), np.float32),
            "nextn.eh_proj.weight": (joined[reads] / np.sqrt(n)).astype(np.float32),
            "nextn.enorm.weight": ones,
            "nextn.hnorm.weight": ones,
        }
        tensors |= {f"blk.{layer}.{name}": tensor for name, tensor in {**attention(), **experts}.items()}
    writer = _writer(path, "glm4moe", n, trunk + n_nextn, make_vocab(n))
    writer.add_nextn_predict_layers(n_nextn)
    writer.add_leading_dense_block_count(trunk)
    writer.add_expert_count(_EXPERTS)
    writer.add_expert_used_count(1)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(32)
    kept = {k: v.astype(np.float16) if half else v for k, v in tensors.items() if k != without}
    return _finish(writer, path, kept, metadata)


_EXPERTS = 2


def write_dflash(
    path: Path,
    n_embd: int,
    kind: Literal["dflash", "dflash2", "dspark"] = "dflash",
    *,
    layers: tuple[int, ...] = (0, 2),
    block: int = 6,
    mask: int | None = 0,
    drafted: NDArray[np.int64] | None = None,
    chain: Chain | None = None,
    confidence: bool = True,
    seed: int = 0,
    tensors: Tensors | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """A head of the DFlash family; with `chain` a DSpark head whose Markov part knows it and whose rest is silent."""
    rng = np.random.default_rng(seed)
    vocab = make_vocab(n_embd)
    n_drafted = n_embd if drafted is None else len(drafted)
    rank = n_embd if chain is not None else 32

    def matrix(n_out: int, n_in: int) -> Matrix:
        return (rng.normal(size=(n_out, n_in)) / np.sqrt(n_in)).astype(np.float32)

    ones, head = np.ones(n_embd, np.float32), np.ones(n_embd // 4, np.float32)
    all_tensors: Tensors = {
        "fc.weight": matrix(n_embd, len(layers) * n_embd),
        "enc.output_norm.weight": ones,
        "output_norm.weight": ones,
        "output.weight": 3 * matrix(n_drafted, n_embd),
        "blk.0.attn_norm.weight": ones,
        **{f"blk.0.attn_{name}.weight": matrix(n_embd, n_embd) for name in ("q", "k", "v", "output")},
        "blk.0.attn_q_norm.weight": head,
        "blk.0.attn_k_norm.weight": head,
        "blk.0.ffn_norm.weight": ones,
        **{f"blk.0.ffn_{name}.weight": matrix(2 * n_embd, n_embd) for name in ("gate", "up")},
        "blk.0.ffn_down.weight": matrix(n_embd, 2 * n_embd),
    }
    if drafted is not None:
        all_tensors["d2t"] = drafted.astype(np.int64)
    if kind == "dspark":
        all_tensors["markov_w1.weight"] = (
            np.eye(n_embd, dtype=np.float32) if chain is not None else matrix(n_embd, rank)
        )
        all_tensors["markov_w2.weight"] = matrix(n_drafted, rank)
        if confidence:
            all_tensors["conf_proj.weight"] = matrix(1, n_embd + rank)
        if chain is not None:
            all_tensors["markov_w2.weight"] = log_chain(chain).T.astype(np.float32)
            all_tensors["output.weight"] = np.zeros((n_embd, n_embd), np.float32)
    writer = _writer(path, "dflash", n_embd, 1, vocab)
    writer.add_array("dflash.target_layers", list(layers))
    writer.add_uint32("dflash.block_size", block)
    if mask is not None:
        writer.add_mask_token_id(mask)
    if kind == "dflash2":
        all_tensors |= {
            "selector_predecessor.weight": matrix(n_embd, rank),
            "selector_successor.weight": matrix(n_embd, rank),
            "selector_hidden.weight": matrix(rank, n_embd),
        }
        kernel, group = 2, n_embd // 4
        for part in ("attn", "ffn"):
            all_tensors[f"blk.0.{part}_conv_base"] = rng.normal(size=(2, kernel, n_embd)).astype(np.float32)
            all_tensors[f"blk.0.{part}_conv_proj.weight"] = matrix(2 * kernel * n_embd // group, n_embd)
        for key, value in (("conv_kernel_size", kernel), ("conv_group_size", group), ("selector_rank", rank)):
            writer.add_uint32(f"dflash.{key}", value)
        writer.add_uint32("dflash.selector_top_k", 4)
    return _finish(writer, path, all_tensors | (tensors or {}), metadata)


def _writer(path: Path, arch: str, n_embd: int, n_layers: int, vocab: Vocab | int, n_head: int = 4) -> gguf.GGUFWriter:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(path.stem)
    writer.add_context_length(4096)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(2 * n_embd)
    writer.add_head_count(n_head)
    writer.add_layer_norm_rms_eps(RMS_EPSILON)
    if isinstance(vocab, int):
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(vocab)
    else:
        add_vocab(writer, vocab)
    return writer


def _finish(writer: gguf.GGUFWriter, path: Path, tensors: Tensors, metadata: Mapping[str, Any] | None) -> Path:
    for key, value in (metadata or {}).items():
        writer.kv_data[0].pop(key, None)
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
