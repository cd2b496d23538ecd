"""Hidden states of the target's tokens, kept until a trained head has read them."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_cli.llama.private_api import capture_last, capture_layer, last_address, layer_address
from specdec_cli.models.heads import OUTPUT_STATE

Rows = NDArray[np.float32]
Read = Callable[[Sequence[int]], None]
"""Called between two passes when room is short, with the tokens evaluated so far: their rows may be read now."""


class HiddenRows:
    """One row for each token of a session's cache from position `first` on, in step with that cache.

    A row holds the inputs of `layers` side by side, `n_embd` numbers each. The session adds a row for
    every token it evaluates and takes rows back with its cache. `drop_before` frees what has been read;
    when `capacity` rows are not enough, `read` may read and drop, and then the oldest go: memory is
    bounded whether anybody reads or not.
    """

    def __init__(self, context: Any, layers: Sequence[int], n_embd: int, capacity: int, read: Read) -> None:
        self._context = context
        self._layers = tuple(layers)
        self._rows = np.empty((capacity, len(layers), n_embd), np.float32)
        self._n = 0
        self.first = 0
        self.read = read
        for layer in self._layers:
            if layer == OUTPUT_STATE:
                capture_last(context, only_wanted=False)
            else:
                capture_layer(context, layer)

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self._rows.shape[1] * self._rows.shape[2]

    def make_room(self, cached: Sequence[int], n: int) -> None:
        """Before `n` tokens are evaluated after those of `cached`. Raises what `read` does."""
        if self._n + n > len(self._rows):
            self.read(cached)
        self._forget(self._n + n - len(self._rows))

    def add(self, start: int, n: int) -> None:
        """Copy the rows of the `n` tokens, from position `start` on, that were just evaluated."""
        if not self._n:
            self.first = start
        n_embd = self._rows.shape[2]
        for i, layer in enumerate(self._layers):
            address = last_address(self._context) if layer == OUTPUT_STATE else layer_address(self._context, layer)
            found = (ctypes.c_float * (n * n_embd)).from_address(address)
            self._rows[self._n : self._n + n, i] = np.ctypeslib.as_array(found).reshape(n, n_embd)
        self._n += n

    def keep(self, length: int) -> None:
        """Forget the rows from position `length` on."""
        self._n = max(min(self._n, length - self.first), 0)
        self.first = min(self.first, length)

    def begin(self, position: int) -> None:
        """The cache now holds the tokens before `position`, and none of their rows are known."""
        self.first, self._n = position, 0

    def from_before(self, length: int) -> int:
        """How much of a cache to keep when `length` tokens could stay.

        A head reads a token together with the row before it. If that row is gone already, the token it
        belongs to is evaluated again.
        """
        return length if self.first < length or length == 0 else length - 1

    def rows(self, start: int, stop: int) -> Rows:
        """The rows of positions `start` to `stop`, shape [stop - start, width]; a view until the next `add`."""
        return self._rows[start - self.first : stop - self.first].reshape(stop - start, -1)

    def drop_before(self, position: int) -> None:
        """Free the rows before `position`."""
        self._forget(position - self.first)

    def _forget(self, n: int) -> None:
        n = min(n, self._n)
        if n > 0:
            self._rows[: self._n - n] = self._rows[n : self._n].copy()
            self._n -= n
            self.first += n
