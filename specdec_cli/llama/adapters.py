"""LoRA adapters: read with a model, applied to its contexts."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp

from specdec_cli.errors import ModelError
from specdec_cli.llama.log import log
from specdec_cli.settings import Adapter


class LoadedAdapters:
    """Adapters in memory; they live as long as the model, which frees them. Raises ModelError for one of another
    model, and for a file that is none."""

    def __init__(self, model: Any, name: str, adapters: Sequence[Adapter]) -> None:
        self._handles = [_loaded(model, name, adapter) for adapter in adapters]
        self._scales = [adapter.scale for adapter in adapters]

    def apply(self, context: Any) -> None:
        """Add them to the weights in this context, which has evaluated nothing yet. Raises ModelError."""
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


def _loaded(model: Any, name: str, adapter: Adapter) -> Any:
    log.start_afresh()
    handle = llama_cpp.llama_adapter_lora_init(model, os.fsencode(adapter.file))
    if not handle:
        raise ModelError(
            f"{Path(adapter.file).name} is no LoRA adapter for {name}: {log.reason() or 'llama.cpp gave no reason'}.",
            hint="Use an adapter made for this model, converted with convert_lora_to_gguf.py.",
        )
    return handle
