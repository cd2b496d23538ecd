"""Passes of planted models without llama.cpp: a look-up in their table, at a price that no context changes."""

import ctypes
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specdec_cli.llama.session import LlamaSession


class TablePasses:
    """Stands in for llama.cpp's calls in this process; serve() every session that is going to be used."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
        self._ends: dict[int, int] = {}
        for name in ("decode", "synchronize", "get_logits", "memory_seq_rm", "memory_seq_pos_max"):
            setattr(llama_cpp, f"llama_{name}", getattr(self, name))

    def serve(self, session: LlamaSession, table: NDArray[np.float64]) -> None:
        """`table`: logits by last token, of shape (vocabulary, vocabulary)."""
        rows = table.astype(np.float32), np.zeros((512, len(table)), np.float32)
        self._rows[_address(session._context)] = rows

    def decode(self, context: Any, batch: Any) -> int:
        n = batch.n_tokens
        table, rows = self._rows[_address(context)]
        wanted = [batch.token[i] for i in range(n) if batch.logits[i]]
        rows[: len(wanted)] = table[wanted]
        self._ends[_address(llama_cpp.llama_get_memory(context))] = batch.pos[n - 1]
        return 0

    def synchronize(self, context: Any) -> None:
        pass

    def get_logits(self, context: Any) -> Any:
        return self._rows[_address(context)][1].ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    def memory_seq_rm(self, memory: Any, _sequence: int, start: int, _end: int) -> bool:
        self._ends[_address(memory)] = start - 1
        return True

    def memory_seq_pos_max(self, memory: Any, _sequence: int) -> int:
        return self._ends[_address(memory)]


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0
