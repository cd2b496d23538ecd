"""Writes a model of given shapes and formats whose weights are made up: what it says is nothing, what it costs is real.

All weights are zero but the norms, so that a file is a hole of its size: it takes no room on a disk, and no time to
write. Kernels take the same time for zeros. Only a mixture of experts must not see the same in every token, because
all tokens would then ask the same experts: there the embeddings of the tokens in use and the routers are random.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from specdec_cli.errors import ModelError
from specdec_cli.forecast.layers import Layer, Matrix
from specdec_cli.models.gguf import MAGIC, TYPE_NUMBERS, GgufHeader

N_TOKENS = 96
"""Tokens of the text that passes read."""
_STRIDE = 7919
"""A prime, so that the tokens differ."""
_ALIGNMENT = 32
_BELOW = 0x40
"""Bytes below make small, finite numbers in every format, whichever part of a scale or a number they are."""
_ROUTER = "ffn_gate_inp.weight"
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_PACKED = {_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?"}


@dataclass(frozen=True, slots=True)
class MadeUp:
    """A model to be written: the metadata that shapes a graph, and its tensors by name in their order."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, Matrix]
    n_vocab: int

    @property
    def has_experts(self) -> bool:
        return any(name.endswith(_ROUTER) for name in self.tensors)

    @property
    def n_bytes(self) -> int:
        return sum(matrix.n_bytes for matrix in self.tensors.values())

    @property
    def text(self) -> list[int]:
        """Token ids for passes, N_TOKENS."""
        return [_STRIDE * i % self.n_vocab for i in range(1, N_TOKENS + 1)]


def made_up(header: GgufHeader, outer: Layer, layers: Sequence[Layer]) -> MadeUp:
    """The model of `header` with these layers alone, and without a tokenizer. Raises ModelError for what is no model
    with an output matrix, or has a number format that is not known here."""
    tensors = dict(outer)
    for i, layer in enumerate(layers):
        tensors |= {f"blk.{i}.{name}": matrix for name, matrix in layer.items()}
    output = outer.get("output.weight") or outer.get("token_embd.weight")
    unknown = sorted({matrix.type for matrix in tensors.values()} - TYPE_NUMBERS.keys())
    if output is None or len(output.shape) != 2 or unknown:
        what = f"It has tensors of {unknown[0]}" if unknown else "It has no output matrix"
        raise ModelError(f"{what}, so its speed cannot be forecast.", hint="Choose another file.")
    n_vocab = output.shape[1]
    return MadeUp(_metadata(header, len(layers), n_vocab), tensors, n_vocab)


def _metadata(header: GgufHeader, n_layers: int, n_vocab: int) -> dict[str, Any]:
    """What is told of the architecture; lists by layer as long as there are layers."""
    arch, n_before = header.architecture, header.number("block_count")
    kept = {
        key: value[:n_layers] if isinstance(value, tuple) and len(value) == n_before else value
        for key, value in header.metadata.items()
        if key.startswith(f"{arch}.") and _can_be_written(value)
    }
    for key in (f"{arch}.nextn_predict_layers", f"{arch}.attention.shared_kv_layers"):
        if key in kept:
            kept[key] = 0
    named = {"general.architecture": arch, "tokenizer.ggml.model": "none"}
    return {**named, **kept, f"{arch}.block_count": n_layers, f"{arch}.vocab_size": n_vocab}


def write_made_up(path: Path, model: MadeUp) -> None:
    """Write the file. Raises OSError."""
    parts, infos, at = list[tuple[int, bytes]](), bytearray(), 0
    for name, matrix in model.tensors.items():
        text, n = name.encode(), len(matrix.shape)
        infos += struct.pack(f"<Q{len(text)}sI{n}QIQ", len(text), text, n, *matrix.shape, TYPE_NUMBERS[matrix.type], at)
        parts += [(at + offset, data) for offset, data in _contents(name, matrix, model)]
        at = _aligned(at + matrix.n_bytes)
    with path.open("xb") as file:
        file.write(struct.pack("<4sIQQ", MAGIC, 3, len(model.tensors), len(model.metadata)))
        for key, value in model.metadata.items():
            file.write(_text(key) + _value(value))
        file.write(infos)
        begin = _aligned(file.tell())
        _fill(file, begin, parts, begin + at)


def _fill(file: BinaryIO, begin: int, parts: Sequence[tuple[int, bytes]], size: int) -> None:
    file.truncate(size)
    for offset, data in parts:
        file.seek(begin + offset)
        file.write(data)


def _contents(name: str, matrix: Matrix, model: MadeUp) -> Iterator[tuple[int, bytes]]:
    """Bytes of a tensor that are not zero, with their places in it."""
    if len(matrix.shape) == 1 and matrix.type == "F32":
        yield 0, np.ones(matrix.shape, np.float32).tobytes()
    elif model.has_experts and name == "token_embd.weight":
        row, rng = matrix.n_bytes // matrix.shape[1], np.random.default_rng(0)
        for token in sorted({*model.text}):
            yield token * row, rng.integers(0, _BELOW, row, np.uint8).tobytes()
    elif name.endswith(_ROUTER) and matrix.type == "F32":
        # Without a mean: numbers of an embedding are positive, and would else all favour the same experts.
        weights = np.random.default_rng(len(name) + matrix.n_bytes).normal(size=matrix.shape[::-1])
        yield 0, (weights - weights.mean(axis=-1, keepdims=True)).astype(np.float32).tobytes()


def _can_be_written(value: Any) -> bool:
    """Not a list that was stepped over; and no number that 32 bits cannot hold, which no model has."""
    try:
        _value(value)
    except (struct.error, OverflowError, KeyError, AttributeError):
        return False
    return True


def _value(value: Any) -> bytes:
    """With its type, as llama.cpp expects it: it reads lists of whole numbers signed or not."""
    if isinstance(value, tuple):
        kind = _kind(value[0]) if value else _I32
        kind = _I32 if kind == _U32 else kind
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(_number(item, kind) for item in value)
    kind = _kind(value)
    return struct.pack("<I", kind) + (_text(value) if kind == _STRING else _number(value, kind))


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _U32 if value >= 0 else _I32
    return _F32 if isinstance(value, float) else _STRING


def _number(value: Any, kind: int) -> bytes:
    return struct.pack(_PACKED[kind], value)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _aligned(n: int) -> int:
    return -(-n // _ALIGNMENT) * _ALIGNMENT
