"""Drafts nothing: plain decoding through the same loop, and so the baseline of every comparison."""

from collections.abc import Sequence

from specdec_cli.decode.types import Draft, More, to_the_end


class NoDrafter:
    """Never proposes a token; `reason` says why speculation is off."""

    name = "none"

    def __init__(self, reason: str = "--draft none") -> None:
        self._reason = reason

    def propose(self, tokens: Sequence[int], k: int, more: More = to_the_end) -> Draft:  # noqa: ARG002  (the protocol's names)
        return Draft(off_reason=self._reason)
