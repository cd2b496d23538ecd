"""The tokens a context has in its cache, and going back to a shorter prefix."""

from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.tokens import Tokens
from specdec_cli.llama.hidden_rows import HiddenRows
from specdec_cli.llama.rewind import Rewind
from specdec_cli.llama.state import put_state, take_state


class CachedPrefix:
    """The tokens whose state is in memory: always a beginning of those that were asked for last.

    Goes back as `rewind` can, `hidden_rows` in step with it. `n_resets` counts how often it had to start over.
    """

    def __init__(self, context: Any, rewind: Rewind) -> None:
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)
        self._asked = Tokens()
        self.rewind = rewind
        self.tokens: list[int] = []
        self.hidden_rows: HiddenRows | None = None
        self.n_resets = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def ask(self, tokens: Tokens, n: int) -> None:
        """From here on `tokens` are asked for; what is not among their first `n` is dropped from memory."""
        keep = min(self._asked.n_shared(tokens), n)
        if self.hidden_rows is not None:
            keep = self.hidden_rows.from_before(keep)
        if keep < len(self.tokens):
            self.go_back(keep, len(self.tokens) - keep)
        self._asked = tokens

    def holds(self, tokens: Tokens) -> bool:
        """Whether all of these are in memory."""
        return len(tokens) <= min(len(self.tokens), self._asked.n_shared(tokens))

    def add(self, tokens: list[int]) -> None:
        """A pass has evaluated these."""
        if self.hidden_rows is not None:
            self.hidden_rows.add(len(self.tokens), len(tokens))
        self.rewind.after(len(tokens))
        self.tokens += tokens

    def go_back(self, keep: int, distance: int) -> None:
        """Make the memory hold exactly the first `keep` tokens, or fewer. Starting over is slow but right.

        `distance` tokens are to go; more than there are, if it is unknown how many a failure left.
        """
        kept = self.rewind.back(keep, distance)
        if kept is None:
            self.clear()
            self.n_resets += 1
        else:
            del self.tokens[kept:]
            if self.hidden_rows is not None:
                self.hidden_rows.keep(kept)

    def clear(self) -> None:
        """Make the memory empty."""
        llama_cpp.llama_memory_clear(self._memory, True)
        self.rewind.cleared()
        self.tokens = []
        if self.hidden_rows is not None:
            self.hidden_rows.keep(0)

    def snapshot(self, n: int) -> tuple[list[int], NDArray[np.uint8]]:
        """The first `n` of the tokens (all, if there are fewer) and their state [bytes]; the rest is dropped."""
        if n < len(self.tokens):
            self.go_back(n, len(self.tokens) - n)
        return list(self.tokens), take_state(self._context)

    def restore(self, tokens: Sequence[int], state: NDArray[np.uint8]) -> bool:
        """Take up the `state` [bytes] of a snapshot of `tokens`, in place of all; whether llama.cpp accepted it."""
        self.clear()
        if not put_state(self._context, state, 0, len(tokens) - 1):
            return False
        self._asked = Tokens(tokens)
        self.tokens = list(tokens)
        if self.hidden_rows is not None:
            self.hidden_rows.begin(len(tokens))
        return True
