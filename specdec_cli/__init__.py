"""Speculative decoding for GGUF models: faster text, the same text.

The Python interface is documented in docs/python.md. Its names are loaded when they are first used, so that importing
this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_cli.decode.coupled import Rule
    from specdec_cli.decode.stats import RunStats
    from specdec_cli.decode.types import Draft, Drafter, Target
    from specdec_cli.drafters.ngram.drafter import NgramDrafter
    from specdec_cli.errors import SpecdecError
    from specdec_cli.library.opening import open
    from specdec_cli.library.pair import Answer, Chunk, Pair
    from specdec_cli.llama.draft_model import LlamaDraft

__version__ = "0.1.0"

_PLACES = {
    "Answer": "library.pair",
    "Chunk": "library.pair",
    "Draft": "decode.types",
    "Drafter": "decode.types",
    "LlamaDraft": "llama.draft_model",
    "NgramDrafter": "drafters.ngram.drafter",
    "Pair": "library.pair",
    "Rule": "decode.coupled",
    "RunStats": "decode.stats",
    "SpecdecError": "errors",
    "Target": "decode.types",
    "open": "library.opening",
}

__all__ = [
    "Answer",
    "Chunk",
    "Draft",
    "Drafter",
    "LlamaDraft",
    "NgramDrafter",
    "Pair",
    "Rule",
    "RunStats",
    "SpecdecError",
    "Target",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
