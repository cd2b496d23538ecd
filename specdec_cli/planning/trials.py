"""Which files of a request are to be tried before they are opened, and with which settings."""

from specdec_cli.drafters import sources
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.trial import Trial, is_trusted, try_out
from specdec_cli.planning.drafting import n_branches
from specdec_cli.planning.machine import available_memory, usable_cores
from specdec_cli.planning.request import PairRequest


def try_files(request: PairRequest, abort: AbortFlag) -> None:
    """Open what was never opened here before in a process of its own, unless the user trusts it.

    Raises ModelError for a file that crashes llama.cpp or hangs it, OutOfMemory, Interrupted.
    """
    if is_trusted():
        return
    drafting, placement = request.drafting, request.placement
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
