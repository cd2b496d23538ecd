"""Adapters as they are named on the command line: LoRA `FILE[:SCALE]`, control vectors `FILE[:SCALE][:FROM-TO]`."""

import math
import re
from collections.abc import Iterable
from pathlib import Path

from specdec_cli.errors import ModelError, UsageError
from specdec_cli.models.gguf import read_gguf
from specdec_cli.presets.derive import file_sha256
from specdec_cli.settings import Adapter, ControlVector

_LARGEST_SCALE = 1000.0


def named_adapters(option: str, texts: Iterable[str]) -> tuple[Adapter, ...]:
    """The adapters given with `option`. Raises UsageError for a wrong scale, ModelError for a file that is none."""
    return tuple(_adapter(option, text) for text in texts)


def named_vectors(option: str, texts: Iterable[str]) -> tuple[ControlVector, ...]:
    """The control vectors given with `option`. Raises UsageError for a wrong scale or range, ModelError for a file that
    cannot be read."""
    return tuple(_vector(option, text) for text in texts)


def file_of(text: str) -> Path:
    """The file of an adapter as it was given."""
    return Path(_parts(_without_range(text)[0])[0]).expanduser()


def _vector(option: str, text: str) -> ControlVector:
    rest, first, last = _without_range(text)
    if last is not None and not 1 <= first <= last:
        raise UsageError(f"Invalid layers in {option}: {text!r}.", hint="Give FROM-TO, counted from 1, such as 10-20.")
    path = file_of(text)
    read_gguf(path)
    return ControlVector(str(path.absolute()), file_sha256(path), _scale(option, rest), first, last)


def _without_range(text: str) -> tuple[str, int, int | None]:
    """The text before the layers, and these."""
    found = re.fullmatch(r"(.+):(\d{1,6})-(\d{1,6})", text, re.DOTALL)
    return (found[1], int(found[2]), int(found[3])) if found else (text, 1, None)


def _scale(option: str, text: str) -> float:
    scale = _parts(text)[1]
    if not math.isfinite(scale) or abs(scale) > _LARGEST_SCALE:
        raise UsageError(
            f"Invalid scale in {option}: {text!r}.",
            hint=f"Give a number between -{_LARGEST_SCALE:g} and {_LARGEST_SCALE:g}.",
        )
    return scale


def _adapter(option: str, text: str) -> Adapter:
    scale, path = _scale(option, text), Path(_parts(text)[0]).expanduser()
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
