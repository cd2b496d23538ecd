"""Drafts nothing: plain decoding through the same loop, and so the baseline of every comparison."""

from collections.abc import Sequence

from specdec_cli.types import Draft


class NoDrafter:
    """Never proposes a token."""

    name = "none"

    def propose(self, tokens: Sequence[int], k: int) -> Draft:  # noqa: ARG002  (the protocol's names)
        return Draft(off_reason="--draft none")
