"""What went well once and need not be tried again: an empty file in the cache folder for each."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from specdec_cli.paths import cache_folder


def is_marked(kind: str, key: str) -> bool:
    """Whether `key` was marked before, among the marks of this kind."""
    try:
        return _mark(kind, key).is_file()
    except OSError:  # a folder that cannot be read
        return False


def mark(kind: str, keys: Sequence[str], *, most: int) -> None:
    """Mark these, and forget the oldest beyond `most`. A disk that takes no more is no reason to fail: the next run
    tries again."""
    for key in keys:
        path = _mark(kind, key)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            for oldest in sorted(path.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)[:-most]:
                oldest.unlink(missing_ok=True)


def _mark(kind: str, key: str) -> Path:
    return cache_folder() / kind / key
