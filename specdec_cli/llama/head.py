"""A trained head's context beside that of its target: it reads the target's hidden states and drafts from them.

Two kinds. A `PairHead` (EAGLE-3, MTP) takes one token together with one hidden state and gives the next
token's logits and a state of its own, which goes into the next step. A `BlockHead` (DFlash, DSpark) keeps
keys and values made from hidden states, and fills a whole block of masked places in one pass. The calls are
those of llama.cpp's common/speculative.cpp; that drafts are read when they are asked for, and that what was
rejected is never read, is ours.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specdec_cli.errors import DecodeFailed, Interrupted, ModelError, OutOfMemory, SpecdecError
from specdec_cli.heads import HeadFacts
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.extensions import capture_last, last_address
from specdec_cli.llama.log import log
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import (
    ABORTED,
    CACHE_TYPES,
    FLASH_ATTENTION,
    LlamaSession,
    cache_bytes_from_log,
    shared_prefix,
)
from specdec_cli.sampling import Row
from specdec_cli.settings import ContextSettings
from specdec_cli.stats import Evaluation
from specdec_cli.types import Logits

_MTP_CONTEXT = 1  # LLAMA_CONTEXT_TYPE_MTP
_SECTIONS = 4
"""Positions of one row where they have sections (M-RoPE): time, height, width, and one that is unused."""


class LlamaHead:
    """What both kinds share: the context, its batch, and which tokens it has read.

    `can_rewind` is always true: no head has a recurrent memory, and where llama.cpp refuses, the head starts
    afresh. It then knows the text only from there on, which costs acceptance and nothing else.
    """

    can_rewind = True

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
        self._context = self._open(settings)
        self.cache_bytes = cache_bytes_from_log()
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._n_embd = llama_cpp.llama_model_n_embd(model.handle)
        self._hidden = target.capture(facts.layers)
        self._hidden.on_full = self._keep_up
        self._batch = _Batch(settings.n_batch, max(self._n_embd, self._hidden.width), self._n_sections())
        self._tokens: list[int] = []  # what has been read, in which [_begin, _end) is in the memory
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

    def start(self, tokens: Sequence[int], k: int) -> Row:
        """Logits of what may follow `tokens`, shape [n_vocab]; `k` tokens are to be drafted at most.

        Reads what it has not read of the text, and has the target evaluate what that has not evaluated,
        all but the last token. The row is valid until the next call. Raises DecodeFailed, Interrupted.
        """
        raise NotImplementedError

    def advance(self, token: int) -> Row:
        """Logits after one draft token more."""
        raise NotImplementedError

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:  # noqa: ARG002  (the protocol's names)
        """As a model gives it, of the last token alone, shape [1, n_vocab]: what the head says after a text."""
        return self.start(tokens, 1)[np.newaxis]

    def _read(self, tokens: list[int], start: int, stop: int, *, wanted: bool) -> None:
        """Take in the rows of the text's positions `start` to `stop`, one batch at most."""
        raise NotImplementedError

    def _keep_up(self, tokens: Sequence[int]) -> None:
        """Read what the target has evaluated before its rows are dropped. A head that fails must not end a text."""
        if self._failure is not None or len(tokens) > self.n_ctx:
            return
        try:
            self._catch_up(list(tokens), len(tokens) - 1, again=0)
        except DecodeFailed as error:
            self._failure = error

    def _catch_up(self, tokens: list[int], stop: int, *, again: int) -> None:
        """Have everything before position `stop` in memory, and read the last `again` positions in any case."""
        if self._failure is not None:
            raise self._failure
        hidden = self._hidden
        start = min(shared_prefix(self._tokens, tokens) - 1, self._end, stop - again)
        if not self._crop(start) or start < hidden.first:
            self._start_afresh()
        self._tokens = tokens[: stop + 1]
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
        return _SECTIONS if llama_cpp.llama_model_rope_type(self._model.handle) in _MROPE else 1

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
        reason = log.reason() or "no reason given"
        log.start_afresh()
        raise DecodeFailed(
            f"llama.cpp could not evaluate a head's batch (status {status}): {reason}.",
            hint="Run again with --log FILE for all that llama.cpp says.",
        )

    def _logits(self, row: int) -> Row:
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, (self.n_vocab,))

    def _states(self, n: int) -> NDArray[np.float32]:
        """Copies of the first `n` states of the last pass, shape [n, n_embd]."""
        found = (ctypes.c_float * (n * self._n_embd)).from_address(last_address(self._context))
        return np.frombuffer(found, np.float32).reshape(n, self._n_embd).copy()

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


