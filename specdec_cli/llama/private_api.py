"""Functions that libllama exports as C++ and no binding offers: hidden states of single layers, and of the last one."""

import ctypes
from collections.abc import Callable
from typing import Any

import llama_cpp

from specdec_cli.errors import ModelError

_CONTEXT = llama_cpp.llama_context_p_ctypes
_FUNCTIONS: dict[str, tuple[str, str, list[Any], Any]] = {
    "llama_set_embeddings_layer_inp": (
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
        [_CONTEXT, ctypes.c_uint32, ctypes.c_bool],
        None,
    ),
    "llama_get_embeddings_layer_inp": (
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
        [_CONTEXT, ctypes.c_uint32],
        ctypes.c_void_p,
    ),
    "llama_set_embeddings_nextn": (
        "_Z26llama_set_embeddings_nextnP13llama_contextbb",
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
        [_CONTEXT, ctypes.c_bool, ctypes.c_bool],
        None,
    ),
    "llama_get_embeddings_nextn": (
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
        [_CONTEXT],
        ctypes.c_void_p,
    ),
}
"""Names as GCC and Clang have them, as MSVC has them, arguments, result (llama-ext.h)."""


def _function(name: str) -> Callable[..., Any]:
    gnu, msvc, arguments, result = _FUNCTIONS[name]
    for symbol in (name, gnu, msvc):
        function = getattr(llama_cpp.llama_cpp._lib, symbol, None)
        if function is not None:
            function.argtypes, function.restype = arguments, result
            return function  # type: ignore[no-any-return]
    raise ModelError(
        f"This build of llama.cpp does not export {name}, which trained heads need.",
        hint="Install another llama-cpp-python, or draft with an ordinary model or --draft ngram.",
    )


def capture_layer(context: Any, layer: int) -> None:
    """Keep the input of `layer` (its number: the output of the last) for every token of coming passes.

    The process ends if the architecture's graph does not tell it, or there is no such layer: check before.
    """
    _function("llama_set_embeddings_layer_inp")(context, layer, True)


def capture_last(context: Any, *, only_wanted: bool) -> None:
    """Keep the last hidden state of every token, or only of those whose logits are wanted."""
    _function("llama_set_embeddings_nextn")(context, True, only_wanted)


def layer_address(context: Any, layer: int) -> int:
    """Where the last pass left the input of `layer`, float32 [n_tokens, n_embd], until the next one."""
    return int(_function("llama_get_embeddings_layer_inp")(context, layer))


def last_address(context: Any) -> int:
    """The same of the last hidden state."""
    return int(_function("llama_get_embeddings_nextn")(context) or 0)
