"""Opens new files in a separate process first.

llama.cpp checks much of a file with assertions, and dies of one that fails; no list of them will ever be whole. So a
child opens the file as it is going to be opened, and computes with it. What it survived is remembered.

The child uses the CPU alone and maps the weights as they lie in the file: that costs neither memory nor the time of an
upload. Contexts are short. Whatever else changes the graphs of llama.cpp is as asked for.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import llama_cpp

from specdec_cli import __version__
from specdec_cli.child_process import PATIENCE_SECONDS
from specdec_cli.errors import DecodeFailed, ModelError, OutOfMemory, SpecdecError
from specdec_cli.llama import amx
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.context import open_context
from specdec_cli.llama.head_kinds import open_head
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.native_process import DAMAGED, Apart, step
from specdec_cli.llama.rewind import StartOver, Way
from specdec_cli.llama.session import LlamaSession
from specdec_cli.llama.versions import versions
from specdec_cli.marks import is_marked, mark
from specdec_cli.models.gguf import parts_of, read_model
from specdec_cli.models.heads import HeadFacts, own_head, read_head
from specdec_cli.settings import ContextSettings, FlashAttention, ModelSettings

_WIDTH = 4
"""Draft tokens of the wider pass."""
_MAX_CONTEXT = 512
_HEAD_BATCH = 64
_MARKS = "opened"
_BYTES_PER_SECOND = 20e6
"""What a slow machine reads and computes with, which a large file is waited for."""
_MAX_REMEMBERED = 2000


@dataclass(frozen=True, slots=True)
class Trial:
    """A model file, and what of the settings changes llama.cpp's graphs.

    `target` is set for whatever drafts, a draft model or a head; with `is_own` the head is inside the target's file.
    Only with `repack` weights are reordered for the processor's kernels, which takes memory and time.
    """

    path: Path
    target: Path | None = None
    cache_type: str = "f16"
    flash_attention: FlashAttention = "auto"
    branches: int = 0
    is_own: bool = False
    repack: bool = False

    @property
    def key(self) -> str:
        """Of the files as they are now, these settings, and the programs. Raises OSError."""
        files = [_identities(path) for path in (self.path, self.target) if path is not None]
        facts = [files, self.cache_type, self.flash_attention, self.branches, self.is_own, __version__, versions()]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    @property
    def size(self) -> int:
        """Bytes of the file and its target's, which a head is tried beside. Raises OSError."""
        return sum(_size(path) for path in {self.path, self.target} if path is not None)


