"""Counts of a run, and what follows from them."""

from collections import deque
from dataclasses import dataclass, field

from specdec_cli.decode.plain_pace import PlainEstimate, PlainPace
from specdec_cli.decode.types import FORCED, Round

RECENT_ROUNDS = 64
"""Rounds that are kept whole."""
TREND_PARTS = 24


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


@dataclass(frozen=True, slots=True)
class Gain:
    """What drafting brought against plain decoding of the same tokens after the first: seconds measured, and seconds
    that plain decoding would have taken by the estimate."""

    plain: PlainEstimate
    seconds: float
    plain_seconds: float

    @property
    def speedup(self) -> float:
        return self.plain_seconds / self.seconds


@dataclass
class Trend:
    """Acceptance along an answer: at most TREND_PARTS parts of equally many rounds, (accepted, drafted) each."""

    parts: list[tuple[int, int]] = field(default_factory=list)
    _rounds_each: int = 1
    _rounds: int = 0

    def add(self, round_: Round) -> None:
        if self._rounds % self._rounds_each == 0:
            self.parts.append((0, 0))
        accepted, drafted = self.parts[-1]
        self.parts[-1] = accepted + round_.n_accepted, drafted + len(round_.drafted)
        self._rounds += 1
        if len(self.parts) == TREND_PARTS and self._rounds % self._rounds_each == 0:
            pairs = zip(self.parts[::2], self.parts[1::2], strict=True)
            self.parts = [(a + b, n + m) for (a, n), (b, m) in pairs]
            self._rounds_each *= 2

    @property
    def shares(self) -> list[float | None]:
        """Accepted / drafted of each part; None where nothing was drafted."""
        return [accepted / drafted if drafted else None for accepted, drafted in self.parts]


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
    trend: Trend = field(default_factory=Trend)
    plain_pace: PlainPace = field(default_factory=PlainPace)
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
        self.plain_pace.add(round_)
        self.trend.add(round_)

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
    def gain(self) -> "Gain | None":
        """Against plain decoding, estimated; None where nothing was drafted or no single-token pass is known yet."""
        plain, speed = self.plain_pace.estimate(), self.tokens_per_second
        if plain is None or speed is None or not self.drafted:
            return None
        return Gain(plain, self.decode_seconds, plain.seconds * (self.tokens - self.first_round_tokens))

    @property
    def other_seconds(self) -> float:
        """Decode time outside drafter and target: the rule, the text, the screen."""
        return self.decode_seconds - self.draft_seconds - self.verify_seconds

    @property
    def acceptance_per_position(self) -> list[float]:
        """Chance that the draft token at position i (0 = first) was kept, over all drafts that had one."""
        return [a / d for a, d in zip(self.accepted_per_position, self.drafted_per_position, strict=True)]
