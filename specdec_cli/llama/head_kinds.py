"""The two kinds of trained heads.

A `PairHead` (EAGLE-3, MTP) takes one token together with one hidden state and gives the next token's logits and a
state of its own, which goes into the next step. A `BlockHead` (DFlash, DSpark) keeps keys and values made from hidden
states, and fills a whole block of masked places in one pass.
"""

from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.tokens import Tokens
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.head import LlamaHead
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.models.heads import HeadFacts
from specdec_cli.settings import ContextSettings


class PairHead(LlamaHead):
    """EAGLE-3 and MTP: token P + 1 is read together with the state of position P.

    EAGLE-3 keeps the pair at P, its state being a projection of three layers' inputs; MTP at P + 1, with
    the state as it is.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: NDArray[np.float32] = np.empty((0, self._n_embd), np.float32)
        self._next = 0

    @property
    def _offset(self) -> int:
        return int(self.facts.kind == "mtp")

    def start(self, tokens: Sequence[int], k: int) -> NDArray[np.float32]:  # noqa: ARG002  (the protocol's names)
        tokens = Tokens.of(tokens)
        self._next = len(tokens) - 1
        self._target.evaluate(tokens.first(self._next))
        self._catch_up(tokens, again=1)
        return self._logits(self._batch.native.n_tokens - 1)

    def advance(self, token: int) -> NDArray[np.float32]:
        self._batch.fill([token], self._state, self._next + self._offset, wanted=True)
        self._run(llama_cpp.llama_decode)
        self._state = self._states(1)
        self._next += 1
        return self._logits(0)

    def _read(self, tokens: Tokens, start: int, stop: int, *, wanted: bool) -> None:
        """If the last row's logits are wanted all are asked for: the graphs give the first rows where it is not all."""
        states = self._hidden.rows(start, stop)
        if self.facts.kind == "eagle3":
            # Nothing is stored, but llama.cpp holds every batch's positions against those in memory.
            self._batch.fill(None, states, start, wanted=True)
            self._run(llama_cpp.llama_encode)
            self.n_evaluated -= stop - start  # a token is counted once, where it is decoded
            states = self._states(stop - start)
        self._batch.fill(tokens[start + 1 : stop + 1], states, start + self._offset, wanted=wanted)
        self._run(llama_cpp.llama_decode)
        if wanted:
            self._state = self._states(stop - start)[-1:]


class BlockHead(LlamaHead):
    """DFlash and DSpark: the state of position P goes into the memory at P; a block of masks is filled in one pass.

    A DSpark head draws each token of its block from the one before (inside llama.cpp, greedily) and says how
    sure it is of each. After a token that was drawn otherwise it is sure of nothing: the rest of its block is
    about another text. A DFlash2 head gives its best few at each place, and how well they follow one another.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._at = 0
        self._extra: NDArray[np.float32] = np.empty((0, self._n_embd), np.float32)
        self._chosen = 0
        self._is_astray = False

    def start(self, tokens: Sequence[int], k: int) -> NDArray[np.float32]:
        tokens = Tokens.of(tokens)
        stop = len(tokens) - 1
        self._target.evaluate(tokens.first(stop))
        self._catch_up(tokens, again=0)
        n = min(k, self.longest or k, self.n_ctx - stop - 1)
        block = [tokens[-1], *[self.facts.mask] * (n - self.facts.anchored)]
        self._batch.fill(block, None, stop, wanted=True)
        self._run(llama_cpp.llama_decode)
        if self.facts.has_confidence or self.facts.top_k:
            self._extra = self._states(len(block))
        self._at, self._chosen, self._is_astray = int(not self.facts.anchored), 0, False
        return self._place()

    def advance(self, token: int) -> NDArray[np.float32]:
        if self.facts.top_k:
            self._chosen = int((self._extra[self._at, : self.facts.top_k] == token).argmax())
        if self.facts.kind == "dspark":
            self._is_astray |= token != int(self._logits(self._at).argmax())
        self._at += 1
        return self._place()

    def _place(self) -> NDArray[np.float32]:
        """The logits of the place that is filled next."""
        self.confidence = 0.0 if self._is_astray else None
        if self.facts.has_confidence and not self._is_astray:
            self.confidence = float(self._extra[self._at, 0])
        if not self.facts.top_k:
            return self._logits(self._at)
        k, found = self.facts.top_k, self._extra[self._at]
        row = np.full(self.n_vocab, -np.inf, np.float32)
        row[found[:k].astype(np.intp)] = found[k * (1 + self._chosen) : k * (2 + self._chosen)]
        return row

    def _read(self, tokens: Tokens, start: int, stop: int, *, wanted: bool) -> None:  # noqa: ARG002  (as above)
        self._batch.fill(None, self._hidden.rows(start, stop), start, wanted=False)
        self._run(llama_cpp.llama_decode)


def open_head(
    model: LlamaModel, facts: HeadFacts, target: LlamaSession, settings: ContextSettings, abort: AbortFlag | None = None
) -> LlamaHead:
    """The head's context beside its target's. Raises OutOfMemory, ModelError."""
    kind = PairHead if facts.kind in ("eagle3", "mtp") else BlockHead
    return kind(model, facts, target, settings, abort=abort)
