"""What a view is told. Views draw what they are given and decide nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.text_stream import Span
from specdec_cli.decode.types import FinishReason

NO_DRAFTER = "none"
"""The name under which a run without a drafter is shown."""


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One model as the screen names it. Bytes are bytes; layers are (on GPU, all)."""

    name: str
    weights_bytes: int
    cache_bytes: int
    layers_on_gpu: tuple[int, int]

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        on_gpu, layers = fields["layers_on_gpu"]
        return cls(**{**fields, "layers_on_gpu": (on_gpu, layers)})


@dataclass(frozen=True, slots=True)
class Header:
    """What is known before the first token. `draft` is None when no draft model is loaded, `seed` where nothing is
    drawn."""

    target: ModelLine
    draft: ModelLine | None
    drafter: str
    sampling: str
    n_ctx: int
    prompt_tokens: int
    seed: int | None = None

    @property
    def drafting(self) -> bool:
        """Whether a drafter was asked for."""
        return self.drafter != NO_DRAFTER

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`, also after a trip through JSON."""
        draft = fields["draft"]
        return cls(
            **{
                **fields,
                "target": ModelLine.from_fields(fields["target"]),
                "draft": None if draft is None else ModelLine.from_fields(draft),
            }
        )


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

    def finish(self, spans: Sequence[Span], stats: RunStats, reason: FinishReason, notes: Sequence[str] = ()) -> None:
        """The last text, the summary, and what is to be said about the whole."""
        ...
