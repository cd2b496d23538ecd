"""Times passes of made-up models in a process of their own: llama.cpp ends its process over some headers."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from specdec_cli.errors import DiskFull, ModelError, OutOfMemory
from specdec_cli.forecast.made_up import MadeUp, write_made_up
from specdec_cli.llama import amx
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.native_process import Apart, step
from specdec_cli.llama.session import LlamaSession
from specdec_cli.paths import cache_folder
from specdec_cli.settings import ContextSettings, ModelSettings

WIDEST = 9
WIDTHS = range(1, WIDEST + 1)
CONTEXT = 64
"""Tokens that lie before those of a pass."""
_N_CTX = 256
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 15
_IN_A_ROW = 3
"""Passes of one width in a row; the first of them follows another width, and is not counted."""
_PATIENCE_SECONDS = 120.0
"""Of computing, for each thread: many times what the slowest machine takes."""

Seconds = Mapping[int, float]
"""Of a pass, by width."""


@dataclass(frozen=True, slots=True)
class Way:
    """How passes are computed: with so many threads, on the processor or with every layer on the GPUs.

    Without `repack` weights stay as they lie in the file.
    """

    threads: int
    on_gpu: bool = False
    repack: bool = True


def time_passes(models: Sequence[MadeUp], way: Way, seconds: float) -> list[Seconds]:
    """What passes of WIDTHS cost, of each of the models by turns, in about so many `seconds` beside loading.

    Files of the models' size are written and deleted. Raises ModelError for what llama.cpp does not take, OutOfMemory,
    DiskFull, Interrupted.
    """
    root = cache_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="speed-", dir=root, ignore_cleanup_errors=True) as folder:
            return _timed(Path(folder), models, way, seconds)
    except OSError as error:
        free = shutil.disk_usage(root).free if root.is_dir() else 0
        raise DiskFull(
            f"Cannot write to {root}: {error.strerror} ({free / 1e9:.1f} GB are free).",
            hint="Free some disk space, or set SPECDEC_CACHE to another folder.",
        ) from error


def _timed(folder: Path, models: Sequence[MadeUp], way: Way, seconds: float) -> list[Seconds]:
    """AMX kernels that crash are left out from then on, as for a file that is opened for the first time (trial.py)."""
    paths = [folder / f"made-up-{i}.gguf" for i in range(len(models))]
    apart = Apart(
        "timing passes of made-up weights",
        hint="Its speed cannot be told before it is downloaded.",
        patience=_PATIENCE_SECONDS * way.threads,
        calm=False,
    )

    def call(way: Way) -> list[Seconds]:
        for path, model in zip(paths, models, strict=True):
            path.unlink(missing_ok=True)
            write_made_up(path, model)
        return apart.call(_time_each, paths, models[0].text, way, seconds)

    try:
        return call(way)
    except OutOfMemory:
        raise
    except ModelError:
        if not amx.has_amx() or amx.crashes():
            raise
        found = call(replace(way, repack=False))
        amx.remember_crash()
        return found


# --- in the child ---------------------------------------------------------------------------------------


def _time_each(paths: Sequence[Path], text: Sequence[int], way: Way, seconds: float) -> list[Seconds]:
    with ExitStack() as stack:
        sessions = [_opened(path, way, stack) for path in paths]
        step("computing with made-up weights")
        for session in sessions:
            session.score(text[:CONTEXT], 1)
            for width in (WIDEST, 1):
                _pass(session, text, width)
        in_a_row = 1 if len(sessions) > 1 else _IN_A_ROW
        return _by_turns(sessions, text, seconds, in_a_row)


def _opened(path: Path, way: Way, stack: ExitStack) -> LlamaSession:
    step("loading made-up weights")
    # Like a head it has no tokenizer.
    settings = ModelSettings(path, gpu_layers=-1 if way.on_gpu else 0, is_head=True, repack=way.repack)
    model = stack.enter_context(LlamaModel(settings))
    with suppress(OSError):  # so that nothing is left whatever happens now; Windows keeps what is mapped
        path.unlink()
    context = ContextSettings(
        n_ctx=_N_CTX, n_batch=_N_CTX, n_ubatch=_N_CTX, threads=way.threads, max_rows=WIDEST, wider_passes=False
    )
    return stack.enter_context(LlamaSession(model, context))


def _by_turns(sessions: Sequence[LlamaSession], text: Sequence[int], seconds: float, in_a_row: int) -> list[Seconds]:
    """Medians: what the models would take as a rule, on a machine as busy as it is now."""
    seen = [{width: list[float]() for width in WIDTHS} for _ in sessions]
    began, n_rounds = time.perf_counter(), 0
    while n_rounds < _LEAST_ROUNDS or (n_rounds < _MOST_ROUNDS and time.perf_counter() - began < seconds):
        for width in WIDTHS:
            for session, found in zip(sessions, seen, strict=True):
                times = [_pass(session, text, width) for _ in range(in_a_row)]
                found[width] += times[1:] or times
        n_rounds += 1
    return [{width: statistics.median(times) for width, times in found.items()} for found in seen]


def _pass(session: LlamaSession, text: Sequence[int], width: int) -> float:
    """Seconds of one, with the choice of the likeliest tokens."""
    began = time.perf_counter()
    session.score(text[: CONTEXT + width], width).argmax(axis=1)
    return time.perf_counter() - began
