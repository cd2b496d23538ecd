"""Copies of a model file in another number format, made by llama.cpp's own quantiser."""

import os
from pathlib import Path

import llama_cpp

from specdec_cli.errors import ModelError
from specdec_cli.llama.log import capture_log, log

FILE_TYPES = {
    "F32": llama_cpp.LLAMA_FTYPE_ALL_F32,
    "F16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
    "BF16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q4_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1,
    "Q2_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q2_K,
}


def quantize(source: Path, target: Path, file_type: str, *, threads: int) -> None:
    """Write `source` as `file_type` to `target`. Raises ModelError; `target` may then be half written."""
    capture_log()
    log.start_afresh()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[file_type]
    params.allow_requantize = True
    params.nthread = threads
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), params) != 0:
        raise ModelError(
            f"llama.cpp could not write {source.name} as {file_type}: {log.reason() or 'no reason given'}.",
            hint="Check free disk space and the source file.",
        )
