"""The lines after an answer."""

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import FinishReason
from specdec_cli.ui import words
from specdec_cli.ui.view import Header


def placement(header: Header) -> list[str]:
    """Where the models are and what they take: the panel shows it too, but not in every window."""
    models = [("target", header.target), ("draft", header.draft)]
    there = [(name, model) for name, model in models if model is not None]
    layers = ", ".join("{}/{} {}".format(*model.layers_on_gpu, name) for name, model in there)
    memory = ", ".join(
        f"{name} {words.size(model.weights_bytes)} + {words.size(model.cache_bytes)} cache" for name, model in there
    )
    return [f"layers on GPU: {layers}; memory: {memory}", header.sampling]


def summary(stats: RunStats, reason: FinishReason) -> list[str]:
    """What happened, in counts that were counted and times that were measured."""
    return [
        f"stopped: {words.REASONS[reason]}",
        f"{words.count(stats.tokens, 'token')}, {words.decimal(stats.tokens_per_second, 1)} tokens/s, "
        f"first token after {words.duration(stats.ttft_seconds)}",
        f"{words.count(stats.passes, 'round')}, {words.decimal(stats.tokens_per_pass, 2)} tokens per pass, "
        f"drafted {stats.drafted}, accepted {stats.accepted}, acceptance {words.percent(stats.acceptance)}",
        *_sources(stats),
        f"draft {words.duration(stats.draft_seconds)}, verify {words.duration(stats.verify_seconds)}, "
        f"other {words.duration(stats.other_seconds)}",
        *_prompt(stats),
    ]


def warnings(stats: RunStats) -> list[str]:
    """What the user should not miss."""
    return [] if stats.off_reason is None else [words.off(stats.off_reason)]


def _sources(stats: RunStats) -> list[str]:
    """Who drafted what, where several took turns."""
    shares = stats.acceptance_by_source
    if len(shares) < 2:
        return []
    told = (
        f"{source} {stats.accepted_by_source[source]} of {stats.drafted_by_source[source]} ({words.percent(share)})"
        for source, share in shares.items()
    )
    return [f"accepted by source: {', '.join(told)}"]


def _prompt(stats: RunStats) -> list[str]:
    """What reading cost each model, apart: tokens that an earlier turn left in the cache cost nothing."""
    if stats.target is None:
        return []
    costs = [("target", stats.target), ("draft", stats.draft)]
    told = [
        f"{name} {words.count(cost.read_tokens, 'token')} in {words.duration(cost.read_seconds)}"
        for name, cost in costs
        if cost is not None
    ]
    return [f"read: {', '.join(told)}"]
