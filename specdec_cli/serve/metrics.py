"""Counters of a server, in Prometheus' text format. The names of speculative decoding are vLLM's."""

from collections import Counter
from dataclasses import dataclass, field

from specdec_cli.serve.shapes import Ended


@dataclass
class Metrics:
    """Sums over all answers. Used by one thread."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0
    after_first_tokens: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    plain_seconds: float = 0.0
    """What plain decoding would have taken in place of `compared_seconds`, where it can be estimated."""
    compared_seconds: float = 0.0
    accepted_by_position: list[int] = field(default_factory=list)
    finished: Counter[str] = field(default_factory=Counter)

    def add(self, ended: Ended) -> None:
        """Count an answer."""
        stats = ended.stats
        self.prompt_tokens += ended.prompt_tokens - ended.cached_tokens
        self.cached_tokens += ended.cached_tokens
        self.written_tokens += stats.tokens
        self.prompt_seconds += stats.ttft_seconds or 0.0
        self.decode_seconds += stats.decode_seconds
        self.draft_tokens += stats.drafted
        self.accepted_tokens += stats.accepted
        self.drafts += stats.drafted_per_position[0] if stats.drafted_per_position else 0
        missing = len(stats.accepted_per_position) - len(self.accepted_by_position)
        self.accepted_by_position += [0] * missing
        for i, n in enumerate(stats.accepted_per_position):
            self.accepted_by_position[i] += n
        self.finished[ended.finish] += 1
        self.after_first_tokens += stats.tokens - stats.first_round_tokens
        if (gain := stats.gain) is not None:
            self.plain_seconds += gain.plain_seconds
            self.compared_seconds += gain.seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Over all answers, tokens after the first."""
        return self.after_first_tokens / self.decode_seconds if self.decode_seconds > 0 else None

    @property
    def acceptance(self) -> float | None:
        """Accepted / drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def speedup(self) -> float | None:
        """Estimated, over plain decoding."""
        return self.plain_seconds / self.compared_seconds if self.compared_seconds > 0 else None

    def words(self) -> list[str]:
        """The rates for a person."""
        found = [f"{sum(self.finished.values()):,} answers"]
        if self.tokens_per_second is not None:
            found.append(f"{self.tokens_per_second:.1f} tok/s")
        if self.acceptance is not None:
            found.append(f"{100 * self.acceptance:.0f} % accepted")
        if self.speedup is not None:
            found.append(f"about {self.speedup:.2f}x plain")
        return found

    def text(self, *, n_running: int, n_waiting: int) -> str:
        """The page that Prometheus reads."""
        lines: list[str] = []

        def tell(name: str, kind: str, about: str, *values: tuple[str, float]) -> None:
            lines.extend((f"# HELP specdec:{name} {about}", f"# TYPE specdec:{name} {kind}"))
            lines.extend(f"specdec:{name}{labels} {value:g}" for labels, value in values)

        for name, about, value in (
            ("prompt_tokens_total", "Prompt tokens that were evaluated.", self.prompt_tokens),
            ("prompt_tokens_cached_total", "Prompt tokens that were known from earlier requests.", self.cached_tokens),
            ("prompt_seconds_total", "Time until the first tokens.", self.prompt_seconds),
            ("generation_tokens_total", "Generated tokens.", self.written_tokens),
            ("generation_seconds_total", "Time after the first tokens.", self.decode_seconds),
            ("spec_decode_num_drafts_total", "Drafts.", self.drafts),
            ("spec_decode_num_draft_tokens_total", "Draft tokens.", self.draft_tokens),
            ("spec_decode_num_accepted_tokens_total", "Accepted draft tokens.", self.accepted_tokens),
        ):
            tell(name, "counter", about, ("", value))
        by_position = [(f'{{position="{i}"}}', float(n)) for i, n in enumerate(self.accepted_by_position)]
        about = "Accepted draft tokens by position in the draft."
        tell("spec_decode_num_accepted_tokens_per_pos_total", "counter", about, *by_position)
        finished = [(f'{{finished_reason="{reason}"}}', float(n)) for reason, n in sorted(self.finished.items())]
        tell("request_success_total", "counter", "Answers by the reason for which they ended.", *finished)
        tell("num_requests_running", "gauge", "Requests that are being answered.", ("", n_running))
        tell("num_requests_waiting", "gauge", "Requests in the queue.", ("", n_waiting))
        for name, about, rate in (
            ("tokens_per_second", "Generated tokens a second, after the first ones.", self.tokens_per_second),
            ("spec_decode_acceptance_rate", "Accepted / drafted.", self.acceptance),
            ("estimated_speedup", "Estimated speed over plain decoding.", self.speedup),
        ):
            tell(name, "gauge", about, *([("", rate)] if rate is not None else []))
        return "\n".join(lines) + "\n"
