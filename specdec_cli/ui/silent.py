"""Shows nothing: for output that another program reads."""

from collections.abc import Callable, Sequence
from typing import Self

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.text_stream import Span
from specdec_cli.decode.types import FinishReason


class SilentView:
    """Only notices get through, to `say`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, spans: Sequence[Span], stats: RunStats) -> None:
        pass

    def notice(self, text: str) -> None:
        self._say(text)

    def finish(
        self,
        spans: Sequence[Span],  # noqa: ARG002  (the protocol's names)
        stats: RunStats,  # noqa: ARG002
        reason: FinishReason,  # noqa: ARG002
        notes: Sequence[str] = (),
    ) -> None:
        for note in notes:
            self._say(note)
