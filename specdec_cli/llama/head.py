"""The context of a trained head, next to its target's, and how much of the text it has read.

The calls to llama.cpp are those of its common/speculative.cpp. That hidden states are read when a draft is asked
for, and those of rejected tokens never, is ours.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.stats import Evaluation
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Logits
from specdec_cli.errors import DecodeFailed, Interrupted, ModelError, OutOfMemory, SpecdecError
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.context import CACHE_TYPES, FLASH_ATTENTION, cache_bytes_from_log
from specdec_cli.llama.log import log
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.private_api import capture_last, last_address
from specdec_cli.llama.row_batch import SECTIONS, RowBatch
from specdec_cli.llama.session import ABORTED, LlamaSession
from specdec_cli.llama.state import put_state, take_state
from specdec_cli.models.heads import HeadFacts
from specdec_cli.settings import ContextSettings

_MTP_CONTEXT = 1  # LLAMA_CONTEXT_TYPE_MTP
_MROPE = (8, 40)  # LLAMA_ROPE_TYPE_MROPE, LLAMA_ROPE_TYPE_IMROPE


class LlamaHead:
    """What both kinds share: the context, its batch, and which tokens it has read.

    `can_rewind` is always true: no head has a recurrent memory, and where llama.cpp refuses, the head starts
    afresh. It then knows the text only from there on, which costs acceptance and nothing else.
    """

    can_rewind = can_crop = True

    def __init__(
        self,
        model: LlamaModel,
        facts: HeadFacts,
        target: LlamaSession,
        settings: ContextSettings,
        *,
        abort: AbortFlag | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self.facts = facts
        self._target = target
        self._settings = settings
        self._abort = abort
        self._clock = clock
        self._hidden = target.capture(facts.layers, self._keep_up)
        self._context = self._open(settings)
        self.cache_bytes = cache_bytes_from_log()
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._n_embd = llama_cpp.llama_model_n_embd(model.handle)
        self._batch = RowBatch(settings.n_batch, max(self._n_embd, self._hidden.width), self._n_sections())
        self._tokens = Tokens()  # what has been read, in which [_begin, _end) is in the memory
        self._begin = self._end = 0
        self._failure: SpecdecError | None = None
        self.n_ctx = settings.n_ctx
        self.n_vocab = facts.n_tokens
        self.longest = facts.longest
        self.confidence: float | None = None
        self.n_evaluated = 0
        self.unscored_tokens = 0
        self.unscored_seconds = 0.0

    @property
    def name(self) -> str:
        """The kind of head, by which its drafter is called."""
        return self.facts.kind

    @property
    def evaluation(self) -> Evaluation:
        """The counts so far, as of any session."""
        return Evaluation(self.n_evaluated, self.unscored_tokens, self.unscored_seconds)

    def set_threads(self, n: int) -> None:
        """Evaluate with `n` threads from here on."""
        llama_cpp.llama_set_n_threads(self._context, n, n)

    def start(self, tokens: Sequence[int], k: int) -> NDArray[np.float32]:
        """Logits of what may follow `tokens`, shape [n_vocab]; `k` tokens are to be drafted at most.

        Reads what it has not read of the text, and has the target evaluate what that has not evaluated,
        all but the last token. The row is valid until the next call. Raises DecodeFailed, Interrupted.
        """
        raise NotImplementedError

    def advance(self, token: int) -> NDArray[np.float32]:
        """Logits after one draft token more."""
        raise NotImplementedError

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:  # noqa: ARG002  (the protocol's names)
        """As a model gives it, of the last token alone, shape [1, n_vocab]: what the head says after a text."""
        return self.start(tokens, 1)[np.newaxis]

    def snapshot(self, n: int) -> tuple[list[int], NDArray[np.uint8]]:
        """The first `n` tokens, or fewer, and the state [bytes] after reading them, which is all but the last of them.

        What the target has evaluated of them is read first; what was read beyond them is dropped. No tokens if the
        head does not know their beginning.
        """
        if self._end < n - 1:
            with suppress(Interrupted):
                self._keep_up(self._target.cached)
        if self._begin > 0 or not self._crop(min(n - 1, self._end)):
            return [], np.empty(0, np.uint8)
        return self._tokens[: self._end + 1], take_state(self._context)

    def restore(self, tokens: Sequence[int], state: NDArray[np.uint8]) -> bool:
        """Take up the `state` [bytes] that a snapshot of `tokens` had; if it is not accepted the head is a new one."""
        n_read = len(tokens) - 1
        is_accepted = put_state(self._context, state, self._offset, n_read - 1 + self._offset)
        self._tokens = Tokens(tokens if is_accepted else ())
        self._begin, self._end = 0, n_read if is_accepted else 0
        return is_accepted

    def _read(self, tokens: Tokens, start: int, stop: int, *, wanted: bool) -> None:
        """Take in the rows of the text's positions `start` to `stop`, one batch at most."""
        raise NotImplementedError

    def _keep_up(self, tokens: Sequence[int]) -> None:
        """Read what the target has evaluated before its rows are dropped. A head that fails must not end a text."""
        if self._failure is not None or len(tokens) > self.n_ctx:
            return
        try:
            self._catch_up(Tokens.of(tokens), again=0)
        except DecodeFailed as error:
            self._failure = error

    def _catch_up(self, tokens: Tokens, *, again: int) -> None:
        """Have every token but the last in memory, and read the last `again` of those in any case."""
        if self._failure is not None:
            raise self._failure
        hidden, stop = self._hidden, len(tokens) - 1
        start = min(self._tokens.n_shared(tokens) - 1, self._end, stop - again)
        if not self._crop(start) or start < hidden.first:
            self._start_afresh()
        self._tokens = tokens
        for at in range(self._end, stop, self._settings.n_batch):
            end = min(at + self._settings.n_batch, stop)
            wanted = again > 0 and end == stop
            began, before = self._clock(), self.n_evaluated
            self._read(tokens, at, end, wanted=wanted)
            self._end = end
            if not wanted:
                llama_cpp.llama_synchronize(self._context)
                self.unscored_tokens += self.n_evaluated - before
                self.unscored_seconds += self._clock() - began
        hidden.drop_before(stop - 1)

    def _crop(self, end: int) -> bool:
        """Take back what is not in the first `end` positions of the text; false if that cannot be done."""
        self._end = min(self._end, end)
        if end <= self._begin:
            return False
        at = end + self._offset
        done = llama_cpp.llama_memory_seq_rm(self._memory, 0, at, -1)
        return bool(done) and llama_cpp.llama_memory_seq_pos_max(self._memory, 0) == at - 1

    def _start_afresh(self) -> None:
        """Begin where the rows do that are still there."""
        llama_cpp.llama_memory_clear(self._memory, True)
        self._begin = self._end = self._hidden.first

    @property
    def _offset(self) -> int:
        """Position in memory of what was read at position 0 of the text."""
        return 0

    def _n_sections(self) -> int:
        return SECTIONS if llama_cpp.llama_model_rope_type(self._model.handle) in _MROPE else 1

    def _run(self, call: Callable[[Any, Any], int]) -> None:
        if self._abort is not None and self._abort.is_set:
            raise Interrupted(self._abort.signal_number)
        status = call(self._context, self._batch.native)
        if status == 0:
            self.n_evaluated += self._batch.native.n_tokens
            return
        self._crop(self._end)  # some of the batch may be in memory already
        if status == ABORTED and self._abort is not None:
            raise Interrupted(self._abort.signal_number)
        reason = " ".join((log.reason() or "no reason given").split())
        log.start_afresh()
        raise DecodeFailed(
            f"llama.cpp could not evaluate a head's batch (status {status}): {reason}.",
            hint="Run again with --log FILE to see llama.cpp's messages.",
        )

    def _logits(self, row: int) -> NDArray[np.float32]:
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, (self.n_vocab,))

    def _states(self, n: int) -> NDArray[np.float32]:
        """Copies of the first `n` states of the last pass, shape [n, n_embd]."""
        found = (ctypes.c_float * (n * self._n_embd)).from_address(last_address(self._context))
        return np.ctypeslib.as_array(found).reshape(n, self._n_embd).copy()

    def _open(self, settings: ContextSettings) -> Any:
        log.start_afresh()
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = settings.n_ctx
        params.n_batch = params.n_ubatch = settings.n_batch
        params.n_seq_max = 1
        params.n_outputs_max = settings.n_batch
        params.n_threads = params.n_threads_batch = settings.threads
        params.type_k = params.type_v = CACHE_TYPES[settings.cache_type]
        params.flash_attn_type = FLASH_ATTENTION[settings.flash_attention]
        params.swa_full = True
        params.ctx_other = self._target.handle
        if self.facts.kind == "mtp":
            params.ctx_type = _MTP_CONTEXT
        if self._abort is not None:
            params.abort_callback, params.abort_callback_data = self._abort.callback, self._abort.data
        context = llama_cpp.llama_init_from_model(self._model.handle, params)
        if not context:
            raise _cannot_open(self._model, settings)
        capture_last(context, only_wanted=self.facts.kind != "dflash2")
        if self.facts.kind in ("dflash", "dflash2", "dspark"):
            llama_cpp.llama_set_causal_attn(context, self.facts.is_causal)
        return context

    def close(self) -> None:
        """Free the context; calling it again does nothing."""
        if self._context:
            llama_cpp.llama_free(self._context)
            self._context = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cannot_open(model: LlamaModel, settings: ContextSettings) -> SpecdecError:
    reason = log.reason() or "no reason given"
    if "alloc" in reason or "memory" in reason:
        return OutOfMemory(
            f"llama.cpp could not create a context of {settings.n_ctx} tokens for the head {model.path.name}: "
            f"{reason}.",
            hint="Use a smaller --ctx-draft, or --draft ngram.",
        )
    return ModelError(
        f"llama.cpp cannot run the head {model.path.name} with this target: {reason}.",
        hint="Use the head that was trained with this target, or --draft ngram.",
    )
