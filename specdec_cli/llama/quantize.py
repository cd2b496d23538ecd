"""Copies of a model file in another number format, made by llama.cpp's own quantiser."""

import os
from pathlib import Path

import llama_cpp

from specdec_cli.errors import ModelError
from specdec_cli.llama.log import capture_log, log
from specdec_cli.settings import FORMATS

_FILE_TYPES = {
    name: getattr(llama_cpp, "LLAMA_FTYPE_ALL_F32" if name == "F32" else f"LLAMA_FTYPE_MOSTLY_{name}")
    for name in FORMATS
}


def quantize(source: Path, target: Path, file_type: str, *, threads: int) -> None:
    """Write `source` as `file_type` to `target`. Raises ModelError; `target` may then be half written."""
    capture_log()
    log.start_afresh()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = _FILE_TYPES[file_type]
    params.allow_requantize = True
    params.nthread = threads
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), params) != 0:
        raise ModelError(
            f"llama.cpp could not write {source.name} as {file_type}: {log.reason() or 'no reason given'}.",
            hint="Check free disk space and the source file.",
        )