def is_trusted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether SPECDEC_TRUST says that no file needs a trial."""
    return environ.get("SPECDEC_TRUST", "0") not in ("", "0")


def try_out(
    trials: Sequence[Trial], *, threads: int, free_bytes: int | None = None, abort: AbortFlag | None = None
) -> None:
    """Open the files that were never opened here before in one child process. Of a model larger than `free_bytes` only
    the graphs are made: computing would read it from the disk again and again.

    What cannot be opened for a reason that is told in words is left to whoever opens the file next. Raises ModelError
    for a file that crashes llama.cpp or that it does not come to an end with, OutOfMemory, Interrupted.
    """
    sizes: dict[Trial, int] = {}
    for trial in trials:
        with suppress(OSError):  # a file that is not there is for others to tell of
            if not is_marked(_MARKS, trial.key):
                sizes[trial] = trial.size
    if not sizes:
        return
    patience = PATIENCE_SECONDS + sum(sizes.values()) / _BYTES_PER_SECOND
    apart = Apart("opening a model", hint=DAMAGED, patience=patience, abort=abort)
    passed = _passed(apart, list(sizes), free_bytes, threads)
    mark(_MARKS, [trial.key for trial in passed], most=_MAX_REMEMBERED)


def _passed(apart: Apart, trials: list[Trial], free_bytes: int | None, threads: int) -> list[Trial]:
    """Those that opened. Where there are AMX kernels, weights are first reordered for them, as they are going to be:
    what then crashes, and does not without, is no fault of the files."""
    if amx.has_amx() and not amx.crashes():
        try:
            return apart.call(_open_each, [replace(trial, repack=True) for trial in trials], free_bytes, threads)
        except OutOfMemory:
            raise
        except ModelError:
            passed = apart.call(_open_each, trials, free_bytes, threads)
            amx.remember_crash()
            return passed
    return apart.call(_open_each, trials, free_bytes, threads)


def _identities(path: Path) -> list[tuple[str, int, int, int]]:
    """Of all parts of a model: path, size [bytes], time of change [ns] and inode."""
    parts = [path.with_name(part).resolve() for part in parts_of(path.name)]
    return [(str(part), stat.st_size, stat.st_mtime_ns, stat.st_ino) for part in parts for stat in (part.stat(),)]


def _size(path: Path) -> int:
    return sum(size for _, size, _, _ in _identities(path))


# --- in the child ---------------------------------------------------------------------------------------


def _open_each(trials: Sequence[Trial], free_bytes: int | None, threads: int) -> list[Trial]:
    """Those that opened and computed; the others were refused in words."""
    passed = []
    for trial in trials:
        with suppress(SpecdecError, MemoryError), ExitStack() as stack:
            head = _head_of(trial)
            if head is not None and trial.target is not None:
                computes = free_bytes is None or trial.size <= free_bytes
                _draft_with(head, trial, trial.target, threads, stack, computes=computes)
            else:
                computes = free_bytes is None or _size(trial.path) <= free_bytes
                _open(trial, threads, stack, computes=computes)
            passed.append(trial)
    return passed


def _head_of(trial: Trial) -> HeadFacts | None:
    """None for a model, whether it drafts or not."""
    if trial.target is None:
        return None
    headers = read_model(trial.target)
    if trial.is_own:
        return own_head(headers, trial.path.name)
    return read_head(read_model(trial.path), headers, trial.path.name, trial.path)


def _open(trial: Trial, threads: int, stack: ExitStack, *, computes: bool) -> None:
    """The tokenizer, the graphs, a pass of one token, one of four, and the ways of taking a recurrent state back."""
    name = trial.path.name
    model = _loaded(trial.path, trial, stack)
    step(f"reading the tokenizer of {name}")
    model.vocabulary()
    step(f"opening a context for {name}")
    settings = _context(model, trial, threads)
    context = open_context(model, settings, None, Way(StartOver))
    stack.callback(llama_cpp.llama_free, context)
    if not computes:
        return
    first, *others = _some_tokens(model)
    for tokens, n_past in ([first], 0), (others, 1):
        step(f"evaluating {len(tokens)} token{'s' * (len(tokens) > 1)} with {name}")
        _pass(context, tokens[: settings.n_ctx - n_past], n_past, every_row=settings.max_rows > 1)
    if model.has_states:
        step(f"undoing tokens with {name}")
        stack.enter_context(LlamaSession(model, settings))


def _pass(context: llama_cpp.llama_context_p, tokens: Sequence[int], n_past: int, *, every_row: bool) -> None:
    """Logits of all tokens, or of the last alone: a draft's context has no room for more. Raises DecodeFailed."""
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, n_past + i, 1, 0
        batch.logits[i] = every_row or i == len(tokens) - 1
    status = llama_cpp.llama_decode(context, batch) if tokens else 0
    llama_cpp.llama_synchronize(context)
    llama_cpp.llama_batch_free(batch)
    if status != 0:
        raise DecodeFailed(f"llama.cpp could not evaluate a batch (status {status}).")


def _draft_with(head: HeadFacts, trial: Trial, path: Path, threads: int, stack: ExitStack, *, computes: bool) -> None:
    """A draft of a head beside its target."""
    target = _loaded(path, trial, stack, with_mtp=head.is_own)
    step(f"opening a context for {path.name}")
    if target.has_states and not computes:  # a session of it computes as it is opened
        return
    context = _context(target, replace(trial, target=None), threads)
    session = stack.enter_context(LlamaSession(target, context))
    if not session.can_rewind:
        return
    model = target if head.is_own else _loaded(trial.path, trial, stack, is_head=True, with_mtp=head.kind == "mtp")
    step(f"drafting with the head {trial.path.name}")
    n_batch = min(_HEAD_BATCH, context.n_ctx)
    own = replace(context, n_batch=n_batch, n_ubatch=n_batch, max_rows=n_batch, cache_type=trial.cache_type)
    opened = stack.enter_context(open_head(model, head, session, own))
    if not computes:
        return
    tokens = _some_tokens(target)
    opened.start(tokens, _WIDTH)
    opened.advance(tokens[0])


def _loaded(path: Path, trial: Trial, stack: ExitStack, *, is_head: bool = False, with_mtp: bool = False) -> LlamaModel:
    step(f"loading {path.name}")
    settings = ModelSettings(path, devices=("cpu",), repack=trial.repack, is_head=is_head, with_mtp=with_mtp)
    return stack.enter_context(LlamaModel(settings))


def _context(model: LlamaModel, trial: Trial, threads: int) -> ContextSettings:
    n_ctx = max(1, min(_MAX_CONTEXT, llama_cpp.llama_model_n_ctx_train(model.handle) or _MAX_CONTEXT))
    n_back = min(_WIDTH, n_ctx - 1)
    drafts = trial.target is not None
    return ContextSettings(
        n_ctx=n_ctx,
        n_batch=n_ctx,
        n_ubatch=n_ctx,
        threads=threads,
        cache_type=trial.cache_type,
        flash_attention=trial.flash_attention,
        max_rows=1 if drafts else 1 + n_back,
        max_back=n_back,
        branches=trial.branches,
    )


def _some_tokens(model: LlamaModel) -> list[int]:
    """From all over the vocabulary: one for the first pass, the others for the wider one."""
    return [i * model.n_vocab // (_WIDTH + 2) for i in range(_WIDTH + 1)]
