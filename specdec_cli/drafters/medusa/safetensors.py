"""Reading safetensors files: 8 bytes with the length of a JSON header, the header, raw tensors. Nothing is executed.

The format is at https://github.com/huggingface/safetensors. Every number of the header is checked against the file
before it is used.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_cli.errors import ModelError

_LARGEST_HEADER = 100_000_000
"""The format's own limit."""
_DTYPES: Mapping[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_DAMAGED = "Download or convert it again. Pickled .pt and .bin files are not supported."


def read_safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """All tensors of the file as float32, by name. Raises ModelError for a file that cannot be read or is damaged."""
    try:
        data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror or error}.", hint="Check the path.") from error
    entries, start = _header(path, data)
    return {name: _tensor(path, name, entry, data[start:]) for name, entry in entries.items() if name != "__metadata__"}


def _header(path: Path, data: NDArray[np.uint8]) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors begin."""
    n = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or not 2 <= n <= min(len(data) - 8, _LARGEST_HEADER):
        raise _damaged(path, "its header is shorter than declared")
    try:
        entries = json.loads(data[8 : 8 + n].tobytes().decode())
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header is not JSON") from error
    if not isinstance(entries, dict):
        raise _damaged(path, "its header is not a table of tensors")
    return entries, 8 + n


def _tensor(path: Path, name: str, entry: object, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """One tensor; `data` are the bytes behind the header."""
    shown = name if len(name) <= 60 else f"{name[:60]}..."
    if not isinstance(entry, dict):
        raise _damaged(path, f"tensor {shown!r} has no description")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ModelError(
            f"{path.name} has a tensor {shown!r} of type {dtype!r}.", hint=f"Convert it to {', '.join(_DTYPES)}."
        )
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(path, f"tensor {shown!r} has no shape or offsets")
    begin, end = offsets
    if not begin <= end <= len(data) or math.prod(shape) * _DTYPES[dtype].itemsize != end - begin:
        raise _damaged(path, f"tensor {shown!r} lies outside the file")
    raw = np.frombuffer(data[begin:end], _DTYPES[dtype]).reshape(shape)
    if dtype == "BF16":  # the upper half of a float32
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)


def _are_sizes(values: Any) -> bool:
    """Whether this is a list of whole numbers from 0 on; True and False are not."""
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path.name} is not a valid safetensors file: {what}.", hint=_DAMAGED)
