"""Any drafter as a draft model of llama_cpp.Llama."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_cpp.llama_speculative import LlamaDraftModel
from numpy.typing import NDArray

from specdec_cli.decode.types import Drafter


class LlamaDraft(LlamaDraftModel):  # type: ignore[misc]
    """`llama_cpp.Llama(draft_model=LlamaDraft(drafter, k))`: the drafter is asked for `k` tokens a round.

    Llama samples row by row and stops at the first difference, so the text stays the target's with any drafter. It
    tells a drafter nothing of what was accepted, and keeps logits of the whole context (n_ctx x n_vocab floats).
    """

    def __init__(self, drafter: Drafter, k: int = 4) -> None:
        self._drafter = drafter
        self._k = k

    def __call__(self, input_ids: NDArray[np.intc], /, **_: Any) -> NDArray[np.intc]:
        """Draft token ids [at most k] that may follow `input_ids` [n]."""
        tokens: Sequence[int] = input_ids.tolist()
        return np.array(self._drafter.propose(tokens, self._k).tokens[: self._k], np.intc)
