"""Undoing tokens at the end of a sequence, by the kind of memory a model has.

Keys and values of attention can be cropped anywhere. A recurrent layer has one state, which each token changes for
good: what it was before must have been kept. llama.cpp has two means (llama-memory-recurrent.cpp):

- `n_rs_seq` snapshots: a pass leaves the states after each of its last tokens, and one removal after it may choose
  among them. Only some architectures do (llama-arch.cpp, llm_arch_supports_rs_rollback); others silently keep none. A
  pass of w tokens leaves w of them, however many are kept: the others are stale, and llama.cpp hands them out unasked.
- sequences: a copied sequence shares the state of the first, and the next pass writes its own elsewhere. Such a copy is
  a checkpoint: it moves no bytes, costs the memory of one state, and stands only where a pass ended.

Attention layers of a hybrid need no copies: they are cropped to where the state is.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import llama_cpp

from specdec_cli.settings import ContextSettings

COPY_EVERY = 64
"""Tokens after which another copy of the state is worth making: one of 100 MB takes about as long as a token."""
_STATES_ONLY = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_OWN_MEMORY = frozenset({"deepseek4", "glm5-next", "qwen4exp"})
"""Architectures whose memory copies no part of a sequence (it ends the process), or drops what it had worked out."""


class Rewind(Protocol):
    """Takes tokens back. Positions are counts of tokens from the beginning."""

    @property
    def name(self) -> str: ...

    def merges(self, n: int) -> int:
        """With `n` tokens in memory, at most so many without wanted logits go into one pass with those that follow."""
        ...

    def before(self, n: int, n_wanted: int) -> None:
        """`n` tokens are in memory, and a pass with logits for `n_wanted` more comes now."""
        ...

    def after(self, n_pass: int) -> None:
        """A pass of `n_pass` tokens has ended."""
        ...

    def read(self, n: int, n_new: int) -> None:
        """A text of `n` tokens has been read, the last `n_new` of them now, without logits."""
        ...

    def back(self, keep: int, distance: int) -> int | None:
        """Take back `distance` tokens (or an unknown number, after a failure: more than there are), so that `keep`
        stay. What then really stays, which may be less, or None if the memory has to be cleared."""
        ...

    def cleared(self) -> None:
        """The memory is empty."""
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """What a context must be opened with for a kind of Rewind."""

    kind: type["Crop | Snapshots | Checkpoints | StartOver"]
    n_snapshots: int = 0
    n_sequences: int = 1

    def start(self, context: Any, settings: ContextSettings) -> Rewind:
        """The Rewind of a context opened like this."""
        return self.kind(context, settings)


def ways(architecture: str, settings: ContextSettings, *, has_states: bool) -> Sequence[Way]:
    """What to try, best first; the last always works. `has_states`: some layer is recurrent."""
    if not has_states:
        return Way(Crop), Way(StartOver)
    found = []
    # A pass of one token leaves one snapshot, so a model that is only asked for one row at a time gains nothing.
    # llama.cpp wants room in a pass for one more than it keeps together, or ends the process.
    if settings.n_back and settings.max_rows > 1 and settings.n_back + 2 <= min(settings.n_ubatch, settings.n_ctx):
        found.append(Way(Snapshots, n_snapshots=settings.n_back))
    if settings.n_checkpoints and architecture not in _OWN_MEMORY:
        found.append(Way(Checkpoints, n_sequences=1 + settings.n_checkpoints))
    return *found, Way(StartOver)


class _Plain:
    """Nothing has to be kept."""

    name = ""

    def __init__(self, context: Any, settings: ContextSettings) -> None:
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)
        self._settings = settings

    def merges(self, n: int) -> int:  # noqa: ARG002  (the protocol's names)
        return 0

    def before(self, n: int, n_wanted: int) -> None:
        pass

    def after(self, n_pass: int) -> None:
        pass

    def read(self, n: int, n_new: int) -> None:
        pass

    def cleared(self) -> None:
        pass

    def _crop(self, keep: int) -> int | None:
        """The answer of seq_rm is checked, and the memory itself as well: it may refuse, or drop less than asked."""
        done = llama_cpp.llama_memory_seq_rm(self._memory, 0, keep, -1)
        return keep if done and llama_cpp.llama_memory_seq_pos_max(self._memory, 0) == keep - 1 else None


class Crop(_Plain):
    """Any number of tokens, at any time."""

    name = "crop"

    def back(self, keep: int, distance: int) -> int | None:  # noqa: ARG002  (the protocol's names)
        return self._crop(keep)


class StartOver(_Plain):
    """Nothing can be taken back but everything."""

    name = "start over"

    def back(self, keep: int, distance: int) -> int | None:  # noqa: ARG002  (the protocol's names)
        return None


class Snapshots(_Plain):
    """Within the last pass, once: the states after its tokens were kept.

    Further back there are copies of the state in main memory: where the text last read ended, and one that is at most
    `COPY_EVERY` tokens old when a pass begins.
    """

    name = "snapshots"

    def __init__(self, context: Any, settings: ContextSettings) -> None:
        super().__init__(context, settings)
        self._reach = 0
        self._read: _Copy | None = None
        self._recent: _Copy | None = None

    def before(self, n: int, n_wanted: int) -> None:  # noqa: ARG002  (the protocol's names)
        if n - max((copy.n for copy in self._copies), default=0) >= COPY_EVERY:
            self._recent = _Copy(self._context, n)

    def after(self, n_pass: int) -> None:
        self._reach = min(self._settings.n_back, n_pass - 1)

    def read(self, n: int, n_new: int) -> None:
        if n_new > self._settings.n_back:
            self._read = _Copy(self._context, n)

    @property
    def _copies(self) -> list["_Copy"]:
        return [copy for copy in (self._read, self._recent) if copy is not None]

    def back(self, keep: int, distance: int) -> int | None:
        reach, self._reach = self._reach, 0
        self._forget_after(keep)
        if distance <= reach:
            return self._crop(keep)
        last = max(self._copies, key=lambda copy: copy.n, default=None)
        return self._crop(last.n) if last is not None and last.restore(self._context) else None

    def _forget_after(self, n: int) -> None:
        self._read, self._recent = (
            copy if copy is not None and copy.n <= n else None for copy in (self._read, self._recent)
        )

    def cleared(self) -> None:
        self._reach = 0
        self._read = self._recent = None


class _Copy:
    """The states of the recurrent layers after `n` tokens."""

    def __init__(self, context: Any, n: int) -> None:
        self.n = n
        size = llama_cpp.llama_state_seq_get_size_ext(context, 0, _STATES_ONLY)
        self._data = (ctypes.c_uint8 * size)()
        self._is_whole = llama_cpp.llama_state_seq_get_data_ext(context, self._data, size, 0, _STATES_ONLY) == size

    def restore(self, context: Any) -> bool:
        """Whether the states are those again. Keys and values are not touched."""
        size = len(self._data)
        return self._is_whole and bool(
            llama_cpp.llama_state_seq_set_data_ext(context, self._data, size, 0, _STATES_ONLY) == size
        )


class Checkpoints(_Plain):
    """To where a checkpoint stands, and what was kept after it is evaluated again.

    A target has one before each pass that verifies a draft. A draft, which works token by token, has one before every
    token (every second, third ... of drafts longer than there are checkpoints): nothing is evaluated twice. One more
    stands at the end of the text last read, for an answer written anew.
    """

    name = "checkpoints"

    def __init__(self, context: Any, settings: ContextSettings) -> None:
        super().__init__(context, settings)
        self._landmark, *self._ring = range(1, 1 + settings.n_checkpoints)
        self._verifies = settings.max_rows > 1
        self._spacing = 1 if self._verifies else -(-settings.n_back // len(self._ring))
        self._at: dict[int, int] = {}  # where they stand, by sequence

    def merges(self, n: int) -> int:
        """After a rejection the accepted tokens, instead of a pass of their own; for there a checkpoint stands."""
        may = self._verifies and self._settings.wider_passes and n in self._at.values()
        return self._settings.n_back + 1 if may else 0

    def before(self, n: int, n_wanted: int) -> None:
        if self._verifies and n_wanted == 1:  # what was emitted is not taken back
            return
        standing = [self._at[i] for i in self._ring if i in self._at]
        if n not in self._at.values() and all(n - at >= self._spacing for at in standing):
            self._save(min(self._ring, key=lambda i: self._at.get(i, -1)), n)

    def read(self, n: int, n_new: int) -> None:
        if n_new > 2 * (self._settings.n_back + 1):  # more than what is only evaluated again
            self._save(self._landmark, n)

    def _save(self, sequence: int, n: int) -> None:
        if n > 0:
            llama_cpp.llama_memory_seq_cp(self._memory, 0, sequence, n, n)  # no range of keys: the state alone
            self._at[sequence] = n

    def back(self, keep: int, distance: int) -> int | None:  # noqa: ARG002  (the protocol's names)
        self._at = {i: at for i, at in self._at.items() if at <= keep}
        if not self._at:
            return None
        sequence = max(self._at, key=lambda i: self._at[i])
        at = self._at[sequence]
        llama_cpp.llama_memory_seq_cp(self._memory, sequence, 0, at, at)
        return self._crop(at)

    def cleared(self) -> None:
        self._at.clear()
