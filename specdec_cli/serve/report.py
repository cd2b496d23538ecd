"""A request in one line, without a word of its prompt or answer."""

from dataclasses import dataclass

from specdec_cli.serve.shapes import Ended


@dataclass(frozen=True, slots=True)
class Report:
    """A request that is done. `outcome` is "ok", "cancelled" or an error with its status."""

    path: str
    outcome: str
    seconds: float
    answers: tuple[Ended, ...] = ()

    def __str__(self) -> str:
        words = [self.path, self.outcome, *self._counts(), f"{self.seconds:.2f} s"]
        return " · ".join(words)

    def _counts(self) -> list[str]:
        if not self.answers:
            return []
        first, stats = self.answers[0], [one.stats for one in self.answers]
        cached = f" ({first.cached_tokens:,} cached)" if first.cached_tokens else ""
        found = [f"prompt {first.prompt_tokens:,}{cached}", f"{sum(one.tokens for one in stats):,} tokens"]
        seconds = sum(one.decode_seconds for one in stats)
        n_after_first = sum(one.tokens - one.first_round_tokens for one in stats)
        if seconds > 0 and n_after_first:
            found.append(f"{n_after_first / seconds:.1f} tok/s")
        gains = [gain for one in stats if (gain := one.gain) is not None]
        if gains:
            speedup = sum(gain.plain_seconds for gain in gains) / sum(gain.seconds for gain in gains)
            found.append(f"about {speedup:.2f}x plain")
        if drafted := sum(one.drafted for one in stats):
            found.append(f"{100 * sum(one.accepted for one in stats) / drafted:.0f} % accepted")
        return found
