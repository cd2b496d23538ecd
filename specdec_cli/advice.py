"""Warnings and notes about a pair or a run."""

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import FinishReason, Round
from specdec_cli.models.memory import ModelFacts

BREAK_EVEN_RATIO = 5.0
"""Below this many bytes of target weights per byte of draft weights, drafting seldom pays."""

_SLOW_DRAFT_ROUNDS = 16
_ROUNDS_WITHOUT = 4
"""The prompt's, two that show what plain decoding takes, and the last, which may have no room for a draft."""


def pair_notes(target: ModelFacts, draft: ModelFacts) -> list[str]:
    """Warnings about the sizes of a pair, before anything is generated."""
    ratio = target.weights_bytes / max(draft.weights_bytes, 1)
    if draft.n_params > target.n_params:
        return [
            f"The draft has more parameters than the target ({draft.n_params / 1e9:.2f} B vs. "
            f"{target.n_params / 1e9:.2f} B). Are the two swapped?"
        ]
    if ratio < BREAK_EVEN_RATIO:
        return [
            f"The target is only {ratio:.1f} times the size of the draft; below about {BREAK_EVEN_RATIO:g} "
            "times, drafting rarely pays. Compare with --draft none."
        ]
    return []


def cache_notes(cache_type_draft: str) -> list[str]:
    """A draft's cache of 4 bits costs more acceptance than memory (llama.cpp issue 10552)."""
    if cache_type_draft.startswith(("q4", "iq4")):
        return [f"A draft cache of {cache_type_draft} often halves acceptance; f16 or q8_0 is safer (--kv-draft)."]
    return []


def strict_notes(longest: int | None, noise: float, n_settled: int) -> list[str]:
    """What --strict did: the longest draft it allowed, the width noise in logits, the near ties it settled."""
    if noise > 0:
        return [
            "--strict: on this file, passes of every width differ from single-token passes, by up to "
            f"{noise:.2g} in a logit. {n_settled} near ties were decided in a pass of their own, but some may "
            "be missed. If the cache is the cause, --kv bf16 helps."
        ]
    if longest:
        return [
            f"--strict: drafts are limited to {longest} tokens; passes of that width give the same numbers "
            "as single-token passes."
        ]
    return []


def cut_notes(finish: FinishReason, limit: int | None, grammar: str) -> list[str]:
    """That a text with a grammar (a JSON schema, a regular expression) ended before it was complete."""
    ends: dict[FinishReason, tuple[str, str]] = {
        "length": (f"by -n {limit}", "-n"),
        "context": ("at the end of the context", "--ctx"),
    }
    if finish not in ends:
        return []
    (where, option), missing = (
        ends[finish],
        "is not valid JSON" if "JSON" in grammar else f"does not match the {grammar}",
    )
    return [f"The answer was cut off {where} and {missing}. Use a larger {option}."]


def run_notes(stats: RunStats, drafter: str) -> list[str]:
    """What went wrong with drafting in a run that is over, or is under way."""
    if drafter == "none" or stats.passes <= _ROUNDS_WITHOUT:
        return []
    if stats.drafted == 0 and stats.off_reason is None:
        return [
            "Nothing was drafted, so this was plain decoding: there was nothing to copy, or no draft was "
            "expected to pay (-k 4 drafts regardless of cost)."
        ]
    # Asked after every round: the newest round that was quick enough ends it.
    drafting = [r for r in stats.recent if r.drafted] if _is_slow(stats.recent[-1]) else []
    if len(drafting) >= _SLOW_DRAFT_ROUNDS and all(map(_is_slow, drafting)):
        return ["A draft token takes longer than a target pass: this draft cannot pay here."]
    return []


def _is_slow(round_: Round) -> bool:
    """Whether a draft token took longer than the target's pass, or nothing was drafted."""
    return not round_.drafted or round_.draft_seconds / len(round_.drafted) > round_.verify_seconds
