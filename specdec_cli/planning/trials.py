"""Which files of a request are to be tried before they are opened, and with which settings."""

from specdec_cli.drafters import lookahead, sources
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.trial import Trial, is_trusted, try_out
from specdec_cli.planning.machine import available_memory, usable_cores
from specdec_cli.planning.plan import PairRequest


def try_files(request: PairRequest, abort: AbortFlag) -> None:
    """Open what was never opened here before in a process of its own, unless the user trusts it.

    Raises ModelError for a file that crashes llama.cpp or hangs it, OutOfMemory, Interrupted.
    """
    if is_trusted():
        return
    drafters = sources(request.drafter)
    has_trees = request.trees or lookahead.LookaheadDrafter.name in drafters
    target = Trial(
        request.target,
        cache_type=request.cache_type,
        flash_attention=request.flash_attention,
        branches=lookahead.DEFAULT_WINDOW if has_trees else 0,
    )
    is_own = "mtp" in drafters
    draft = request.target if is_own else request.draft
    trials = [target]
    if draft is not None:
        trials.append(Trial(draft, request.target, request.cache_type_draft, request.flash_attention, is_own=is_own))
    try_out(trials, threads=usable_cores(), free_bytes=available_memory(), abort=abort)
