"""Opens a pair for a program, with the settings that `specdec run` has as options."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specdec_cli.decode.types import Drafter
from specdec_cli.generation.pair import open_pair
from specdec_cli.generation.responder import Responder
from specdec_cli.hub.cache import cached
from specdec_cli.hub.client import cache_root
from specdec_cli.library.pair import Pair
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.quantize import quantize
from specdec_cli.planning.drafting import Asked, decide, with_lookup_at_least
from specdec_cli.planning.machine import usable_cores
from specdec_cli.planning.request import PairRequest, Placement, Sampling
from specdec_cli.presets.resolve import named_preset, resolve
from specdec_cli.presets.schema import HubFile
from specdec_cli.settings import AUTO, USUAL_K, Length


def _silent(_note: str) -> None:
    pass


@contextmanager
def open(
    target: str | Path,
    *,
    draft: str | Path | Drafter | None = None,
    k: Length = AUTO,
    lookup: bool = True,
    verify: str = "coupled",
    strict: bool = False,
    force: bool = False,
    n_ctx: int | None = None,
    threads: int | None = None,
    gpu_layers: int | str = "auto",
    gpu_layers_draft: int | str = "auto",
    cache_type: str = "f16",
    placement: Placement | None = None,
    say: Callable[[str], None] = _silent,
) -> Iterator[Pair]:
    """Load `target` and what drafts for it; both are closed at the end of the `with` block.

    `target` is a GGUF file or a preset with files that lie on this machine. `draft` is a GGUF file, Medusa heads, a
    drafter's name ("ngram", "lookahead", "mtp", "none"), or a `Drafter` of your own, asked for `k` tokens at a time
    (4 with "auto"). A preset has its own draft; without any, drafts are copied from the text itself (`lookup`).
    `placement` has all settings of devices and memory, in place of those given here one by one. `say` takes notes for
    the user, one sentence each.

    Raises UsageError, NotHere, ModelError, OutOfMemory, VocabularyMismatch, NoGpu.
    """
    own = None if draft is None or isinstance(draft, str | Path) else draft
    placed = placement or Placement(
        gpu_layers=str(gpu_layers),
        gpu_layers_draft=str(gpu_layers_draft),
        cache_type=cache_type,
        n_ctx=n_ctx,
        threads=threads,
    )
    name = str(target)
    given = str(draft) if draft is not None and own is None else None
    files = resolve(name, named_preset(name), given if own is None else "none", _quantize, _find, say)
    length = k if k != AUTO else USUAL_K if own is not None else None
    asked = Asked(k=length, lookup=lookup, verify=verify, strict=strict, force=force)
    if draft is None:
        files = with_lookup_at_least(files, asked)
    request = PairRequest(
        files.target, decide(asked, files, None, placed.longest_draft), Sampling(files.sampling), placed
    )
    abort = AbortFlag()
    with (
        open_pair(request, say=say, abort=abort) as opened,
        Responder(opened, request, clock=time.perf_counter, say=say, abort=abort) as responder,
    ):
        yield Pair(responder, request.sampling, drafter=own, k=length or USUAL_K)


def _find(file: HubFile) -> Path | None:
    places = cached(cache_root(), file)
    return places[0] if places else None


def _quantize(source: Path, target: Path, file_type: str) -> None:
    quantize(source, target, file_type, threads=usable_cores())
