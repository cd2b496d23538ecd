"""The state of a context as bytes."""

import ctypes
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray


def take_state(context: Any) -> NDArray[np.uint8]:
    """All of it, to be put into a context of the same kind."""
    # Of all sequences, that is of one: asked for by its number, llama.cpp leaves out what a sliding window has
    # passed, which a shorter prompt needs again.
    state = np.empty(llama_cpp.llama_state_seq_get_size(context, -1), np.uint8)
    written = llama_cpp.llama_state_seq_get_data(context, _bytes_of(state), len(state), -1)
    return state[:written]


def put_state(context: Any, state: NDArray[np.uint8], first: int, last: int) -> bool:
    """Whether the memory now holds the `state` [bytes], from position `first` to `last`. If not it is empty."""
    memory = llama_cpp.llama_get_memory(context)
    llama_cpp.llama_memory_clear(memory, True)
    # As sequence 0: the state of a whole context is put where the next tokens would overwrite it.
    done = llama_cpp.llama_state_seq_set_data(context, _bytes_of(state), len(state), 0)
    ends = llama_cpp.llama_memory_seq_pos_min, llama_cpp.llama_memory_seq_pos_max
    if done == len(state) and [end(memory, 0) for end in ends] == [first, last]:
        return True
    llama_cpp.llama_memory_clear(memory, True)
    return False


def _bytes_of(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
