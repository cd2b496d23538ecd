"""Grammars through llama.cpp's own sampler: which tokens may follow a text, for any text it is asked about.

Like a session, it is handed the whole text and keeps what it knows of the longest beginning shared with
the text before: one clone of the sampler for each of the last positions. A draft goes forward on clones,
a rejection drops them, and no state is ever taken back.
"""

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.tokens import Tokens
from specdec_cli.errors import NothingAllowed, UsageError
from specdec_cli.llama.log import log
from specdec_cli.llama.model import LlamaModel

_KEPT = 128
"""Positions whose state is kept beside the first: more than a draft and the text it is drawn after."""
_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class LlamaGrammar:
    """A GBNF grammar with the symbol `root`. Close it, or use it as a context manager.

    After an end token everything is allowed: the text is over, and rows behind it are not used.
    Raises UsageError if the grammar cannot be parsed.
    """

    def __init__(self, model: LlamaModel, gbnf: str) -> None:
        self._end_tokens = model.end_tokens
        self._levels, self._parents = _prefix_forest(model, has_token_rules="<" in gbnf)
        self._found: dict[int, NDArray[np.intp]] = {}  # answers to `all_allowed`, by length of the text
        self._tokens, self._start = Tokens(), 0
        self._states: dict[int, Any] = {}  # by length of the text; None after an end token
        log.start_afresh()
        with _native_stderr() as said:
            first = llama_cpp.llama_sampler_init_grammar(model.vocab_handle, gbnf.encode(), b"root")
        if not first:
            reason = next((line for line in said if "error parsing grammar: " in line), None)
            reason = reason.partition("error parsing grammar: ")[2] if reason else log.reason() or "no reason given"
            raise UsageError(f"The grammar cannot be used: {reason}.", hint="It must be valid GBNF with a root rule.")
        self._states[0] = first

    def begin(self, prompt: Sequence[int]) -> None:
        """Every answer is a text of its own; which one is asked about shows in the questions."""

    def allowed(self, tokens: Tokens, start: int, ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of `ids` [n] may follow, shape [n]. Raises NothingAllowed for an answer outside the grammar."""
        state = self._state_after(tokens, start)
        if state is None:
            return np.ones(len(ids), np.bool_)
        return _allowed(state, ids)

    def all_allowed(self, tokens: Tokens, start: int) -> NDArray[np.intp]:
        """All token ids that may follow, ascending, shape [n]. Raises NothingAllowed as `allowed`."""
        state, length = self._state_after(tokens, start), len(tokens) - start
        if state is None:
            return np.arange(len(self._parents))
        if length not in self._found:
            # A token whose beginning is a forbidden token is forbidden too, and need not be looked at.
            kept = np.ones(len(self._parents) + 1, np.bool_)  # the last place stands for "no parent"
            for level in self._levels:
                kept[level] = False
                asked = level[kept[self._parents[level]]]
                kept[asked] = _allowed(state, asked)
            self._found[length] = np.flatnonzero(kept[:-1])
        return self._found[length]

    def only(self, tokens: Tokens, start: int) -> int | None:  # noqa: ARG002  (the protocol's names)
        """Never known: to look through the whole vocabulary takes longer than a draft token saves."""
        return None

    def _state_after(self, tokens: Tokens, start: int) -> Any:
        shared = max(self._tokens.n_shared(tokens) - start, 0) if start == self._start else 0
        for length in [n for n in self._states if n > shared]:
            self._free(length)
        self._tokens, self._start = tokens, start
        for n in range(max(self._states), len(tokens) - start):
            self._states[n + 1] = self._advanced(self._states[n], tokens[start + n])
            if len(self._states) > _KEPT:
                self._free(min(length for length in self._states if length > 0))
        return self._states[len(tokens) - start]

    def _advanced(self, state: Any, token: int) -> Any:
        if state is None:
            return None
        if not _allowed(state, np.array([token]))[0]:  # llama.cpp would end the process
            raise NothingAllowed("The text no longer follows the grammar.", hint="Please report this with the command.")
        if token in self._end_tokens:
            return None
        clone = llama_cpp.llama_sampler_clone(state)
        llama_cpp.llama_sampler_accept(clone, token)
        return clone

    def _free(self, length: int) -> None:
        state = self._states.pop(length)
        self._found.pop(length, None)
        if state is not None:
            llama_cpp.llama_sampler_free(state)

    def close(self) -> None:
        """Free all states; calling it again does nothing. Must come before the model is closed."""
        for length in list(self._states):
            self._free(length)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _prefix_forest(model: LlamaModel, *, has_token_rules: bool) -> tuple[list[NDArray[np.intp]], NDArray[np.intp]]:
    """Tokens by depth, and for each the longest token that it begins with (-1 for none), shape [n_vocab].

    Whole characters only: llama.cpp may forbid the first byte of a character that it would allow. With
    rules about token ids no beginning tells anything, and every token stands alone.
    """
    n = model.n_vocab
    parents = np.full(n, -1, np.intp)
    if has_token_rules:
        return [np.arange(n)], parents
    pieces, ends = model.all_bytes(marked=True), model.end_tokens
    beginnings = {p: t for t, p in enumerate(pieces) if p and t not in ends and _is_text(p)}
    depths = np.zeros(n, np.intp)
    for token in sorted(set(range(n)) - ends, key=lambda t: len(pieces[t])):  # an end token is no text
        piece = pieces[token]
        found = next((beginnings[piece[:i]] for i in range(len(piece) - 1, 0, -1) if piece[:i] in beginnings), -1)
        if found >= 0:
            parents[token], depths[token] = found, depths[found] + 1
    return [np.flatnonzero(depths == depth) for depth in range(int(depths.max()) + 1)], parents


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _allowed(state: Any, ids: NDArray[np.intp]) -> NDArray[np.bool_]:
    if not len(ids):
        return np.zeros(0, np.bool_)
    data = np.zeros(len(ids), _TOKEN_DATA)
    data["id"] = ids
    pointer = data.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
    array = llama_cpp.llama_token_data_array(data=pointer, size=len(ids), selected=-1, sorted=False)
    llama_cpp.llama_sampler_apply(state, ctypes.byref(array))
    kept: NDArray[np.bool_] = data["logit"] == 0
    return kept


@contextmanager
def _native_stderr() -> Iterator[list[str]]:
    """The lines that native code writes to stderr meanwhile: the parser knows no log."""
    lines: list[str] = []
    with suppress(AttributeError, ValueError):  # no stderr at all
        sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:
        yield lines
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines += file.read().decode("utf-8", "replace").splitlines()
