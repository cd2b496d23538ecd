"""One sequence and its cache. `score` is handed whole token lists and evaluates only what is new."""

import ctypes
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specdec_cli.errors import DecodeFailed, Interrupted, ModelError, OutOfMemory, SpecdecError, UsageError
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.log import log
from specdec_cli.llama.model import LlamaModel
from specdec_cli.settings import CACHE_TYPE_BYTES, ContextSettings
from specdec_cli.stats import Evaluation
from specdec_cli.tokens import Tokens
from specdec_cli.types import Logits

_CACHE_TYPES = {name: getattr(llama_cpp, f"GGML_TYPE_{name.upper()}", 30) for name in CACHE_TYPE_BYTES}
# 30 is GGML_TYPE_BF16, which llama_cpp has no name for
_FLASH_ATTENTION = {
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
_ABORTED = 2  # llama_decode's answer when the abort callback said so


class LlamaSession:
    """A context of one sequence that keeps the longest prefix it shares with what it is asked next.

    Counts, for statistics and for tests: `n_evaluated` tokens and `n_passes` passes so far, and
    of them `unscored_tokens` in `unscored_seconds`: tokens whose logits nobody asked for, which are
    the prompt and whatever else was new when `score` was called.
    """

    def __init__(
        self,
        model: LlamaModel,
        settings: ContextSettings,
        *,
        abort: AbortFlag | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model  # keeps the weights alive as long as the context
        self._settings = settings
        self._abort = abort
        self._clock = clock
        self._context = _open_context(model, settings, abort)
        self.cache_bytes = _cache_bytes_from_log()
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1)
        self._fill_constant_fields()
        self._positions = np.arange(settings.n_ctx + 2, dtype=np.int32)  # two more for the probe below
        self._buffer: Logits = np.empty((0, 0), np.float32)
        self._buffer_address = 0
        self._cached: list[int] = []
        self._asked = Tokens()  # what was asked for last; what is cached is always the beginning of it
        self.n_ctx = settings.n_ctx  # llama.cpp rounds its own figure up
        self.n_vocab = model.n_vocab
        self.n_evaluated = 0
        self.n_passes = 0
        self.n_resets = 0
        self.unscored_tokens = 0
        self.unscored_seconds = 0.0
        try:
            self.can_rewind = self._probe_rewind()
        except BaseException:
            self.close()
            raise

    def _fill_constant_fields(self) -> None:
        n = self._settings.n_batch
        self._batch_tokens = np.ctypeslib.as_array(self._batch.token, (n,))
        self._batch_positions = np.ctypeslib.as_array(self._batch.pos, (n,))
        self._batch_wanted = np.ctypeslib.as_array(self._batch.logits, (n,))
        np.ctypeslib.as_array(self._batch.n_seq_id, (n,))[:] = 1
        for i in range(n):
            self._batch.seq_id[i][0] = 0

    def _probe_rewind(self) -> bool:
        """Whether the end of the sequence can be taken back: recurrent and hybrid memories cannot."""
        for _ in range(2):  # one at a time: a batch, or a context, may hold no more
            self._decode([0], first_wanted=1)
        can = bool(llama_cpp.llama_memory_seq_rm(self._memory, 0, 1, -1))
        llama_cpp.llama_memory_clear(self._memory, True)
        self._cached = []
        self.n_evaluated = self.n_passes = 0
        return can

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:
        """Logits after each of the last `n_last` tokens, shape [n_last, n_vocab], float32.

        A view into llama.cpp's buffer, valid until the next call. Raises UsageError when the list
        does not fit, DecodeFailed when llama.cpp fails, Interrupted when the abort flag is set.
        """
        self._check(tokens, n_last)
        tokens = Tokens.of(tokens)
        first_wanted = len(tokens) - n_last
        self._rewind(min(self._asked.n_shared(tokens), first_wanted))
        self._asked = tokens
        if len(self._cached) < first_wanted:
            self._evaluate_unscored(tokens[len(self._cached) : first_wanted])
        self._decode(tokens[first_wanted:], first_wanted=0)
        return self._rows(n_last)

    def _rows(self, n: int) -> Logits:
        """The first `n` rows of llama.cpp's buffer. It seldom moves, and wrapping it anew takes 30 microseconds."""
        address = ctypes.addressof(llama_cpp.llama_get_logits(self._context).contents)
        if address != self._buffer_address:
            shape = (self._settings.max_rows, self.n_vocab)
            buffer = (ctypes.c_float * (shape[0] * shape[1])).from_address(address)
            self._buffer, self._buffer_address = np.ctypeslib.as_array(buffer).reshape(shape), address
        return self._buffer[:n]

    def snapshot(self, n: int) -> tuple[list[int], NDArray[np.uint8]]:
        """The first `n` of the cached tokens (all, if there are fewer) and their state [bytes]; the rest is dropped.

        Only for a memory that can be taken back.
        """
        self._rewind(n)
        # Of all sequences, that is of one: asked for by its number, llama.cpp leaves out what a sliding window has
        # passed, which a shorter prompt needs again.
        state = np.empty(llama_cpp.llama_state_seq_get_size(self._context, -1), np.uint8)
        written = llama_cpp.llama_state_seq_get_data(self._context, _bytes_of(state), len(state), -1)
        return list(self._cached), state[:written]

    def restore(self, tokens: Sequence[int], state: NDArray[np.uint8]) -> bool:
        """Take up the `state` [bytes] that a snapshot of `tokens` had; whether llama.cpp accepted it.

        Whatever was cached before is gone.
        """
        llama_cpp.llama_memory_clear(self._memory, True)
        self._cached = []
        # As sequence 0: the state of a whole context is put where the next tokens would overwrite it.
        done = llama_cpp.llama_state_seq_set_data(self._context, _bytes_of(state), len(state), 0)
        ends = llama_cpp.llama_memory_seq_pos_min, llama_cpp.llama_memory_seq_pos_max
        if done != len(state) or [end(self._memory, 0) for end in ends] != [0, len(tokens) - 1]:
            llama_cpp.llama_memory_clear(self._memory, True)
            return False
        self._asked = Tokens(tokens)
        self._cached = list(tokens)
        return True

    def set_threads(self, n: int) -> None:
        """Evaluate with `n` threads from here on."""
        llama_cpp.llama_set_n_threads(self._context, n, n)

    @property
    def evaluation(self) -> Evaluation:
        """The counts so far, as statistics want them."""
        return Evaluation(self.n_evaluated, self.unscored_tokens, self.unscored_seconds)

    def _check(self, tokens: Sequence[int], n_last: int) -> None:
        if not 1 <= n_last <= min(len(tokens), self._settings.max_rows):
            raise UsageError(
                f"{n_last} rows were asked for; this context gives 1 to {min(len(tokens), self._settings.max_rows)}.",
                hint="Use a shorter draft (-k).",
            )
        if len(tokens) > self.n_ctx:
            raise UsageError(f"{len(tokens)} tokens do not fit a context of {self.n_ctx}.", hint="Use a larger --ctx.")

    def _evaluate_unscored(self, tokens: list[int]) -> None:
        """Bring the cache up to date, in batches of n_batch, asking for no logits."""
        started, evaluated = self._clock(), self.n_evaluated
        try:
            for at in range(0, len(tokens), self._settings.n_batch):
                chunk = tokens[at : at + self._settings.n_batch]
                self._decode(chunk, first_wanted=len(chunk))
            # A GPU works on after llama_decode returns; the clock must not stop before it has finished.
            llama_cpp.llama_synchronize(self._context)
        finally:  # also what an interruption leaves half done
            self.unscored_tokens += self.n_evaluated - evaluated
            self.unscored_seconds += self._clock() - started

    def _decode(self, chunk: list[int], *, first_wanted: int) -> None:
        """Evaluate `chunk` after what is cached; logits are wanted from index `first_wanted` on."""
        if self._abort is not None and self._abort.is_set:
            raise Interrupted(self._abort.signal_number)
        n, past = len(chunk), len(self._cached)
        self._batch.n_tokens = n
        self._batch_tokens[:n] = chunk
        self._batch_positions[:n] = self._positions[past : past + n]
        self._batch_wanted[:first_wanted] = 0
        self._batch_wanted[first_wanted:n] = 1
        status = llama_cpp.llama_decode(self._context, self._batch)
        if status != 0:
            self._fail(status)
        self._cached += chunk
        self.n_evaluated += n
        self.n_passes += 1

    def _fail(self, status: int) -> None:
        # After an abort some of the batch may already be in the cache: take back all of it.
        self._drop_after(len(self._cached))
        if status == _ABORTED and self._abort is not None:
            raise Interrupted(self._abort.signal_number)
        if status == 1:
            raise DecodeFailed("The context is full.", hint="Use a larger --ctx.")
        reason = log.reason() or "no reason given"
        log.start_afresh()  # the next failure has a reason of its own
        raise DecodeFailed(
            f"llama.cpp could not evaluate a batch (status {status}): {reason}.",
            hint="Run again with --log FILE for all that llama.cpp says.",
        )

    def _rewind(self, keep: int) -> None:
        if keep < len(self._cached):
            del self._cached[keep:]
            self._drop_after(keep)

    def _drop_after(self, keep: int) -> None:
        """Make the memory hold exactly the first `keep` tokens, or nothing.

        The answer of seq_rm is checked, and the memory itself as well: sliding-window and recurrent
        memories may refuse, or drop less than asked. Starting over is then slow but right.
        """
        done = llama_cpp.llama_memory_seq_rm(self._memory, 0, keep, -1)
        if done and llama_cpp.llama_memory_seq_pos_max(self._memory, 0) == keep - 1:
            return
        llama_cpp.llama_memory_clear(self._memory, True)
        self._cached = []
        self.n_resets += 1

    def close(self) -> None:
        """Free the context; calling it again does nothing."""
        if self._context:
            llama_cpp.llama_batch_free(self._batch)
            llama_cpp.llama_free(self._context)
            self._context = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_context(model: LlamaModel, settings: ContextSettings, abort: AbortFlag | None) -> llama_cpp.llama_context_p:
    log.start_afresh()
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = settings.n_ctx
    params.n_batch = settings.n_batch
    params.n_ubatch = settings.n_ubatch
    params.n_seq_max = 1
    params.n_outputs_max = settings.max_rows
    params.n_threads = params.n_threads_batch = settings.threads
    params.type_k = params.type_v = _CACHE_TYPES[settings.cache_type]
    params.flash_attn_type = _FLASH_ATTENTION[settings.flash_attention]
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
            f"{model.path.name} is an embedding model; it cannot write text token by token.",
            hint="Use a decoder-only language model.",
        )
    return context


def _context_error(model: LlamaModel, settings: ContextSettings) -> SpecdecError:
    reason = log.reason() or "no reason given"
    if ("cache" in reason and "type" in reason) or "flash_attn" in reason:
        return UsageError(
            f"{model.path.name} cannot have a cache of type {settings.cache_type}: {reason}.",
            hint="Use another --kv (--kv-draft for the draft), f16 always works; quantized ones need --flash-attn on.",
        )
    return OutOfMemory(
        f"llama.cpp could not make a context of {settings.n_ctx} tokens for {model.path.name}: {reason}.",
        hint="Use a smaller --ctx, or a smaller cache type (--kv q8_0).",
    )


def _bytes_of(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


_CACHE_SIZE = re.compile(r"(?:llama_kv_cache|llama_memory_recurrent)\S*: +size = +([\d.]+) MiB")


def _cache_bytes_from_log() -> int:
    """What llama.cpp says it took for keys, values and states: a sliding window has two caches."""
    sizes = [float(found[1]) for line in log.lines if (found := _CACHE_SIZE.search(line))]
    return int(sum(sizes) * 2**20)
