"""Medusa heads for planted targets, and the files that such heads come in."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.planted import log_chain

Tensors = Mapping[str, NDArray[Any]]


def write_safetensors(path: Path, tensors: Tensors, dtype: str = "F32") -> Path:
    """As the format has it, alignment included. BF16 keeps the upper halves."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, at = [], 0
    for name, tensor in tensors.items():
        data = np.asarray(tensor, np.float32)
        raw = {
            "F32": lambda data=data: data.tobytes(),
            "F16": lambda data=data: data.astype(np.float16).tobytes(),
            "BF16": lambda data=data: (data.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
        }[dtype]()
        header[name] = {"dtype": dtype, "shape": list(data.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        blobs.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return path


def heads_of(chain: NDArray[np.float64], n_heads: int) -> dict[str, NDArray[np.float32]]:
    """Heads without error for a planted target, whose state after token s is sqrt(V) e_s.

    Head i maps it to the logarithm of what stands i + 2 places after s, whatever is between, through one block that
    adds nothing: SiLU(0) = 0.
    """
    n = len(chain)
    tensors: dict[str, NDArray[np.float32]] = {}
    for i in range(n_heads):
        ahead = np.linalg.matrix_power(chain, i + 2)
        tensors[f"{i}.0.linear.weight"] = np.zeros((n, n), np.float32)
        tensors[f"{i}.0.linear.bias"] = np.zeros(n, np.float32)
        tensors[f"{i}.1.weight"] = (log_chain(ahead).T / np.sqrt(n)).astype(np.float32)
    return tensors
