"""`--compare` and `race`: a drafted answer beside plain decoding's, in words."""

from typing import TYPE_CHECKING

from specdec_cli.commands.options import say

if TYPE_CHECKING:
    from specdec_cli.decode.stats import RunStats
    from specdec_cli.generation.pair import Pair
    from specdec_cli.generation.recording import Comparison


def tell_comparison(comparison: "Comparison", pair: "Pair") -> None:
    """Seconds, speeds and the verdict, on stderr."""
    for name, stats in (("drafted:", comparison.drafted), ("plain:", comparison.plain)):
        say(f"{name:<9}{_figures(stats)}")
    say(verdict(comparison, pair))


def verdict(comparison: "Comparison", pair: "Pair") -> str:
    """Whether the texts are the same, and what drafting brought."""
    speedup, at = comparison.speedup, comparison.differs_at
    ratio = "" if speedup is None else f", {speedup:.2f}x plain decoding{': slower' if speedup < 1 else ''}"
    if at is None:
        return f"identical text{ratio}"
    if not pair.rule.keeps_text:
        return f"the texts differ from token {at} on, as --verify {pair.rule.name} keeps only their distribution{ratio}"
    return f"the texts differ from token {at} on (a near tie, or a bug: specdec bench tells which){ratio}"


def _figures(stats: "RunStats") -> str:
    from specdec_cli.ui import words

    return (
        f"{words.count(stats.tokens, 'token')}, {words.seconds(stats.decode_seconds)} after the first, "
        f"{words.speed(stats.tokens_per_second)}"
    )
