"""What a view is told. Views draw what they are given and decide nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from specdec_cli.stats import RunStats
from specdec_cli.types import FinishReason, Origin


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One model as the screen names it. Bytes are bytes; layers are (on GPU, all)."""

    name: str
    weights_bytes: int
    cache_bytes: int
    layers_on_gpu: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Header:
    """What is known before the first token. `draft` is None when no draft model is loaded."""

    target: ModelLine
    draft: ModelLine | None
    drafter: str
    sampling: str
    n_ctx: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Span:
    """Text of one origin."""

    text: str
    origin: Origin


class View(Protocol):
    """Shows one answer. Used as a context manager; leaving it restores the terminal on every way out."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, spans: Sequence[Span], stats: RunStats) -> None:
        """New text (perhaps none) and the counts after a round."""
        ...

    def notice(self, text: str) -> None:
        """A line of news for the user, once."""
        ...

    def finish(self, spans: Sequence[Span], stats: RunStats, reason: FinishReason) -> None:
        """The last text and the summary."""
        ...
