"""One sequence and its cache. `score` is handed whole token lists and evaluates only what is new."""

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
from specdec_cli.llama.context import cache_bytes_from_log, open_context
from specdec_cli.llama.hidden_rows import HiddenRows
from specdec_cli.llama.log import log
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.rewind import Crop, Rewind, StartOver, Way, ways
from specdec_cli.llama.state import put_state, take_state
from specdec_cli.llama.tree import depths_of, leaf_sequences
from specdec_cli.settings import ContextSettings

ABORTED = 2  # llama_decode's answer when the abort callback said so
_UNTOUCHED = (1, -1)  # its answers for a full context and a wrong batch: the memory is as it was
_TRIED_POSITIONS = 8  # enough for the trial below, in the smallest context
_SAME_SHARE = 0.5
_SAME = 0.01  # logits may differ by so much where the prefix hardly moves them
_logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, llama_cpp.llama_context_p_ctypes)(
    ("llama_get_logits", llama_cpp.llama_cpp._lib)  # as a number: llama_cpp's own makes a pointer object each time
)


class LlamaSession:
    """A context of one sequence that keeps the longest prefix it shares with what it is asked next.

    Counts, for statistics and for tests: `n_evaluated` tokens and `n_passes` passes so far, and
    of them `unscored_tokens` in `unscored_seconds`: tokens whose logits nobody asked for, which are
    the prompt and whatever else was new when `score` was called. With `keep_hidden` passes also give
    the states that `hidden` shows.
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
        self._batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1 + settings.branches)
        self._fill_constant_fields()
        self._most_at_once = min(settings.n_ubatch, settings.n_ctx)  # llama.cpp makes batches no longer than contexts
        self._positions = np.arange(max(settings.n_ctx, _TRIED_POSITIONS), dtype=np.int32)
        self._asked = Tokens()  # what was asked for last; what is cached is always the beginning of it
        self._captured: HiddenRows | None = None
        self.n_ctx = settings.n_ctx  # llama.cpp rounds its own figure up
        self.n_vocab = model.n_vocab
        self.n_embd = int(llama_cpp.llama_model_n_embd_out(model.handle))
        self.keep_hidden = False
        self._first_hidden = self._n_hidden = 0
        self._context: llama_cpp.llama_context_p | None = None
        self._is_closed = False
        self._cached: list[int] = []
        try:
            self._open_rewindable()
        except BaseException:
            self.close()
            raise

    def _open_rewindable(self) -> None:
        """Open the context in the first way of going back that does what it says."""
        for way in ways(self._model.architecture, self._settings, has_states=self._model.has_states):
            self._open(way)
            if way.kind is StartOver or (self._keeps_snapshots(way) and self._goes_back()):
                self._start_counting()
                return
            llama_cpp.llama_free(self._context)
            self._context = None

    def _open(self, way: Way) -> None:
        self._context = open_context(self._model, self._settings, self._abort, way)
        self.cache_bytes = cache_bytes_from_log()
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._rewinding = way.start(self._context, self._settings)
        self._makes_states = False
        self._buffer: Logits = np.empty((0, 0), np.float32)
        self._buffer_address = 0
        self._start_counting()

    def _start_counting(self) -> None:
        self._clear()
        self.n_evaluated = 0
        self.n_passes = 0
        self.n_resets = 0
        self.keep_hidden = False
        self._first_hidden = self._n_hidden = 0
        self.unscored_tokens = 0
        self.unscored_seconds = 0.0

    def _keeps_snapshots(self, way: Way) -> bool:
        return bool(llama_cpp.llama_n_rs_seq(self._context) >= way.n_snapshots)

    def _goes_back(self) -> bool:
        """Whether logits after going back are those of a text that was never longer, and nothing was started over.

        They may differ as much as rounding makes them, so what another prefix does to them is the measure.
        """
        try:
            return self._tries_to_go_back()
        except DecodeFailed:
            return False

    def _tries_to_go_back(self) -> bool:
        first, second, third, fourth, wrong = ((i + 1) * self.n_vocab // 7 for i in range(5))
        text = [first, second, third]
        n_wrong = min(self._settings.n_back, 2)
        if self._settings.max_rows > 1:
            n_wrong = min(n_wrong, self._most_at_once - 1)
            self._score(text + [wrong] * n_wrong, 1 + n_wrong)
        else:
            for n in range(n_wrong + 1):
                self._score(text + [wrong] * n, 1)
        back = self._score([*text, fourth], 1).copy()
        if self.n_resets:
            return False
        self._clear()
        straight = self._score([*text, fourth], 1).copy()
        other = self._score([*text, fourth, fourth], 1)
        error, difference = np.abs(back - straight).max(), np.abs(other - straight).max()
        return bool(error <= max(_SAME_SHARE * difference, _SAME))

    def _fill_constant_fields(self) -> None:
        n = self._settings.n_batch
        self._batch_tokens = np.ctypeslib.as_array(self._batch.token, (n,))
        self._batch_positions = np.ctypeslib.as_array(self._batch.pos, (n,))
        self._batch_wanted = np.ctypeslib.as_array(self._batch.logits, (n,))
        self._batch_n_sequences = np.ctypeslib.as_array(self._batch.n_seq_id, (n,))
        self._batch_n_sequences[:] = 1
        for i in range(n):
            self._batch.seq_id[i][0] = 0

    @property
    def rewind(self) -> Rewind:
        """How this session goes back, as found out when it was opened."""
        return self._rewinding

    @property
    def can_rewind(self) -> bool:
        """Whether tokens can be taken back without starting over."""
        return not isinstance(self._rewinding, StartOver)

    @property
    def can_crop(self) -> bool:
        """Whether that costs nothing at any distance, so that a snapshot can be made."""
        return isinstance(self._rewinding, Crop)

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:
        """Logits after each of the last `n_last` tokens, shape [n_last, n_vocab], float32.

        A view into llama.cpp's buffer, valid until the next call. Raises UsageError when the list
        does not fit, DecodeFailed when llama.cpp fails, Interrupted when the abort flag is set.
        """
        self._check(tokens, n_last)
        return self._score(tokens, n_last)

    def _score(self, tokens: Sequence[int], n_last: int) -> Logits:
        tokens = Tokens.of(tokens)
        first_wanted = len(tokens) - n_last
        self._take_back_to(tokens, first_wanted)
        n_new = first_wanted - len(self._cached)
        if n_new > self._rewinding.merges(len(self._cached)) or n_new + n_last > self._most_at_once:
            self._evaluate_unscored(tokens[len(self._cached) : first_wanted])
            self._rewinding.read(first_wanted, n_new)
        self._rewinding.before(len(self._cached), n_last)
        self._decode(tokens[len(self._cached) :], first_wanted=first_wanted - len(self._cached))
        return self._rows(n_last)

    def _take_back_to(self, tokens: Tokens, n: int) -> None:
        """Make the cache hold at most the first `n` tokens."""
        self._rewind(min(self._asked.n_shared(tokens), n))
        self._asked = tokens

    def score_beside(self, tokens: Sequence[int], n_last: int, branches: Branches) -> Logits:
        """The rows of `score`, from a pass that evaluates a tree as well, each leaf a sequence of its own.

        The tree's cells are free again afterwards. A tree that does not fit the batch or the context, or has more
        leaves than the settings allow, is left out. Raises what `score` raises.
        """
        self._check(tokens, n_last)
        n, settings = len(branches.tokens), self._settings
        sequences = leaf_sequences(branches.parents)
        n_leaves = max((leaves[-1] for leaves in sequences), default=0)
        has_room = n_last + n <= settings.n_batch and len(tokens) + n <= self.n_ctx
        if not (self.can_crop and has_room and 0 < n_leaves <= settings.branches):
            return self.score(tokens, n_last)
        tokens, root = Tokens.of(tokens), len(tokens) - n_last
        self._take_back_to(tokens, root)
        self._evaluate_unscored(tokens[len(self._cached) : root])
        for leaf in range(1, n_leaves + 1):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, leaf, -1, -1)
        try:
            self._place_tree(branches, sequences, n_leaves, n_last)
            self._decode(tokens[root:], first_wanted=0, n_beside=n)
        finally:
            self._batch_n_sequences[: n_last + n] = 1
            for i in range(n_last, n_last + n):
                self._batch.seq_id[i][0] = 0
            for leaf in range(1, n_leaves + 1):
                llama_cpp.llama_memory_seq_rm(self._memory, leaf, -1, -1)
        rows = self._rows(n_last + n_leaves)
        branches.take(rows[n_last:])
        return rows[:n_last]

    def _place_tree(self, branches: Branches, sequences: list[list[int]], n_leaves: int, n_last: int) -> None:
        """Put the tree behind the `n_last` tokens of the text in the batch; every leaf continues the first of them."""
        n, depths = len(branches.tokens), depths_of(branches.parents)
        self._batch_tokens[n_last : n_last + n] = branches.tokens
        self._batch_positions[n_last : n_last + n] = np.array(depths) + len(self._cached)
        self._set_sequences(0, range(n_leaves + 1))
        for i, leaves in enumerate(sequences):
            self._set_sequences(n_last + i, leaves)
            self._batch_wanted[n_last + i] = i not in branches.parents

    def _set_sequences(self, i: int, sequences: Sequence[int]) -> None:
        self._batch_n_sequences[i] = len(sequences)
        for at, sequence in enumerate(sequences):
            self._batch.seq_id[i][at] = sequence

    def hidden(self, tokens: Sequence[int]) -> Hidden | None:
        """The state after `tokens` that the output matrix made a row of, shape [n_embd], a copy.

        None unless the last call scored that place while `keep_hidden` was set.
        """
        row = len(tokens) - self._first_hidden
        is_cached = len(tokens) <= min(len(self._cached), self._asked.n_shared(Tokens.of(tokens)))
        if not (0 <= row < self._n_hidden and is_cached):
            return None
        state = llama_cpp.llama_get_embeddings_ith(self._context, row)
        return np.ctypeslib.as_array(state, (self.n_embd,)).copy() if state else None

    def evaluate(self, tokens: Sequence[int]) -> None:
        """Make the cache hold exactly `tokens`, asking for no logits. Raises what `score` does."""
        self._check(tokens, 1)
        tokens = Tokens.of(tokens)
        self._take_back_to(tokens, len(tokens))
        new = tokens[len(self._cached) :]
        self._evaluate_unscored(new)
        self._rewinding.read(len(tokens), len(new))

    def capture(self, layers: Sequence[int]) -> HiddenRows:
        """Keep the inputs of these layers for every token evaluated from here on: see HiddenRows."""
        self._rewind(0)
        n_embd = llama_cpp.llama_model_n_embd(self._model.handle)
        self._captured = HiddenRows(self._context, layers, n_embd, 2 * self._settings.n_batch)
        return self._captured

    @property
    def cached(self) -> Sequence[int]:
        """The tokens whose state is in memory."""
        return self._cached

    @property
    def handle(self) -> llama_cpp.llama_context_p:
        """llama.cpp's pointer, for a head that shares this model's tensors."""
        return self._context

    def _rows(self, n: int) -> Logits:
        """The first `n` rows of llama.cpp's buffer. It seldom moves, and wrapping it anew takes 30 microseconds."""
        address = _logits_address(self._context)
        if address != self._buffer_address:
            if not address:
                raise DecodeFailed("llama.cpp has no logits after a pass.", hint="Run again with --log FILE.")
            shape = (self._settings.max_rows + self._settings.branches, self.n_vocab)
            buffer = (ctypes.c_float * (shape[0] * shape[1])).from_address(address)
            self._buffer, self._buffer_address = np.ctypeslib.as_array(buffer).reshape(shape), address
        return self._buffer[:n]

    def snapshot(self, n: int) -> tuple[list[int], NDArray[np.uint8]]:
        """The first `n` of the cached tokens (all, if there are fewer) and their state [bytes]; the rest is dropped.

        Only for a memory that can be cropped.
        """
        if n < len(self._cached):
            self._go_back(n, distance=len(self._cached) - n)
        return list(self._cached), take_state(self._context)

    def restore(self, tokens: Sequence[int], state: NDArray[np.uint8]) -> bool:
        """Take up the `state` [bytes] that a snapshot of `tokens` had; whether llama.cpp accepted it.

        Whatever was cached before is gone.
        """
        self._clear()
        if not put_state(self._context, state, 0, len(tokens) - 1):
            return False
        self._asked = Tokens(tokens)
        self._cached = list(tokens)
        if self._captured is not None:
            self._captured.begin(len(tokens))
        return True

    def forget(self) -> None:
        """Make the cache empty."""
        self._clear()

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
            most = min(self._settings.n_batch, self.n_ctx)
            for at in range(0, len(tokens), most):
                chunk = tokens[at : at + most]
                self._decode(chunk, first_wanted=len(chunk))
            # A GPU works on after llama_decode returns; the clock must not stop before it has finished.
            llama_cpp.llama_synchronize(self._context)
        finally:  # also what an interruption leaves half done
            self.unscored_tokens += self.n_evaluated - evaluated
            self.unscored_seconds += self._clock() - started

    def _decode(self, chunk: list[int], *, first_wanted: int, n_beside: int = 0) -> None:
        """Evaluate `chunk` after what is cached; logits are wanted from index `first_wanted` on.

        The `n_beside` tokens of a tree lie behind it in the batch already.
        """
        if self._abort is not None and self._abort.is_set:
            raise Interrupted(self._abort.signal_number)
        n, past = len(chunk), len(self._cached)
        self._batch.n_tokens = n + n_beside
        if n == 1:  # most passes: a slice of an array takes three times as long as these
            self._batch.token[0], self._batch.pos[0], self._batch.logits[0] = chunk[0], past, first_wanted == 0
        else:
            self._batch_tokens[:n] = chunk
            self._batch_positions[:n] = self._positions[past : past + n]
            self._batch_wanted[:first_wanted] = 0
            self._batch_wanted[first_wanted:n] = 1
        shows_states = self.keep_hidden and first_wanted == n_beside == 0
        if shows_states != self._makes_states:  # of all tokens of a batch, with rows of logits, or of none
            llama_cpp.llama_set_embeddings(self._context, shows_states)
            self._makes_states = shows_states
        self._first_hidden, self._n_hidden = past + 1, n if shows_states else 0
        if self._captured is not None:
            self._captured.make_room(self._cached, n)
        status = llama_cpp.llama_decode(self._context, self._batch)
        if status != 0:
            self._fail(status)
        if self._captured is not None:
            self._captured.add(past, n)
        self._rewinding.after(n)
        self._cached += chunk
        self.n_evaluated += n + n_beside
        self.n_passes += 1

    def _fail(self, status: int) -> None:
        # After an abort some of the batch may already be in the cache: take back all of it.
        if status not in _UNTOUCHED:
            self._go_back(len(self._cached), distance=self.n_ctx + 1)
        if status == ABORTED and self._abort is not None:
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
        if self._captured is not None:
            keep = self._captured.from_before(keep)
        if keep < len(self._cached):
            self._go_back(keep, distance=len(self._cached) - keep)

    def _go_back(self, keep: int, distance: int) -> None:
        """Make the memory hold exactly the first `keep` tokens, or fewer. Starting over is slow but right."""
        kept = self._rewinding.back(keep, distance)
        if kept is None:
            self._clear()
            self.n_resets += 1
        else:
            del self._cached[kept:]
            if self._captured is not None:
                self._captured.keep(kept)

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(self._memory, True)
        self._rewinding.cleared()
        self._cached = []
        if self._captured is not None:
            self._captured.keep(0)

    def close(self) -> None:
        """Free the context; calling it again does nothing."""
        if self._context:
            llama_cpp.llama_free(self._context)
            self._context = None
        if not self._is_closed:
            self._is_closed = True
            llama_cpp.llama_batch_free(self._batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
