"""Where specdec keeps its own files, by each system's custom."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

WORK_LOCK = ".lock"
"""Held by whoever works in a folder."""


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Files that can be made again. `SPECDEC_CACHE` overrides the system's custom."""
    return _folder(environ, "SPECDEC_CACHE", "XDG_CACHE_HOME", ".cache", "Library/Caches")


def config_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's own presets. `SPECDEC_CONFIG` overrides the system's custom."""
    return _folder(environ, "SPECDEC_CONFIG", "XDG_CONFIG_HOME", ".config", "Library/Application Support")


def draft_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where drafts are made: a folder for each piece of work, with WORK_LOCK in it."""
    return cache_folder(environ) / "drafts"


def write_whole(path: Path, text: str, *, new: bool = False, private: bool = False) -> None:
    """A small file that others may read at any moment: they see all of it, or none.

    With `new` it must not be there yet: FileExistsError. With `private` only its owner may read it. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    half.touch(0o600 if private else 0o666)
    try:
        half.write_text(text, encoding="utf-8", newline="\n")
        if new:
            os.link(half, path)
        else:
            os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)


@contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """A large file that is there only when all of it is written, also on the disk. Raises OSError."""
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        with half.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)


def _folder(environ: Mapping[str, str], own: str, xdg: str, unix: str, mac: str) -> Path:
    if environ.get(own):
        return Path(environ[own]).expanduser()
    if environ.get(xdg):
        return Path(environ[xdg]) / "specdec"
    if sys.platform == "win32":
        return Path(environ.get("LOCALAPPDATA", "~")).expanduser() / "specdec"
    return Path.home() / (mac if sys.platform == "darwin" else unix) / "specdec"
