"""Which files of a request are to be tried before they are opened, and with which settings."""

from pathlib import Path

from specdec_cli.drafters import sources
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.trial import Trial, is_trusted, try_out
from specdec_cli.planning.drafting import n_branches
from specdec_cli.planning.machine import available_memory, usable_cores
from specdec_cli.planning.request import PairRequest
from specdec_cli.settings import ContextSettings


def try_files(request: PairRequest, abort: AbortFlag) -> None:
    """Open what was never opened here before in a process of its own, unless the user trusts it.

    Raises ModelError for a file that crashes llama.cpp or hangs it, OutOfMemory, Interrupted.
    """
    drafting, placement = request.drafting, request.placement
    if placement.trust or is_trusted():
        return
    target = Trial(
        request.target,
        cache_type=placement.cache_type,
        flash_attention=placement.flash_attention,
        branches=n_branches(drafting),
    )
    is_own = "mtp" in sources(drafting.drafter)
    draft = request.target if is_own else drafting.draft
    trials = [target]
    if draft is not None:
        memory = placement.cache_type_draft, placement.flash_attention
        trials.append(Trial(draft, request.target, *memory, is_own=is_own))
    try_out(trials, threads=usable_cores(), free_bytes=available_memory(), abort=abort)


def try_context(path: Path, drafts_for: Path | None, context: ContextSettings, abort: AbortFlag) -> None:
    """The same for another context of a model that is open. Raises what `try_files` does."""
    if is_trusted():
        return
    trial = Trial(path, drafts_for, context.cache_type, context.flash_attention, context.branches)
    try_out([trial], threads=usable_cores(), free_bytes=available_memory(), abort=abort)
