"""GGUF files of any real shape whose next token is known: the cost of a large model without its weights.

A planted model of the tests has as many tokens as its embedding is wide. Here each token has a code instead: `width`
signs, one row of the embedding, made of its id. Two codes of a thousand signs are nearly at right angles. The
projections back into the residual stream are zero, so the last token's code leaves the layers as it came, at the price
of a layer full of numbers; and row v of the output matrix is the code of the token before v, so its logit is `TOP`,
and that of any other token a few times TOP / sqrt(width) at most. The signs are exact in every format; matrices are
written one by one, so that no more than one of them is ever in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from scripts.benchmarks.number_formats import FORMATS, Bytes, NumberFormat
from tests.planted import Vocab, add_vocab

Follows = NDArray[np.intp]
"""By token, the one that comes after it, shape [n_vocab]: a permutation."""

TOP = 16.0
_ROWS = 4096
"""Codes that are made at once."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a Llama-like model. Widths are multiples of 64."""

    n_layers: int
    width: int
    n_ff: int
    n_head: int
    n_head_kv: int

    @property
    def kv_width(self) -> int:
        return self.width // self.n_head * self.n_head_kv


def write_coded(path: Path, shape: Shape, vocab: Vocab, follows: Follows, quant: str = "Q4_0") -> Path:
    """Write the model in which `follows[s]` comes after token s, in one of FORMATS, and return its path."""
    matrices = FORMATS[quant]
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_layer_norm_rms_eps(1e-6)
    add_vocab(writer, vocab)
    for name, size in _sizes(shape, len(vocab)):
        is_matrix = len(size) == 2
        n_bytes = size[0] * matrices.row_bytes(size[1]) if is_matrix else 4 * size[0]
        kind = matrices.kind if is_matrix else GGMLQuantizationType.F32
        writer.add_tensor_info(name, size, np.dtype(np.float32), n_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for matrix in _tensors(shape, len(vocab), follows, matrices):
        writer.write_tensor_data(matrix)
    writer.close()
    return path


def _sizes(shape: Shape, n_vocab: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and [rows, columns], or [columns], of all tensors, in the order of `_tensors`."""
    w = shape.width
    yield "token_embd.weight", (n_vocab, w)
    yield "output.weight", (n_vocab, w)
    yield "output_norm.weight", (w,)
    for i in range(shape.n_layers):
        yield f"blk.{i}.attn_norm.weight", (w,)
        yield f"blk.{i}.attn_q.weight", (w, w)
        yield f"blk.{i}.attn_k.weight", (shape.kv_width, w)
        yield f"blk.{i}.attn_v.weight", (shape.kv_width, w)
        yield f"blk.{i}.attn_output.weight", (w, w)
        yield f"blk.{i}.ffn_norm.weight", (w,)
        yield f"blk.{i}.ffn_gate.weight", (shape.n_ff, w)
        yield f"blk.{i}.ffn_up.weight", (shape.n_ff, w)
        yield f"blk.{i}.ffn_down.weight", (w, shape.n_ff)


def _tensors(shape: Shape, n_vocab: int, follows: Follows, matrices: NumberFormat) -> Iterator[NDArray[np.generic]]:
    w, rng = shape.width, np.random.default_rng(0)
    before = np.empty(n_vocab, np.intp)
    before[follows] = np.arange(n_vocab)
    ones = np.ones(w, np.float32)
    yield coded(np.arange(n_vocab), w, 1.0, matrices)
    yield coded(before, w, TOP / w, matrices)
    yield ones
    for _ in range(shape.n_layers):
        yield ones
        yield matrices.random(w, w, rng)
        yield matrices.random(shape.kv_width, w, rng)
        yield matrices.random(shape.kv_width, w, rng)
        yield matrices.zeros(w, w)
        yield ones
        yield matrices.random(shape.n_ff, w, rng)
        yield matrices.random(shape.n_ff, w, rng)
        yield matrices.zeros(w, shape.n_ff)


def coded(tokens: NDArray[np.intp], width: int, size: float, matrices: NumberFormat) -> Bytes:
    """The codes of these tokens, `size` times 1 or -1, one row each."""
    rows = np.empty((len(tokens), matrices.row_bytes(width)), np.uint8)
    for at in range(0, len(tokens), _ROWS):
        rows[at : at + _ROWS] = matrices.signs(_signs(tokens[at : at + _ROWS], width), size)
    return rows


def _signs(tokens: NDArray[np.intp], width: int) -> Bytes:
    """0 or 1, shape [tokens, width]: a hash of token and column (splitmix64's last steps)."""
    x = (tokens.astype(np.uint64)[:, None] << np.uint64(16)) + np.arange(width // 64, dtype=np.uint64)
    x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return np.unpackbits(x.view(np.uint8).reshape(len(tokens), -1), axis=1)
