"""Adds one tensor to a GGUF file and keeps the rest byte for byte."""

import struct
from pathlib import Path
from typing import BinaryIO

from specdec_cli.models.gguf import MAGIC, TYPE_NUMBERS, TensorInfo, read_gguf

_COUNTS = struct.Struct("<4sIQQ")
_CHUNK_BYTES = 1 << 20


def with_tensor(source: Path, other: Path, name: str, new_name: str, target: Path) -> None:
    """Write `source` to `target` with the tensor `name` of `other` added as `new_name`. Raises ModelError, OSError.

    Offsets count from the end of the header, so what is there already need not know of the header's new length.
    """
    header, theirs = read_gguf(source), read_gguf(other)
    tensor = next(t for t in theirs.tensors if t.name == name)
    alignment = int(header.metadata.get("general.alignment", 32))
    begin = _aligned(header.n_bytes, alignment)
    n_data = _aligned(max(t.offset + t.n_bytes for t in header.tensors) - begin, alignment)
    with source.open("rb") as file, other.open("rb") as theirs_file, target.open("wb") as out:
        out.write(_COUNTS.pack(MAGIC, header.version, len(header.tensors) + 1, len(header.metadata)))
        _copy(file, out, _COUNTS.size, header.n_bytes - _COUNTS.size)
        out.write(_entry(tensor, new_name, n_data))
        out.write(bytes(_aligned(out.tell(), alignment) - out.tell()))
        data_begins = out.tell()
        _copy(file, out, begin, min(n_data, header.size - begin))
        out.write(bytes(data_begins + n_data - out.tell()))
        _copy(theirs_file, out, tensor.offset, tensor.n_bytes)


def _entry(tensor: TensorInfo, name: str, offset: int) -> bytes:
    """A line of the list of tensors."""
    text, n = name.encode(), len(tensor.shape)
    return struct.pack(f"<Q{len(text)}sI{n}QIQ", len(text), text, n, *tensor.shape, TYPE_NUMBERS[tensor.type], offset)


def _copy(source: BinaryIO, target: BinaryIO, begin: int, n_bytes: int) -> None:
    source.seek(begin)
    while n_bytes > 0 and (data := source.read(min(n_bytes, _CHUNK_BYTES))):
        target.write(data)
        n_bytes -= len(data)


def _aligned(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment
