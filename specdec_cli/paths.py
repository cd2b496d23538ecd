"""Where specdec keeps its own files, by each system's custom."""

import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

WORK_LOCK = ".lock"
"""Held by whoever works in a folder."""
_LONGEST_STEM = 40
"""Characters of a name that its temporary file repeats: file systems end names at 255 bytes."""
_NOWHERE = Path(os.devnull)
"""In place of the home folder of a user who has none: nothing lies below it, and nothing can be written there."""


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Files that can be made again. `SPECDEC_CACHE` overrides the system's custom."""
    return _folder(environ, "SPECDEC_CACHE", "XDG_CACHE_HOME", ".cache", "Library/Caches")


def config_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's own presets. `SPECDEC_CONFIG` overrides the system's custom."""
    return _folder(environ, "SPECDEC_CONFIG", "XDG_CONFIG_HOME", ".config", "Library/Application Support")


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """What a program remembers of its use. `SPECDEC_STATE` overrides the system's custom."""
    return _folder(environ, "SPECDEC_STATE", "XDG_STATE_HOME", ".local/state", "Library/Application Support")


def draft_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where drafts are made: a folder for each piece of work, with WORK_LOCK in it."""
    return cache_folder(environ) / "drafts"


def write_whole(path: Path, text: str, *, new: bool = False, private: bool = False) -> None:
    """Write a small file that others may read at any moment: they see all of it, or none.

    With `new` it must not exist yet: FileExistsError. With `private` only its owner may read it. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(path, private) as (file, unfinished):
        file.write(text.encode("utf-8"))
        file.close()
        if new:
            os.link(unfinished, path)
        else:
            os.replace(unfinished, path)


@contextmanager
def appearing(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A large file that is there only when all of it is written and on the disk; `private` as above. Raises OSError."""
    with _temporary(path, private) as (file, unfinished):
        yield file
        file.flush()
        os.fsync(file.fileno())
        os.replace(unfinished, path)


def create_beside(path: Path, *, private: bool = False) -> tuple[int, Path]:
    """A new, empty file in the folder of `path`, to be renamed to it: its descriptor and its name. Raises OSError.

    Its name cannot be guessed, and what lies there already, a planted link included, is never opened.
    """
    unfinished = path.with_name(f".{path.name[:_LONGEST_STEM]}.{secrets.token_hex(8)}.half")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    return os.open(unfinished, flags | getattr(os, "O_BINARY", 0), 0o600 if private else 0o666), unfinished


@contextmanager
def _temporary(path: Path, private: bool) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file beside `path`; deleted at the end, unless it was renamed."""
    handle, unfinished = create_beside(path, private=private)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, unfinished
    finally:
        unfinished.unlink(missing_ok=True)


def _folder(environ: Mapping[str, str], own: str, xdg: str, unix: str, mac: str) -> Path:
    if environ.get(own):
        return _expanded(environ[own])
    if environ.get(xdg):
        return Path(environ[xdg]) / "specdec"
    if sys.platform == "win32":
        return _expanded(environ.get("LOCALAPPDATA", "~")) / "specdec"
    return _expanded("~") / (mac if sys.platform == "darwin" else unix) / "specdec"


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no HOME, and no entry in the list of users, as in many containers
        return _NOWHERE
