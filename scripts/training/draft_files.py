"""GGUF files of drafts and heads: what they take from the target's file, and how they are written.

Weights are float32 in NumPy as GGUF names them, [n_out, n_in], with the rows of queries and keys in the
order of llama.cpp's "norm" RoPE (neighbouring values turn together): what is read from a llama file can be
written to a llama or eagle3 file as it is.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[np.generic]]


class TargetFile:
    """A GGUF of architecture llama: its numbers, its tokenizer, its weights. Other architectures end the program,
    unless nothing but the `output_only` is wanted: then only the width, the vocabulary and the weights are read."""

    def __init__(self, path: Path, *, output_only: bool = False) -> None:
        self._reader = gguf.GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._arch = str(self._reader.fields["general.architecture"].contents())
        self.n_embd = self._number("embedding_length")
        self.n_vocab = len(self._reader.fields["tokenizer.ggml.tokens"].data)
        self.is_tied = "output.weight" not in self._tensors
        if not output_only:
            self._read_llama(path.name)

    def _read_llama(self, name: str) -> None:
        if self._arch != "llama":
            raise SystemExit(f"{name} has the architecture {self._arch}; this training knows llama.")
        if "rope_freqs.weight" in self._tensors or self._has("rope.scaling.type"):
            raise SystemExit(f"{name} scales its RoPE, which these trainings do not know.")
        self.n_layers = self._number("block_count")
        self.n_ff = self._number("feed_forward_length")
        self.n_head = self._number("attention.head_count")
        self.n_head_kv = self._number("attention.head_count_kv", self.n_head)
        self.n_ctx = self._number("context_length")
        self.rope_base = float(self._number("rope.freq_base", 10_000.0))
        self.epsilon = float(self._number("attention.layer_norm_rms_epsilon"))

    def _has(self, key: str) -> bool:
        return f"{self._arch}.{key}" in self._reader.fields

    def _number(self, key: str, default: Any = None) -> Any:
        return self._reader.fields[f"{self._arch}.{key}"].contents() if default is None or self._has(key) else default

    def weight(self, name: str) -> NDArray[np.float32]:
        """A tensor by name, without ".weight"; `output` falls back to the embedding where it is tied."""
        tensor = self._tensors["token_embd.weight" if name == "output" and self.is_tied else f"{name}.weight"]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)

    def copy_tokenizer(self, writer: gguf.GGUFWriter) -> None:
        for field in self._reader.fields.values():
            if not field.name.startswith("tokenizer."):
                continue
            if field.types[0] == gguf.GGUFValueType.ARRAY:
                writer.add_array(field.name, field.contents())
                writer.kv_data[0][field.name].sub_type = field.types[-1]
            else:
                writer.add_key_value(field.name, field.contents(), field.types[0])


def write_llama(path: Path, target: TargetFile, tensors: Tensors, *, n_layers: int, n_ff: int, name: str) -> None:
    """A small llama of the target's width and tokenizer, float32."""
    writer = gguf.GGUFWriter(path, "llama")
    _add_shape(writer, target, n_layers=n_layers, n_ff=n_ff, name=name)
    target.copy_tokenizer(writer)
    _finish(writer, tensors)


def write_eagle3(
    path: Path,
    target: TargetFile,
    tensors: Tensors,
    *,
    layers: Iterable[int],
    n_ff: int,
    d2t: NDArray[np.int64],
    name: str,
) -> None:
    """An EAGLE-3 head as llama.cpp reads it, float32.

    `tensors`, with width d of the target, r rows of the reduced vocabulary: fc.weight [d, 3 d],
    enc.output_norm.weight [3 d] (before fc), output_norm.weight [d], output.weight [r, d] and of blk.0:
    attn_norm [d] (embedding), attn_norm_2 [d] (state), attn_q [heads, 2 d], attn_k and attn_v [heads_kv, 2 d],
    attn_output [d, heads], ffn_norm, ffn_gate, ffn_up, ffn_down. `layers`: the three layers whose inputs fc
    is given. `d2t` [r]: the target's id of each row, as it is (published checkpoints store the difference).
    The embeddings are the target's, through llama.cpp's `ctx_other`.
    """
    writer = gguf.GGUFWriter(path, "eagle3")
    _add_shape(writer, target, n_layers=1, n_ff=n_ff, name=name)
    writer.add_array("eagle3.target_layers", [int(layer) for layer in layers])
    writer.add_uint32("eagle3.target_hidden_size", target.n_embd)
    writer.add_bool("eagle3.norm_before_residual", False)
    writer.add_bool("eagle3.norm_before_fc", True)
    target.copy_tokenizer(writer)
    _finish(writer, {**tensors, "d2t": d2t.astype(np.int64)})


def _add_shape(writer: gguf.GGUFWriter, target: TargetFile, *, n_layers: int, n_ff: int, name: str) -> None:
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(n_layers)
    writer.add_context_length(target.n_ctx)
    writer.add_embedding_length(target.n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(target.n_head)
    writer.add_head_count_kv(target.n_head_kv)
    writer.add_rope_freq_base(target.rope_base)
    writer.add_rope_dimension_count(target.n_embd // target.n_head)
    writer.add_layer_norm_rms_eps(target.epsilon)
    writer.add_vocab_size(target.n_vocab)


def _finish(writer: gguf.GGUFWriter, tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
