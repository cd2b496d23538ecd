"""Copies of a model file in another number format, or without some of its layers, made by llama.cpp's own quantiser."""

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import llama_cpp

from specdec_cli.errors import ModelError
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.log import capture_log, log
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.native_process import Apart, step
from specdec_cli.llama.session import LlamaSession
from specdec_cli.models.add_tensor import with_tensor
from specdec_cli.models.gguf import TYPE_NUMBERS, read_gguf
from specdec_cli.settings import FORMATS, ContextSettings, ModelSettings

Value = str | int | float

_FILE_TYPES = {
    name: getattr(llama_cpp, "LLAMA_FTYPE_ALL_F32" if name == "F32" else f"LLAMA_FTYPE_MOSTLY_{name}")
    for name in FORMATS
}
_SIZE = re.compile(r"quant size +=\s+([\d.]+) MiB")
_LONGEST_TEXT = 127
"""Bytes of a text that llama.cpp's quantiser can add to a file's metadata."""
_CHECK = "Check free disk space and the source file."
_EMBEDDING = "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Changes:
    """What a copy is to have otherwise. All of it: `file_type` None copies tensors as they are.

    `tensor_types` names a format for tensors by regular expression, the first that is found in a name counts; it
    needs a quantised `file_type`. `without` are layers to leave out, by number. `own_output` is a format for an output
    matrix beside the token embedding that served as one. `metadata` is added: texts are cut after 127 bytes, whole
    numbers have 32 bits, others are floats.
    """

    file_type: str | None = None
    tensor_types: tuple[tuple[str, str], ...] = ()
    without: tuple[int, ...] = ()
    own_output: str | None = None
    metadata: Mapping[str, Value] | None = None


def quantize(source: Path, target: Path, file_type: str, *, threads: int) -> None:
    """Write `source` as `file_type` to `target`. Raises ModelError; `target` may then be half written."""
    change(source, target, Changes(file_type), threads=threads)


def change(source: Path, target: Path, changes: Changes, *, threads: int) -> None:
    """Write `source` with `changes` to `target`. Raises ModelError; `target` may then be half written.

    Layers after one that is left out move up, and only `block_count` tells of it: lists by layer stay as they are,
    and llama.cpp refuses a file whose lists are too long.
    """
    if changes.own_output is None:
        _quantize(source, target, changes, threads)
        return
    whole, matrix = (target.with_name(f"{target.name}.{part}") for part in ("whole", "matrix"))
    embedding = ((f"^{re.escape(_EMBEDDING)}$", changes.own_output),)
    all_but_one = tuple(range(1, read_gguf(source).number("block_count")))
    try:
        _quantize(source, whole, changes, threads)
        _quantize(source, matrix, Changes("Q8_0", embedding, all_but_one), threads)
        with_tensor(whole, matrix, _EMBEDDING, "output.weight", target)
    except OSError as error:
        raise ModelError(f"Cannot write {target}: {error.strerror}.", hint="Check free disk space.") from error
    finally:
        whole.unlink(missing_ok=True)
        matrix.unlink(missing_ok=True)


def _quantize(source: Path, target: Path, changes: Changes, threads: int) -> None:
    capture_log()
    log.start_afresh()
    params, keep_alive = _params(changes, threads)
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), params) != 0:
        raise ModelError(
            f"llama.cpp could not write {source.name} as {changes.file_type or 'a copy'}: "
            f"{log.reason() or 'no reason given'}.",
            hint=_CHECK,
        )
    del keep_alive


def changed_bytes(source: Path, changes: Changes) -> int:
    """About how many bytes of weights the changed copy would have; nothing is written. Raises ModelError."""
    capture_log()
    log.start_afresh()
    params, keep_alive = _params(replace(changes, file_type=changes.file_type or "F32"), 1)
    params.only_copy = changes.file_type is None
    params.dry_run = True
    failed = llama_cpp.llama_model_quantize(os.fsencode(source), b"", params) != 0
    del keep_alive
    sizes = [float(found[1]) for line in log.lines if (found := _SIZE.search(line))]
    if failed or not sizes:
        raise ModelError(
            f"llama.cpp cannot write {source.name} as {changes.file_type or 'a copy'}: "
            f"{log.reason() or 'no reason given'}.",
            hint="Use another model file.",
        )
    return int(sizes[-1] * 2**20)


def change_apart(source: Path, target: Path, changes: Changes, *, threads: int, abort: AbortFlag | None = None) -> None:
    """`change` in a process of its own, which also tries whether the copy can be opened and computes.

    llama.cpp ends its process over some files, and its quantiser cannot be interrupted: here neither matters. Raises
    ModelError, and Interrupted when `abort` is set meanwhile; `target` may then be half written.
    """
    apart = Apart(f"making a copy of {source.name}", hint=_CHECK, patience=None, abort=abort)
    apart.call(_change_and_try, source, target, changes, threads)


def _change_and_try(source: Path, target: Path, changes: Changes, threads: int) -> None:
    change(source, target, changes, threads=threads)
    step(f"opening a copy of {source.name}")
    context = ContextSettings(n_ctx=64, n_batch=64, n_ubatch=64)
    with LlamaModel(ModelSettings(target)) as model, LlamaSession(model, context) as session:
        session.score([0, 0], 1)


def _params(changes: Changes, threads: int) -> tuple[Any, list[object]]:
    """llama.cpp's parameters, and what must live as long as they do."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = threads
    params.allow_requantize = True
    params.only_copy = changes.file_type is None
    if changes.file_type is not None:
        params.ftype = _FILE_TYPES[changes.file_type]
    alive: list[object] = []
    if changes.tensor_types:
        overrides = (llama_cpp.llama_model_tensor_override * (len(changes.tensor_types) + 1))()
        for override, (pattern, name) in zip(overrides, changes.tensor_types, strict=False):
            override.pattern, override.type = pattern.encode(), TYPE_NUMBERS[name]
        params.tt_overrides = overrides
        alive.append(overrides)
    if changes.without:
        # llama.cpp takes the first of the list for the smallest, and -1 for its end.
        layers = (ctypes.c_int32 * (len(changes.without) + 1))(*sorted(changes.without), -1)
        params.prune_layers = layers
        alive.append(layers)
    if changes.metadata:
        added = (llama_cpp.llama_model_kv_override * (len(changes.metadata) + 1))()
        for slot, (key, value) in zip(added, changes.metadata.items(), strict=False):
            _fill(slot, key, value)
        params.kv_overrides = added
        alive.append(added)
    return params, alive


def _fill(slot: Any, key: str, value: Value) -> None:
    slot.key = key.encode()
    if isinstance(value, str):
        slot.tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR
        slot.value.val_str = value.encode()[:_LONGEST_TEXT].decode("utf-8", "ignore").encode()
    elif isinstance(value, int):
        slot.tag, slot.value.val_i64 = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT, value
    else:
        slot.tag, slot.value.val_f64 = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
