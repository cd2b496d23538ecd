"""Single matrices of a GGUF file, dequantized by llama.cpp's own code."""

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdec_cli.errors import ModelError
from specdec_cli.llama.devices import ggml_function
from specdec_cli.models.gguf import TYPE_NUMBERS, TensorInfo, parts_of, read_model

_TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class _Traits(ctypes.Structure):
    """struct ggml_type_traits of ggml.h, up to the function that unpacks."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
    )


def output_matrix(path: Path) -> NDArray[np.float32]:
    """What turns the last state into logits, shape [n_vocab, n_embd]; often the embedding serves as it.

    Raises ModelError for a file that cannot be read, has no such matrix, or has it in a format that has no numbers.
    """
    found: dict[str, tuple[Path, TensorInfo]] = {}
    for part, header in zip(parts_of(path.name), read_model(path), strict=True):
        found |= {tensor.name: (path.with_name(part), tensor) for tensor in header.tensors}
    for name in ("output.weight", "token_embd.weight"):
        if name in found:
            return _unpacked(*found[name])
    raise ModelError(f"{path.name} has no output matrix.", hint="Use the complete model.")


def _unpacked(path: Path, tensor: TensorInfo) -> NDArray[np.float32]:
    n_embd, n_vocab = tensor.shape
    packed = np.fromfile(path, np.uint8, tensor.n_bytes, offset=tensor.offset)
    if tensor.type == "F32":
        return packed.view(np.float32).reshape(n_vocab, n_embd)
    traits = ggml_function("ggml_get_type_traits", ctypes.POINTER(_Traits), ctypes.c_int)
    to_float = traits(TYPE_NUMBERS[tensor.type]).contents.to_float
    if not to_float:
        raise ModelError(
            f"{tensor.name} in {path.name} has type {tensor.type}, which cannot be dequantized.",
            hint="Use another format.",
        )
    matrix = np.empty((n_vocab, n_embd), np.float32)
    _TO_FLOAT(to_float)(packed.ctypes.data, matrix.ctypes.data, matrix.size)
    return matrix
