"""The lines before and after an answer."""

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import FinishReason
from specdec_cli.ui import words
from specdec_cli.ui.view import Header


def introduction(header: Header, draft_name: str) -> list[str]:
    """What does not change while answers are written. `draft_name` is how accepted draft tokens are marked."""
    models = [header.target.name]
    if header.draft is not None:
        models.append(header.draft.name)
    elif header.drafting:
        models.append(header.drafter)
    placed, sampling = placement(header)
    lines = [f"{' + '.join(models)}, context {header.n_ctx}, {sampling}", placed]
    legend = f"{draft_name} text was drafted and accepted, plain text is the target's own"
    return [*lines, legend] if header.drafting else lines


def placement(header: Header) -> list[str]:
    """Where the models are and what they take, and how tokens are chosen."""
    models = [("target", header.target), ("draft", header.draft)]
    there = [(name, model) for name, model in models if model is not None]
    layers = ", ".join("{}/{} {}".format(*model.layers_on_gpu, name) for name, model in there)
    memory = ", ".join(
        f"{name} {words.size(model.weights_bytes)} + {words.size(model.cache_bytes)} cache" for name, model in there
    )
    return [f"layers on GPU: {layers}; memory: {memory}", header.sampling]


def one_line(header: Header, stats: RunStats, reason: FinishReason, *, utf8: bool) -> str:
    """The answer at a glance."""
    parts = [words.count(stats.tokens, "token")]
    if stats.tokens_per_second is not None:
        parts.append(words.speed(stats.tokens_per_second))
    if stats.gain is not None:
        parts.append(words.gain(stats.gain))
    if stats.acceptance is not None:
        parts.append(f"{words.percent(stats.acceptance)} accepted")
    if header.seed is not None:
        parts.append(f"seed {header.seed}")
    if reason != "stop":
        parts.append(words.REASONS[reason])
    return words.listed(parts, utf8=utf8)


def summary(stats: RunStats, reason: FinishReason) -> list[str]:
    """What happened, in counts that were counted and times that were measured. The gain is an estimate."""
    return [
        f"stopped: {words.REASONS[reason]}",
        f"{words.count(stats.tokens, 'token')}, {words.decimal(stats.tokens_per_second, 1)} tokens/s, "
        f"first token after {words.duration(stats.ttft_seconds)}",
        *_gain(stats),
        f"{words.count(stats.passes, 'round')}, {words.decimal(stats.tokens_per_pass, 2)} tokens per pass, "
        f"drafted {stats.drafted}, accepted {stats.accepted}, acceptance {words.percent(stats.acceptance)}",
        *_sources(stats),
        f"draft {words.duration(stats.draft_seconds)}, verify {words.duration(stats.verify_seconds)}, "
        f"other {words.duration(stats.other_seconds)}",
        *_prompt(stats),
    ]


def _gain(stats: RunStats) -> list[str]:
    gain = stats.gain
    if gain is None:
        return []
    times = words.times(gain.seconds, gain.plain_seconds)
    slower = "" if gain.speedup >= 1 else "slower: "
    return [
        f"{slower}{gain.speedup:.2f}x plain decoding ({times}), "
        f"estimated from single-token passes, to within {words.percent(gain.plain.spread)}"
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
