"""Counts of a run, and what follows from them."""

from collections import deque
from dataclasses import dataclass, field

from specdec_cli.decode.types import FORCED, Round

RECENT_ROUNDS = 64
"""Rounds that the sparkline and the current speed look back on."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one model evaluated, by its session's count. What it only read (in seconds) is what no
    logits were wanted for: the prompt but its last token, and for a draft also what it did not draft itself."""

    tokens: int = 0
    read_tokens: int = 0
    read_seconds: float = 0.0

    def since(self, before: "Evaluation") -> "Evaluation":
        return Evaluation(
            self.tokens - before.tokens,
            self.read_tokens - before.read_tokens,
            self.read_seconds - before.read_seconds,
        )


@dataclass
class RunStats:
    """Everything is counted or measured per round; rates are properties."""

    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    drafted_by_source: dict[str, int] = field(default_factory=dict)
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    ttft_seconds: float | None = None
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    first_round_tokens: int = 0
    k: int = 0
    off_reason: str | None = None
    target: Evaluation | None = None
    draft: Evaluation | None = None
    recent: deque[Round] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))

    def add(self, round_: Round) -> None:
        """Count one round. The first one is the prompt's: its time is the time to first token."""
        self.passes += 1
        self.tokens += len(round_.tokens)
        if round_.k or round_.off_reason:  # not the rounds that only had no room for a draft
            self.k = round_.k
        self.off_reason = round_.off_reason
        self._count_draft(round_)
        self.recent.append(round_)
        if self.ttft_seconds is None:
            self.ttft_seconds = round_.seconds
            self.first_round_tokens = len(round_.tokens)
            return
        self.decode_seconds += round_.seconds
        self.draft_seconds += round_.draft_seconds
        self.verify_seconds += round_.verify_seconds

    def _count_draft(self, round_: Round) -> None:
        if not round_.drafted:
            return
        self.drafted += len(round_.drafted)
        self.accepted += round_.n_accepted
        self._count_source(round_)
        missing = len(round_.drafted) - len(self.drafted_per_position)
        self.drafted_per_position += [0] * missing
        self.accepted_per_position += [0] * missing
        for i in range(len(round_.drafted)):
            self.drafted_per_position[i] += 1
            self.accepted_per_position[i] += i < round_.n_accepted

    def _count_source(self, round_: Round) -> None:
        """Drafts whose drafter gives no name are in the sums only. What a grammar forces beside a draft is its own."""
        n_own, n_accepted = round_.n_drafted_by_source, round_.n_accepted_by_source
        self._count(round_.source, n_own, n_accepted)
        self._count(FORCED, len(round_.drafted) - n_own, round_.n_accepted - n_accepted)

    def _count(self, source: str, n_drafted: int, n_accepted: int) -> None:
        if source and n_drafted:
            self.drafted_by_source[source] = self.drafted_by_source.get(source, 0) + n_drafted
            self.accepted_by_source[source] = self.accepted_by_source.get(source, 0) + n_accepted

    @property
    def acceptance(self) -> float | None:
        """Accepted / drafted, the bonus token not counted; None without a draft."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_by_source(self) -> dict[str, float]:
        """Accepted / drafted of each source that drafted, the one that drafted most first."""
        drafted = sorted(self.drafted_by_source.items(), key=lambda item: -item[1])
        return {source: self.accepted_by_source[source] / n for source, n in drafted}

    @property
    def tokens_per_pass(self) -> float | None:
        """Emitted tokens per target pass, the target's own token included."""
        return self.tokens / self.passes if self.passes else None

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed: tokens after the first round over the time after it."""
        after_first = self.tokens - self.first_round_tokens
        return after_first / self.decode_seconds if self.decode_seconds > 0 else None

    @property
    def tokens_per_second_now(self) -> float | None:
        """The same over the recent rounds, the prompt's round left out."""
        rounds = list(self.recent)
        if len(rounds) == self.passes:
            rounds = rounds[1:]
        seconds = sum(r.seconds for r in rounds)
        return sum(len(r.tokens) for r in rounds) / seconds if seconds > 0 else None

    @property
    def other_seconds(self) -> float:
        """Decode time outside drafter and target: the rule, the text, the screen."""
        return self.decode_seconds - self.draft_seconds - self.verify_seconds

    @property
    def acceptance_per_position(self) -> list[float]:
        """Chance that the draft token at position i (0 = first) was kept, over all drafts that had one."""
        return [a / d for a, d in zip(self.accepted_per_position, self.drafted_per_position, strict=True)]
