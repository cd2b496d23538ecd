"""The batch of one pass, in llama.cpp's arrays: tokens of the text, and a tree of guesses next to them."""

from collections.abc import Sequence

import llama_cpp
import numpy as np

from specdec_cli.decode.types import Branches
from specdec_cli.llama.tree import depths_of, leaf_sequences


class TokenBatch:
    """llama.cpp's batch with room for `capacity` tokens at positions below `n_positions`.

    The text is sequence 0; the leaves of a tree, `n_leaves` at most, are the sequences after it.
    """

    def __init__(self, capacity: int, n_positions: int, n_leaves: int) -> None:
        self.native = llama_cpp.llama_batch_init(capacity, 0, 1 + n_leaves)
        self._is_free = False
        self._tokens = np.ctypeslib.as_array(self.native.token, (capacity,))
        self._positions = np.ctypeslib.as_array(self.native.pos, (capacity,))
        self._wanted = np.ctypeslib.as_array(self.native.logits, (capacity,))
        self._n_sequences = np.ctypeslib.as_array(self.native.n_seq_id, (capacity,))
        self._counted = np.arange(n_positions, dtype=np.int32)
        self._n_sequences[:] = 1
        for i in range(capacity):
            self.native.seq_id[i][0] = 0

    def fill(self, tokens: list[int], start: int, first_wanted: int, n_beside: int = 0) -> None:
        """`tokens` from position `start` on; logits are wanted from index `first_wanted` on.

        The `n_beside` tokens of a tree lie behind them already.
        """
        n, batch = len(tokens), self.native
        batch.n_tokens = n + n_beside
        if n == 1:  # most passes: a slice of an array takes three times as long as these
            batch.token[0], batch.pos[0], batch.logits[0] = tokens[0], start, first_wanted == 0
        else:
            self._tokens[:n] = tokens
            self._positions[:n] = self._counted[start : start + n]
            self._wanted[:first_wanted] = 0
            self._wanted[first_wanted:n] = 1

    def place_tree(self, branches: Branches, start: int, n_text: int) -> None:
        """Put the tree behind `n_text` tokens of the text from position `start` on; it grows from the first of them."""
        sequences, depths = leaf_sequences(branches.parents), depths_of(branches.parents)
        end = n_text + len(branches.tokens)
        self._tokens[n_text:end] = branches.tokens
        self._positions[n_text:end] = np.array(depths) + start
        self._set_sequences(0, range(1 + max(leaves[-1] for leaves in sequences)))
        for i, leaves in enumerate(sequences):
            self._set_sequences(n_text + i, leaves)
            self._wanted[n_text + i] = i not in branches.parents

    def remove_tree(self, n_text: int, n: int) -> None:
        """Let everything belong to the text again, after a tree of `n` tokens."""
        self._n_sequences[: n_text + n] = 1
        for i in range(n_text, n_text + n):
            self.native.seq_id[i][0] = 0

    def _set_sequences(self, i: int, sequences: Sequence[int]) -> None:
        self._n_sequences[i] = len(sequences)
        for at, sequence in enumerate(sequences):
            self.native.seq_id[i][at] = sequence

    def free(self) -> None:
        """Give the arrays back; calling it again does nothing."""
        if not self._is_free:
            self._is_free = True
            llama_cpp.llama_batch_free(self.native)