class PairHead(LlamaHead):
    """EAGLE-3 and MTP: token P + 1 is read together with the state of position P.

    EAGLE-3 keeps the pair at P, its state being a projection of three layers' inputs; MTP at P + 1, with
    the state as it is.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: NDArray[np.float32] = np.empty((0, self._n_embd), np.float32)
        self._next = 0

    @property
    def _offset(self) -> int:
        return int(self.facts.kind == "mtp")

    def start(self, tokens: Sequence[int], k: int) -> Row:  # noqa: ARG002  (the protocol's names)
        tokens = list(tokens)
        self._target.evaluate(tokens[:-1])
        stop = len(tokens) - 1
        self._catch_up(tokens, stop, again=1)
        self._next = stop
        return self._logits(self._batch.native.n_tokens - 1)

    def advance(self, token: int) -> Row:
        self._batch.fill([token], self._state, self._next + self._offset, wanted=True)
        self._run(llama_cpp.llama_decode)
        self._state = self._states(1)
        self._next += 1
        return self._logits(0)

    def _read(self, tokens: list[int], start: int, stop: int, *, wanted: bool) -> None:
        """If the last row's logits are wanted all are asked for: the graphs give the first rows where it is not all."""
        states = self._hidden.rows(start, stop)
        if self.facts.kind == "eagle3":
            # Nothing is stored, but llama.cpp holds every batch's positions against those in memory.
            self._batch.fill(None, states, start, wanted=True)
            self._run(llama_cpp.llama_encode)
            self.n_evaluated -= stop - start  # a token is counted once, where it is decoded
            states = self._states(stop - start)
        self._batch.fill(tokens[start + 1 : stop + 1], states, start + self._offset, wanted=wanted)
        self._run(llama_cpp.llama_decode)
        if wanted:
            self._state = self._states(stop - start)[-1:]


class BlockHead(LlamaHead):
    """DFlash and DSpark: the state of position P goes into the memory at P; a block of masks is filled in one pass.

    A DSpark head draws each token of its block from the one before (inside llama.cpp, greedily) and says how
    sure it is of each; a DFlash2 head gives its best few at each place, and how well they follow one another.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._at = 0
        self._n_drafts = 0
        self._extra: NDArray[np.float32] = np.empty((0, self._n_embd), np.float32)
        self._chosen = 0

    def start(self, tokens: Sequence[int], k: int) -> Row:
        tokens = list(tokens)
        self._target.evaluate(tokens[:-1])
        stop = len(tokens) - 1
        self._catch_up(tokens, stop, again=0)
        n = min(k, self.longest or k, self.n_ctx - stop - 1)
        block = [tokens[-1], *[self.facts.mask] * (n - self.facts.anchored)]
        self._batch.fill(block, None, stop, wanted=True)
        self._run(llama_cpp.llama_decode)
        if self.facts.has_confidence or self.facts.top_k:
            self._extra = self._states(len(block))
        self._at, self._chosen = int(not self.facts.anchored), 0
        return self._place()

    def advance(self, token: int) -> Row:
        if self.facts.top_k:
            self._chosen = int((self._extra[self._at, : self.facts.top_k] == token).argmax())
        self._at += 1
        return self._place()

    def _place(self) -> Row:
        """The logits of the place that is filled next."""
        if self.facts.kind == "dspark" and self.facts.has_confidence:
            self.confidence = float(self._extra[self._at, 0])
        if not self.facts.top_k:
            return self._logits(self._at)
        k, found = self.facts.top_k, self._extra[self._at]
        row = np.full(self.n_vocab, -np.inf, np.float32)
        row[found[:k].astype(np.intp)] = found[k * (1 + self._chosen) : k * (2 + self._chosen)]
        return row

    def _read(self, tokens: list[int], start: int, stop: int, *, wanted: bool) -> None:  # noqa: ARG002  (as above)
        self._batch.fill(None, self._hidden.rows(start, stop), start, wanted=False)
        self._run(llama_cpp.llama_decode)


class _Batch:
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
                self._positions[section * n : (section + 1) * n] = places if section < _SECTIONS - 1 else 0
        self._wanted[:n] = wanted


_MROPE = (8, 40)  # LLAMA_ROPE_TYPE_MROPE, LLAMA_ROPE_TYPE_IMROPE


def open_head(
    model: LlamaModel, facts: HeadFacts, target: LlamaSession, settings: ContextSettings, abort: AbortFlag | None = None
) -> LlamaHead:
    """The head's context beside its target's. Raises OutOfMemory, ModelError."""
    kind = PairHead if facts.kind in ("eagle3", "mtp") else BlockHead
    return kind(model, facts, target, settings, abort=abort)


def _cannot_open(model: LlamaModel, settings: ContextSettings) -> SpecdecError:
    reason = log.reason() or "no reason given"
    if "alloc" in reason or "memory" in reason:
        return OutOfMemory(
            f"llama.cpp could not make a context of {settings.n_ctx} tokens for the head {model.path.name}: {reason}.",
            hint="Use a smaller --ctx-draft, or --draft ngram.",
        )
    return ModelError(
        f"llama.cpp cannot run the head {model.path.name} beside this target: {reason}.",
        hint="Use the head that was trained with this target, or --draft ngram.",
    )
