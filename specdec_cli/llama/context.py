"""Opens a llama.cpp context, and explains failures."""

import re

import llama_cpp

from specdec_cli.errors import ModelError, OutOfMemory, SpecdecError, UsageError
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.log import log
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.rewind import Way
from specdec_cli.settings import CACHE_TYPE_BYTES, ContextSettings

CACHE_TYPES = {name: getattr(llama_cpp, f"GGML_TYPE_{name.upper()}", 30) for name in CACHE_TYPE_BYTES}
# 30 is GGML_TYPE_BF16, which llama_cpp has no name for
FLASH_ATTENTION = {
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}


def open_context(
    model: LlamaModel, settings: ContextSettings, abort: AbortFlag | None, way: Way
) -> llama_cpp.llama_context_p:
    """llama.cpp's context for one text. Raises ModelError, UsageError or OutOfMemory."""
    log.start_afresh()
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = settings.n_ctx
    params.n_batch = settings.n_batch
    params.n_ubatch = settings.n_ubatch
    n_sequences = way.n_sequences + settings.branches
    params.n_seq_max = n_sequences
    params.kv_unified = n_sequences > 1  # one cache of keys and values, instead of a part of it for each sequence
    params.n_rs_seq = way.n_snapshots
    # llama.cpp wants one row for each sequence.
    params.n_outputs_max = max(settings.max_rows + settings.branches, n_sequences)
    params.n_threads = params.n_threads_batch = settings.threads
    params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE  # states are those of single tokens
    params.type_k = params.type_v = CACHE_TYPES[settings.cache_type]
    params.flash_attn_type = FLASH_ATTENTION[settings.flash_attention]
    # Rejected drafts and earlier turns are taken back at any distance, so the window must not forget.
    params.swa_full = True
    if abort is not None:
        params.abort_callback = abort.callback
        params.abort_callback_data = abort.data
    context = llama_cpp.llama_init_from_model(model.handle, params)
    if not context:
        raise _context_error(model, settings)
    if not llama_cpp.llama_get_memory(context):  # BERT and its kin: there is no sequence to continue
        llama_cpp.llama_free(context)
        raise ModelError(
            f"{model.path.name} is an embedding model, which cannot generate text.",
            hint="Use a decoder-only language model.",
        )
    return context


def _context_error(model: LlamaModel, settings: ContextSettings) -> SpecdecError:
    reason = log.reason() or "no reason given"
    if ("cache" in reason and "type" in reason) or "flash_attn" in reason:
        return UsageError(
            f"{model.path.name} does not work with a KV cache of type {settings.cache_type}: {reason}.",
            hint="Use another --kv (--kv-draft for the draft). f16 always works; quantized types need --flash-attn on.",
        )
    return OutOfMemory(
        f"llama.cpp could not create a context of {settings.n_ctx} tokens for {model.path.name}: {reason}.",
        hint="Use a smaller --ctx, or a smaller cache type (--kv q8_0).",
    )


_CACHE_SIZE = re.compile(r"(?:llama_kv_cache|llama_memory_recurrent)\S*: +size = +([\d.]+) MiB")


def cache_bytes_from_log() -> int:
    """What llama.cpp says it took for keys, values and states: a sliding window has two caches."""
    sizes = [float(found[1]) for line in log.lines if (found := _CACHE_SIZE.search(line))]
    return int(sum(sizes) * 2**20)
