"""One text and its cache. `score` is handed whole token lists and evaluates only what is new."""

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Self

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.stats import Evaluation
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import Branches, Hidden, Logits
from specdec_cli.errors import DecodeFailed, Interrupted, UsageError
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.cached_prefix import CachedPrefix
from specdec_cli.llama.context import cache_bytes_from_log, open_context
from specdec_cli.llama.hidden_rows import HiddenRows, Read
from specdec_cli.llama.log import log
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.rewind import Crop, Rewind, StartOver, Way, ways
from specdec_cli.llama.rewind_trial import TRIED_POSITIONS, goes_back
from specdec_cli.llama.token_batch import TokenBatch
from specdec_cli.llama.tree import n_leaves_of
from specdec_cli.settings import ContextSettings

ABORTED = 2  # llama_decode's answer when the abort callback said so
_UNTOUCHED = (1, -1)  # its answers for a full context and a wrong batch: the memory is as it was
_logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, llama_cpp.llama_context_p_ctypes)(
    ("llama_get_logits", llama_cpp.llama_cpp._lib)  # as a number: llama_cpp's own makes a pointer object each time
)


class LlamaSession:
    """A context of one text that keeps the longest prefix it shares with what it is asked next.

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
        self._batch = TokenBatch(settings.n_batch, max(settings.n_ctx, TRIED_POSITIONS), settings.branches)
        self._most_at_once = min(settings.n_ubatch, settings.n_ctx)  # llama.cpp makes batches no longer than contexts
        self.n_ctx = settings.n_ctx  # llama.cpp rounds its own figure up
        self.n_vocab = model.n_vocab
        self.n_embd = int(llama_cpp.llama_model_n_embd_out(model.handle))
        self._context: llama_cpp.llama_context_p | None = None
        try:
            self._open_rewindable()
        except BaseException:
            self.close()
            raise

    def _open_rewindable(self) -> None:
        """Open the context in the first way of going back that does what it says."""
        for way in ways(self._model.architecture, self._settings, has_states=self._model.has_states):
            self._open(way)
            if goes_back(
                way,
                self._context,
                self._prefix,
                self._score,
                n_vocab=self.n_vocab,
                settings=self._settings,
                most_at_once=self._most_at_once,
            ):
                break
            llama_cpp.llama_free(self._context)
            self._context = None
        self._start_counting()

    def _open(self, way: Way) -> None:
        self._context = open_context(self._model, self._settings, self._abort, way)
        self._model.adapters.apply(self._context)
        self.cache_bytes = cache_bytes_from_log()
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._prefix = CachedPrefix(self._context, way.start(self._context, self._settings))
        self._makes_states = False
        self._first_hidden = self._n_hidden = 0
        self._buffer: Logits = np.empty((0, 0), np.float32)
        self._buffer_address = 0
        self._start_counting()

    def _start_counting(self) -> None:
        self._prefix.clear()
        self._prefix.n_resets = 0
        self.n_evaluated = 0
        self.n_passes = 0
        self.unscored_tokens = 0
        self.unscored_seconds = 0.0

    @property
    def rewind(self) -> Rewind:
        """How this session goes back, as found out when it was opened."""
        return self._prefix.rewind

    @property
    def can_rewind(self) -> bool:
        """Whether tokens can be taken back without starting over."""
        return not isinstance(self.rewind, StartOver)

    @property
    def can_crop(self) -> bool:
        """Whether that costs nothing at any distance, so that a snapshot can be made."""
        return isinstance(self.rewind, Crop)

    @property
    def n_resets(self) -> int:
        """How often the session had to start over."""
        return self._prefix.n_resets

    @property
    def cached(self) -> Sequence[int]:
        """The tokens whose state is in memory."""
        return self._prefix.tokens

    @property
    def evaluation(self) -> Evaluation:
        """The counts so far, as statistics want them."""
        return Evaluation(self.n_evaluated, self.unscored_tokens, self.unscored_seconds)

    @property
    def handle(self) -> llama_cpp.llama_context_p:
        """llama.cpp's pointer, for a head that shares this model's tensors."""
        return self._context

    def score(self, tokens: Sequence[int], n_last: int, *, hidden: bool = False) -> Logits:
        """Logits after each of the last `n_last` tokens, shape [n_last, n_vocab], float32.

        A view into llama.cpp's buffer, valid until the next call. With `hidden` the pass also gives the states that
        the method `hidden` shows. Raises UsageError when the list does not fit, DecodeFailed when llama.cpp fails,
        Interrupted when the abort flag is set.
        """
        self._check(tokens, n_last)
        return self._score(tokens, n_last, hidden=hidden)

    def _score(self, tokens: Sequence[int], n_last: int, *, hidden: bool = False) -> Logits:
        tokens, prefix = Tokens.of(tokens), self._prefix
        first_wanted = len(tokens) - n_last
        prefix.ask(tokens, first_wanted)
        n_new = first_wanted - len(prefix.tokens)
        if n_new > prefix.rewind.merges(len(prefix.tokens)) or n_new + n_last > self._most_at_once:
            self._evaluate_unscored(tokens[len(prefix.tokens) : first_wanted])
            prefix.rewind.read(first_wanted, n_new)
        n_cached = len(prefix.tokens)
        prefix.rewind.before(n_cached, n_last)
        self._decode(tokens[n_cached:], first_wanted=first_wanted - n_cached, hidden=hidden)
        return self._rows(n_last)

    def score_beside(self, tokens: Sequence[int], n_last: int, branches: Branches) -> Logits:
        """The rows of `score`, from a pass that evaluates a tree as well, each leaf a sequence of its own.

        The tree's cells are free again afterwards. A tree that does not fit the batch or the context, or has more
        leaves than the settings allow, is left out. Raises what `score` raises.
        """
        self._check(tokens, n_last)
        n, settings = len(branches.tokens), self._settings
        n_leaves = n_leaves_of(branches.parents)
        has_room = n_last + n <= settings.n_batch and len(tokens) + n <= self.n_ctx
        if not (self.can_crop and has_room and 0 < n_leaves <= settings.branches):
            return self.score(tokens, n_last)
        tokens, root, prefix = Tokens.of(tokens), len(tokens) - n_last, self._prefix
        prefix.ask(tokens, root)
        self._evaluate_unscored(tokens[len(prefix) : root])
        for leaf in range(1, n_leaves + 1):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, leaf, -1, -1)
        try:
            self._batch.place_tree(branches, root, n_last)
            self._decode(tokens[root:], first_wanted=0, n_beside=n)
        finally:
            self._batch.remove_tree(n_last, n)
            for leaf in range(1, n_leaves + 1):
                llama_cpp.llama_memory_seq_rm(self._memory, leaf, -1, -1)
        rows = self._rows(n_last + n_leaves)
        branches.take(rows[n_last:])
        return rows[:n_last]

    def hidden(self, tokens: Sequence[int]) -> Hidden | None:
        """The state after `tokens` that the output matrix made a row of, shape [n_embd], a copy.

        None unless the last call scored that place and asked for hidden states.
        """
        row = len(tokens) - self._first_hidden
        if not (0 <= row < self._n_hidden and self._prefix.holds(Tokens.of(tokens))):
            return None
        state = llama_cpp.llama_get_embeddings_ith(self._context, row)
        return np.ctypeslib.as_array(state, (self.n_embd,)).copy() if state else None

    def evaluate(self, tokens: Sequence[int]) -> None:
        """Make the cache hold exactly `tokens`, asking for no logits. Raises what `score` does."""
        self._check(tokens, 1)
        tokens = Tokens.of(tokens)
        self._prefix.ask(tokens, len(tokens))
        new = tokens[len(self._prefix) :]
        self._evaluate_unscored(new)
        self._prefix.rewind.read(len(tokens), len(new))

    def capture(self, layers: Sequence[int], read: Read) -> HiddenRows:
        """Keep the inputs of these layers for every token evaluated from here on, until `read` was told: HiddenRows."""
        self._prefix.ask(Tokens(), 0)
        n_embd = llama_cpp.llama_model_n_embd(self._model.handle)
        rows = HiddenRows(self._context, layers, n_embd, 2 * self._settings.n_batch, read)
        self._prefix.hidden_rows = rows
        return rows

    def snapshot(self, n: int) -> tuple[list[int], NDArray[np.uint8]]:
        """The first `n` of the cached tokens (all, if there are fewer) and their state [bytes]; the rest is dropped.

        Only for a memory that can be cropped.
        """
        return self._prefix.snapshot(n)

    def restore(self, tokens: Sequence[int], state: NDArray[np.uint8]) -> bool:
        """Take up the `state` [bytes] that a snapshot of `tokens` had; whether llama.cpp accepted it.

        Whatever was cached before is gone.
        """
        return self._prefix.restore(tokens, state)

    def forget(self) -> None:
        """Make the cache empty."""
        self._prefix.clear()

    def set_threads(self, n: int) -> None:
        """Evaluate with `n` threads from here on."""
        llama_cpp.llama_set_n_threads(self._context, n, n)

    def _check(self, tokens: Sequence[int], n_last: int) -> None:
        if not 1 <= n_last <= min(len(tokens), self._settings.max_rows):
            raise UsageError(
                f"{n_last} rows were requested; this context gives 1 to {min(len(tokens), self._settings.max_rows)}.",
                hint="Use a shorter draft (-k).",
            )
        if len(tokens) > self.n_ctx:
            raise UsageError(f"{len(tokens)} tokens do not fit a context of {self.n_ctx}.", hint="Use a larger --ctx.")

    def _evaluate_unscored(self, tokens: list[int]) -> None:
        """Bring the cache up to date, in batches of n_batch, asking for no logits."""
        started, evaluated = self._clock(), self.n_evaluated
        try:
            most = min(self._settings.n_batch, self.n_ctx)
            for at in range(0, len(tokens), most):
                chunk = tokens[at : at + most]
                self._decode(chunk, first_wanted=len(chunk))
            # A GPU works on after llama_decode returns; the clock must not stop before it has finished.
            llama_cpp.llama_synchronize(self._context)
        finally:  # also what an interruption leaves half done
            self.unscored_tokens += self.n_evaluated - evaluated
            self.unscored_seconds += self._clock() - started

    def _decode(self, chunk: list[int], *, first_wanted: int, n_beside: int = 0, hidden: bool = False) -> None:
        """One pass: evaluate `chunk` after what is cached; logits are wanted from index `first_wanted` on.

        The `n_beside` tokens of a tree lie behind it in the batch already.
        """
        if self._abort is not None and self._abort.is_set:
            raise Interrupted(self._abort.signal_number)
        prefix, batch = self._prefix, self._batch
        n, past = len(chunk), len(prefix.tokens)
        if prefix.hidden_rows is not None:
            prefix.hidden_rows.make_room(prefix.tokens, n)
        batch.fill(chunk, past, first_wanted, n_beside)
        shows_states = hidden and first_wanted == n_beside == 0
        if shows_states != self._makes_states:  # of all tokens of a batch, with rows of logits, or of none
            llama_cpp.llama_set_embeddings(self._context, shows_states)
            self._makes_states = shows_states
        self._first_hidden, self._n_hidden = past + 1, n if shows_states else 0
        status = llama_cpp.llama_decode(self._context, batch.native)
        if status != 0:
            self._fail(status)
        prefix.add(chunk)
        self.n_evaluated += n + n_beside
        self.n_passes += 1

    def _fail(self, status: int) -> None:
        # After an abort some of the batch may already be in the cache: take back all of it.
        if status not in _UNTOUCHED:
            self._prefix.go_back(len(self._prefix), self.n_ctx + 1)
        if status == ABORTED and self._abort is not None:
            raise Interrupted(self._abort.signal_number)
        if status == 1:
            raise DecodeFailed("The context is full.", hint="Use a larger --ctx.")
        reason = log.reason() or "no reason given"
        log.start_afresh()  # the next failure has a reason of its own
        raise DecodeFailed(
            f"llama.cpp could not evaluate a batch (status {status}): {reason}.",
            hint="Run again with --log FILE to see llama.cpp's messages.",
        )

    def _rows(self, n: int) -> Logits:
        """The first `n` rows of llama.cpp's buffer. It seldom moves, and wrapping it anew takes 30 microseconds."""
        address = _logits_address(self._context)
        if address != self._buffer_address:
            if not address:
                raise DecodeFailed(
                    "llama.cpp returned no logits.", hint="Run again with --log FILE to see llama.cpp's messages."
                )
            shape = (self._settings.max_rows + self._settings.branches, self.n_vocab)
            buffer = (ctypes.c_float * (shape[0] * shape[1])).from_address(address)
            self._buffer, self._buffer_address = np.ctypeslib.as_array(buffer).reshape(shape), address
        return self._buffer[:n]

    def close(self) -> None:
        """Free the context; calling it again does nothing."""
        if self._context:
            llama_cpp.llama_free(self._context)
            self._context = None
        self._batch.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
