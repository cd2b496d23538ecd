"""Answers that are written in silence, with the time at which each piece of text was there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.text_stream import Moment, Reply, Span
from specdec_cli.decode.tokens import first_difference
from specdec_cli.decode.types import FinishReason
from specdec_cli.generation.answer import Answer, follow
from specdec_cli.generation.pair import Decoding, Pair
from specdec_cli.generation.trace import Trace
from specdec_cli.generation.writer import Limits


@dataclass(frozen=True, slots=True)
class Recording:
    """One answer: when its text came, its ids, and how it was decoded."""

    moments: tuple[Moment, ...]
    answer: Answer
    token_ids: tuple[int, ...]
    text: str


class _Recorder:
    """A view that only remembers."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, spans: Sequence[Span], stats: RunStats) -> None:
        self.moments.append(Moment(stats.decode_seconds, tuple(spans), stats.tokens))

    def notice(self, text: str) -> None:
        pass

    def finish(
        self,
        spans: Sequence[Span],
        stats: RunStats,
        reason: FinishReason,  # noqa: ARG002  (the protocol's names)
        notes: Sequence[str] = (),  # noqa: ARG002
    ) -> None:
        self.show(spans, stats)


def record(
    pair: Pair, prompt: Sequence[int], limits: Limits, decoding: Decoding, clock: Callable[[], float]
) -> Recording:
    """Answer `prompt` without any cache of before: another beginning of a pass would round otherwise.

    What ends it early is in its answer.
    """
    pair.target.session.forget()
    reply = Reply(pair.target.model.token_bytes, end_tokens=pair.end_tokens, stop_strings=limits.stop_strings)
    recorder = _Recorder()
    rounds = pair.rounds(prompt, decoding, max_tokens=limits.max_tokens, clock=clock)
    answer = follow(rounds, reply, recorder, Trace(None), decoding.drafter.name, lambda _: [])
    return Recording(tuple(recorder.moments), answer, tuple(reply.tokens), reply.text)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A drafted answer beside plain decoding's. Seconds are after the first token; `differs_at` is the index of the
    first token that is not the same, None if there is none."""

    drafted: RunStats
    plain: RunStats
    differs_at: int | None

    @classmethod
    def of(cls, drafted: RunStats, ids: Sequence[int], plain: Recording) -> "Comparison":
        return cls(drafted, plain.answer.stats, first_difference(ids, plain.token_ids))

    @property
    def speedup(self) -> float | None:
        """Tokens per second over plain decoding's; None where one of the two had no second token."""
        speed, plain = self.drafted.tokens_per_second, self.plain.tokens_per_second
        return speed / plain if speed is not None and plain is not None else None

    def document(self) -> dict[str, Any]:
        """As `run --json` tells it."""
        return {
            "seconds": self.drafted.decode_seconds,
            "plain_seconds": self.plain.decode_seconds,
            "tokens_per_second": self.drafted.tokens_per_second,
            "plain_tokens_per_second": self.plain.tokens_per_second,
            "speedup": self.speedup,
            "same_text": self.differs_at is None,
            "differs_at_token": self.differs_at,
        }
