"""LoRA adapters: read with a model, applied to its contexts."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specdec_cli.errors import ModelError
from specdec_cli.llama.log import log
from specdec_cli.models.gguf import read_gguf
from specdec_cli.settings import Adapter, ControlVector

_DIRECTION = "direction."
"""Tensors of a control vector are called so, followed by the number of their layer."""


class LoadedAdapters:
    """Adapters in memory, which live as long as the model, and directions. Raises ModelError for one of another model,
    and for a file that is none."""

    def __init__(self, model: Any, name: str, adapters: Sequence[Adapter], control: Sequence[ControlVector]) -> None:
        shape = int(llama_cpp.llama_model_n_layer(model)), int(llama_cpp.llama_model_n_embd(model))
        self._directions = sum(directions(one, name, *shape) for one in control) if control else None
        self._handles = [_loaded(model, name, adapter) for adapter in adapters]
        self._scales = [adapter.scale for adapter in adapters]

    def apply(self, context: Any) -> None:
        """Add them to the weights in this context, which has evaluated nothing yet. Raises ModelError."""
        if self._directions is not None:
            self._steer(context, np.ascontiguousarray(self._directions))
        n = len(self._handles)
        if n == 0:
            return
        handles = (llama_cpp.llama_adapter_lora_p_ctypes * n)(*self._handles)
        scales = (ctypes.c_float * n)(*self._scales)
        if llama_cpp.llama_set_adapters_lora(context, handles, n, scales) != 0:
            raise ModelError(
                f"llama.cpp could not apply the LoRA adapters: {log.reason() or 'no reason given'}.",
                hint="Run again with --log FILE to see llama.cpp's messages.",
            )

    def _steer(self, context: Any, data: NDArray[np.float32]) -> None:
        n_layers, n_embd = data.shape
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        if llama_cpp.llama_set_adapter_cvec(context, pointer, data.size, n_embd, 1, n_layers) != 0:
            raise ModelError(
                f"llama.cpp could not apply the control vectors: {log.reason() or 'no reason given'}.",
                hint="Run again with --log FILE to see llama.cpp's messages.",
            )


def directions(vector: ControlVector, name: str, n_layers: int, n_embd: int) -> NDArray[np.float32]:
    """What is added behind each layer from the second on, shape [n_layers - 1, n_embd]. Raises ModelError where the
    file has no directions, or those of another model."""
    path, found = Path(vector.file), np.zeros((max(n_layers - 1, 0), n_embd), np.float32)
    tensors = [t for t in read_gguf(path).tensors if t.name.removeprefix(_DIRECTION).isdecimal()]
    if not tensors:
        raise ModelError(f"{path.name} is no control vector.", hint="Make one with llama.cpp's cvector-generator.")
    for tensor in tensors:
        layer = int(tensor.name.removeprefix(_DIRECTION))
        if tensor.type != "F32" or tensor.shape != (n_embd,) or not 1 <= layer < n_layers:
            raise ModelError(
                f"{path.name} is no control vector for {name}: {tensor.name} has shape {list(tensor.shape)} and type "
                f"{tensor.type}, and this model {n_layers} layers of width {n_embd}.",
                hint="Use a control vector made for this model.",
            )
        if vector.first <= layer <= (vector.last or n_layers):
            found[layer - 1] = vector.scale * np.fromfile(path, np.float32, n_embd, offset=tensor.offset)
    return found


def _loaded(model: Any, name: str, adapter: Adapter) -> Any:
    log.start_afresh()
    handle = llama_cpp.llama_adapter_lora_init(model, os.fsencode(adapter.file))
    if not handle:
        raise ModelError(
            f"{Path(adapter.file).name} is no LoRA adapter for {name}: {log.reason() or 'llama.cpp gave no reason'}.",
            hint="Use an adapter made for this model, converted with convert_lora_to_gguf.py.",
        )
    return handle
