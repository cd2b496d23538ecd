"""One target and one EAGLE-3 head in llama.cpp, step by step: to check a head, not to be fast.

    python -m scripts.training.eagle3_driver TARGET.gguf HEAD.gguf [--prompt TEXT] [-n 200]

Writes with the target alone, greedily, and prints how often the head's likeliest tokens would have stood:
for the first, second and third token of a draft, drafted from the head's own states.
"""

import argparse
import ctypes
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext
from numpy.typing import NDArray

from specdec_cli.generation.prompts import conversation
from specdec_cli.llama.model import LlamaModel
from specdec_cli.settings import ModelSettings

PROMPTS = (
    "Write a short story about a lighthouse.",
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the prime numbers below n, with a docstring.",
    "List ten things to pack for a week of camping.",
)

Floats = NDArray[np.float32]
_FLOAT_P = ctypes.POINTER(ctypes.c_float)


def extension(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A function of llama-ext.h that the bindings leave out, by its C++ name on Linux and macOS."""
    function = getattr(llama_cpp.llama_cpp._lib, name)
    function.argtypes, function.restype = [ctypes.c_void_p, *arguments], result
    return function


set_layer_input = extension(
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb", None, ctypes.c_uint32, ctypes.c_bool
)
layer_input = extension("_Z30llama_get_embeddings_layer_inpP13llama_contextj", _FLOAT_P, ctypes.c_uint32)
target_layers = extension("_Z28llama_model_target_layer_idsPK11llama_model", ctypes.POINTER(ctypes.c_int32))
n_target_layers = extension("_Z30llama_model_target_layer_ids_nPK11llama_model", ctypes.c_uint32)


class HeadOnTarget:
    """Two contexts of one sequence each. Positions of the head: the state of token p with token p + 1, at p."""

    def __init__(self, target: LlamaModel, head: Path, n_ctx: int = 512) -> None:
        self._n_vocab = target.n_vocab
        self._d = llama_cpp.llama_model_n_embd(target.handle)
        self._model = llama_cpp.llama_model_load_from_file(os.fsencode(head), llama_cpp.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp does not load {head.name}.")
        self.layers = target_layers(self._model)[: n_target_layers(self._model)]
        self._target = _context(target.handle, n_ctx)
        for layer in self.layers:
            set_layer_input(self._target, layer, True)
        self._head = _context(self._model, n_ctx, self._target)
        llama_cpp_ext.llama_set_embeddings_nextn(self._head, True, True)

    def read(self, tokens: Sequence[int]) -> tuple[Floats, Floats]:
        """The target over a text from its beginning: logits [n, vocabulary], inputs of the layers [n, 3 d]."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._target), True)
        n = len(tokens)
        batch = llama_cpp.llama_batch_init(n, 0, 1)
        _fill(batch, range(n))
        for i, token in enumerate(tokens):
            batch.token[i] = token
        _check(llama_cpp.llama_decode(self._target, batch))
        llama_cpp.llama_batch_free(batch)
        rows = [_rows(layer_input(self._target, layer), n, self._d) for layer in self.layers]
        return _rows(llama_cpp.llama_get_logits(self._target), n, self._n_vocab), np.concatenate(rows, axis=1)

    def next_token(self, tokens: Sequence[int]) -> int:
        """The likeliest token after a text that begins with what was read last."""
        memory = llama_cpp.llama_get_memory(self._target)
        known = llama_cpp.llama_memory_seq_pos_max(memory, 0) + 1
        if known != len(tokens) - 1:
            return int(self.read(tokens)[0][-1].argmax())
        batch = llama_cpp.llama_batch_init(1, 0, 1)
        _fill(batch, range(known, known + 1))
        batch.token[0] = tokens[-1]
        _check(llama_cpp.llama_decode(self._target, batch))
        llama_cpp.llama_batch_free(batch)
        return int(_rows(llama_cpp.llama_get_logits(self._target), 1, self._n_vocab).argmax())

    def encode(self, features: Floats) -> Floats:
        """The head's own states for inputs of the layers [n, 3 d]: [n, d]."""
        n = len(features)
        batch = llama_cpp.llama_batch_init(n, features.shape[1], 1)
        # Positions play no part here, but llama.cpp wants them to go on from what its memory holds.
        known = llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(self._head), 0) + 1
        _fill(batch, range(known, known + n))
        np.ctypeslib.as_array(batch.embd, features.shape)[:] = features
        _check(llama_cpp.llama_encode(self._head, batch))
        llama_cpp.llama_batch_free(batch)
        return _rows(llama_cpp_ext.llama_get_embeddings_nextn(self._head), n, self._d)

    def step(self, tokens: Sequence[int], states: Floats, first: int) -> tuple[Floats, Floats]:
        """Tokens with states from position `first` on: logits [n, vocabulary] and next states [n, d].

        Whatever the head knew from `first` on is forgotten before.
        """
        n = len(tokens)
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._head), 0, first, -1)
        batch = llama_cpp.llama_batch_init(n, self._d, 1)
        ids = (llama_cpp.llama_token * n)(*tokens)
        batch.token = ctypes.cast(ids, ctypes.POINTER(llama_cpp.llama_token))
        _fill(batch, range(first, first + n))
        np.ctypeslib.as_array(batch.embd, (n, self._d))[:] = states
        _check(llama_cpp.llama_decode(self._head, batch))
        batch.token = None  # not llama.cpp's to free
        llama_cpp.llama_batch_free(batch)
        logits = _rows(llama_cpp.llama_get_logits(self._head), n, self._n_vocab)
        return logits, _rows(llama_cpp_ext.llama_get_embeddings_nextn(self._head), n, self._d)

    def close(self) -> None:
        llama_cpp.llama_free(self._head)
        llama_cpp.llama_free(self._target)
        llama_cpp.llama_model_free(self._model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _context(model: Any, n_ctx: int, other: Any = None) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max = n_ctx
    params.n_seq_max = 1
    if other is not None:
        params.ctx_other = other
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp makes no context for the model.")
    return context


def _fill(batch: Any, positions: range) -> None:
    batch.n_tokens = len(positions)
    for i, position in enumerate(positions):
        batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = position, 1, 0, 1


def _rows(pointer: Any, n: int, width: int) -> Floats:
    return np.ctypeslib.as_array(pointer, (n, width)).copy()


def _check(status: int) -> None:
    if status != 0:
        raise SystemExit(f"llama.cpp could not evaluate a batch: {status}.")


def agreement(pair: HeadOnTarget, tokens: Sequence[int], n_prompt: int, depth: int = 3) -> list[list[bool]]:
    """For each place of the answer: whether the head's first, second, ... choice is the text's next token.

    Each list ends with the first wrong choice, or after `depth` right ones.
    """
    _, features = pair.read(tokens)
    states = pair.encode(features)
    pair.step(tokens[1 : n_prompt - 1], states[: n_prompt - 2], 0)
    found = []
    for at in range(n_prompt - 2, len(tokens) - 1 - depth):
        stood: list[bool] = []
        token, state = tokens[at + 1], states[at]
        while len(stood) < depth and all(stood):
            logits, next_states = pair.step([token], state[None], at + len(stood))
            token, state = int(logits[0].argmax()), next_states[0]
            stood.append(token == tokens[at + 2 + len(stood)])
        found.append(stood)
    return found


def answer(pair: HeadOnTarget, model: LlamaModel, text: str, n: int) -> tuple[list[int], int]:
    """The prompt in the model's own format with a greedy answer of up to `n` tokens, and the prompt's length."""
    talk = conversation(model, system=None, thinking=None, now=datetime.now)
    prompt = talk.ask(text) if talk else model.tokenize(text, add_special=True, parse_special=False)
    tokens, ends = list(prompt), model.end_tokens
    while len(tokens) < len(prompt) + n and tokens[-1] not in ends:
        tokens.append(pair.next_token(tokens))
    return tokens, len(prompt)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("--prompt", action="append")
    parser.add_argument("-n", type=int, default=120)
    options = parser.parse_args()
    with LlamaModel(ModelSettings(options.target)) as target, HeadOnTarget(target, options.head, 768) as pair:
        for prompt in options.prompt or PROMPTS:
            tokens, n_prompt = answer(pair, target, prompt, options.n)
            found = agreement(pair, tokens, n_prompt)
            asked = [[stood[i] for stood in found if len(stood) > i] for i in range(3)]
            rates = ", ".join(f"{sum(a)}/{len(a)} = {sum(a) / max(len(a), 1):.2f}" for a in asked)
            print(f"{prompt[:50]!r}: {rates}; {1 + sum(map(sum, found)) / len(found):.2f} tokens a pass")


if __name__ == "__main__":
    main()
