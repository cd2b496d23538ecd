"""LoRA adapters as they are named on the command line: `FILE[:SCALE]`."""

import math
from collections.abc import Iterable
from pathlib import Path

from specdec_cli.errors import ModelError, UsageError
from specdec_cli.models.gguf import read_gguf
from specdec_cli.presets.derive import file_sha256
from specdec_cli.settings import Adapter

_LARGEST_SCALE = 1000.0


def named_adapters(option: str, texts: Iterable[str]) -> tuple[Adapter, ...]:
    """The adapters given with `option`. Raises UsageError for a wrong scale, ModelError for a file that is none."""
    return tuple(_adapter(option, text) for text in texts)


def file_of(text: str) -> Path:
    """The file of an adapter as it was given."""
    return Path(_parts(text)[0]).expanduser()


def _adapter(option: str, text: str) -> Adapter:
    scale = _parts(text)[1]
    if not math.isfinite(scale) or abs(scale) > _LARGEST_SCALE:
        raise UsageError(
            f"Invalid scale in {option}: {text!r}.",
            hint=f"Give a number between -{_LARGEST_SCALE:g} and {_LARGEST_SCALE:g}.",
        )
    path = file_of(text)
    metadata = read_gguf(path).metadata
    if metadata.get("general.type") != "adapter" or metadata.get("adapter.type") != "lora":
        raise ModelError(
            f"{path.name} is no LoRA adapter.", hint="Convert the adapter with llama.cpp's convert_lora_to_gguf.py."
        )
    return Adapter(str(path.absolute()), file_sha256(path), scale)


def _parts(text: str) -> tuple[str, float]:
    """File and scale. A colon that no number follows belongs to the name, as in C:\\adapters."""
    file, colon, scale = text.rpartition(":")
    try:
        return (file, float(scale)) if colon and file else (text, 1.0)
    except ValueError:
        return text, 1.0
