"""Reads the outputs of a model's layers while llama.cpp computes."""

import ctypes
import re
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specdec_cli.errors import DecodeFailed, OutOfMemory
from specdec_cli.llama.devices import ggml_function
from specdec_cli.llama.model import LlamaModel

States = NDArray[np.float32]
"""The residual stream at every token, shape [tokens, n_embd]."""

_LAYER_OUTPUT = re.compile(rb"l_out-(\d+)")


def layer_outputs(model: LlamaModel, tokens: Sequence[int], *, threads: int) -> dict[int, States]:
    """The residual stream after each layer, by the layer's number, for a text of `tokens`.

    llama.cpp names these nodes l_out in the graphs of nearly every architecture, and shows every node to a callback
    (the way its importance matrices are made): unlike its layer inputs, which end the process where a graph does
    not know them, a name that does not come is only missing here. Raises OutOfMemory, DecodeFailed.
    """
    found: dict[int, States] = {}
    reader = _Reader(found, len(tokens))
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(len(tokens), 32)
    params.n_outputs_max = len(tokens)
    params.n_threads = params.n_threads_batch = threads
    params.cb_eval = callback = llama_cpp.ggml_backend_sched_eval_callback(reader.see)
    context = llama_cpp.llama_init_from_model(model.handle, params)
    if not context:
        raise OutOfMemory(f"Could not create a context of {len(tokens)} tokens.", hint="Free some memory.")
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    try:
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
        if llama_cpp.llama_decode(context, batch) != 0:
            raise DecodeFailed("llama.cpp could not evaluate the text.", hint="Use another model file.")
    finally:
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        del callback
    return found


class _Reader:
    """Sees every node of a graph twice: before it is computed (to say whether it is wanted), and after."""

    def __init__(self, found: dict[int, States], n_tokens: int) -> None:
        self._found = found
        self._n_tokens = n_tokens
        self._name = ggml_function("ggml_get_name", ctypes.c_char_p, ctypes.c_void_p)
        self._n_bytes = ggml_function("ggml_nbytes", ctypes.c_size_t, ctypes.c_void_p)
        self._n_elements = ggml_function("ggml_nelements", ctypes.c_int64, ctypes.c_void_p)
        self._read = ggml_function(
            "ggml_backend_tensor_get", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
        )

    def see(self, node: Any, ask: bool, _data: Any) -> bool:
        name = _LAYER_OUTPUT.fullmatch(self._name(node))
        if name is None:
            return not ask  # False here would end the computation
        if not ask:
            self._keep(int(name[1]), node)
        return True

    def _keep(self, layer: int, node: Any) -> None:
        n = self._n_elements(node)
        if self._n_bytes(node) != 4 * n or n % self._n_tokens:
            return  # not the float32 rows of all tokens
        states = np.empty((self._n_tokens, n // self._n_tokens), np.float32)
        self._read(node, states.ctypes.data, 0, states.nbytes)
        self._found[layer] = states
