"""llama.cpp batches that hold embeddings."""

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

SECTIONS = 4
"""Positions of one row where they have sections (M-RoPE): time, height, width, and one that is unused."""


class RowBatch:
    """llama.cpp's batch over arrays of ours: tokens, rows of numbers, or both."""

    def __init__(self, capacity: int, width: int, n_sections: int) -> None:
        self._tokens = np.empty(capacity, np.int32)
        self._rows = np.empty(capacity * width, np.float32)
        self._positions = np.zeros(capacity * n_sections, np.int32)
        self._n_sections = n_sections
        self._ones = np.ones(capacity, np.int32)
        self._wanted = np.empty(capacity, np.int8)
        self._sequence = ctypes.c_int32(0)
        pointer = ctypes.pointer(self._sequence)
        self._sequences = (ctypes.POINTER(ctypes.c_int32) * capacity)(*[pointer] * capacity)
        self.native = llama_cpp.llama_batch(
            pos=self._pointer(self._positions, ctypes.c_int32),
            n_seq_id=self._pointer(self._ones, ctypes.c_int32),
            seq_id=self._sequences,
            logits=self._pointer(self._wanted, ctypes.c_int8),
        )

    @staticmethod
    def _pointer(array: NDArray[Any], kind: Any) -> Any:
        return array.ctypes.data_as(ctypes.POINTER(kind))

    def fill(self, tokens: Sequence[int] | None, rows: NDArray[np.float32] | None, start: int, *, wanted: bool) -> None:
        """`tokens` [n] and `rows` [n, width] from position `start` on; results of all are wanted, or of none."""
        n = len(tokens) if tokens is not None else len(rows) if rows is not None else 0
        batch = self.native
        batch.n_tokens = n
        if tokens is not None:
            self._tokens[:n] = tokens
        if rows is not None:
            self._rows[: rows.size] = rows.reshape(-1)
        batch.token = self._pointer(self._tokens, ctypes.c_int32) if tokens is not None else None
        batch.embd = self._pointer(self._rows, ctypes.c_float) if rows is not None else None
        places = np.arange(start, start + n, dtype=np.int32)
        self._positions[:n] = places
        if tokens is None:  # the last section stays 0, as llama.cpp has it
            for section in range(1, self._n_sections):
                self._positions[section * n : (section + 1) * n] = places if section < SECTIONS - 1 else 0
        self._wanted[:n] = wanted
