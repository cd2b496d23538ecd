"""Downloads one file into the Hub's cache: resumable, verified, under a lock.

A file appears in the cache only when its size, its hash and its structure are right. Until then it lies under
a name of its own that survives a crash, so the next run goes on from there.
"""

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from specdec_cli.errors import DamagedFile, DiskFull, HeldByAnother, HubError, HubFailed, ModelError, NoNetwork
from specdec_cli.hub.cache import RepoStore
from specdec_cli.hub.client import Hub, RemoteFile, lock
from specdec_cli.models.gguf import read_gguf

T = TypeVar("T")

RETRIES = 5
"""In a row without getting on."""
LEAST_PROGRESS = 64 << 10
"""Bytes between two failures that count as getting on: a line that stalls after each kilobyte does not."""
MAX_WAIT_SECONDS = 300.0
PIECE_BYTES = 8 << 30
"""Most bytes of one request: the Hub gives no whole files above 50 GB, and signed addresses expire."""
LOCK_NOTICE_SECONDS = 5.0
LOCK_STALE_SECONDS = 600.0
"""How long a lock may be held while the file under it does not grow. A process that waits as the Hub told it to, or
hashes what it has of a large file, stands still for less."""
CHUNK_BYTES = 1 << 20
"""Read at a time for a hash."""
SPARE_BYTES = 64 << 20
"""Left free on the disk."""


class Progress(Protocol):
    """What watches a download. Sizes are bytes."""

    def expect(self, n_bytes: int) -> None:
        """So many bytes are to come, of all files together."""
        ...

    def begin(self, name: str, size: int, have: int) -> None:
        """A file of `size` begins, `have` of it being there already."""
        ...

    def advance(self, n: int) -> None:
        """`n` more bytes are there; fewer than 0 if some had to be given up."""
        ...

    def note(self, text: str) -> None:
        """Something the user may want to know."""
        ...


def with_retries(
    action: Callable[[], T],
    *,
    sleep: Callable[[float], None],
    note: Callable[[str], None],
    moved: Callable[[], int] = lambda: 0,
    unreachable: int = RETRIES,
) -> T:
    """Try until it works. Gives up after RETRIES tries in a row during which `moved` hardly grew.

    A Hub that cannot be reached at all is tried again only `unreachable` times. Waits 1, 2, 4, 8 ... seconds, or as
    long as the server asks. Raises the last HubError.
    """
    failures, before = 0, moved()
    while True:
        try:
            return action()
        except HubError as error:
            if moved() >= before + LEAST_PROGRESS:
                failures, before = 0, moved()
            failures += 1
            patience = unreachable if isinstance(error, NoNetwork) else RETRIES
            wait = error.retry_after if error.retry_after is not None else min(2.0 ** (failures - 1), 8.0)
            if not error.is_transient or failures > patience or wait > MAX_WAIT_SECONDS:
                raise
            note(f"{error} Retrying in {wait:.0f} s.")
            sleep(wait)


class Downloader:
    """Fetches files of a repository at one commit into the cache at `root`."""

    def __init__(
        self,
        hub: Hub,
        root: Path,
        progress: Progress,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub = hub
        self._root = root
        self._progress = progress
        self._sleep = sleep
        self._clock = clock

    def missing_bytes(self, repo: str, commit: str, files: Sequence[RemoteFile]) -> int:
        """How much of these files is still to come."""
        store = RepoStore(self._root, repo)
        return sum(file.size - self._have(store, commit, file) for file in files)

    def check_disk(self, n_bytes: int) -> None:
        """Raises DiskFull if the cache's disk has no room for `n_bytes` more."""
        if not n_bytes:
            return
        folder = next(f for f in (self._root, *self._root.parents) if f.exists())
        free = shutil.disk_usage(folder).free
        if n_bytes + SPARE_BYTES > free:
            raise DiskFull(
                f"The download needs {_size(n_bytes)}, plus {_size(SPARE_BYTES)} kept free, but the disk of "
                f"{self._root} has {_size(free)} free.",
                hint="Free some space, or set HF_HUB_CACHE to a folder on another disk.",
            )

    def fetch(self, repo: str, commit: str, file: RemoteFile) -> Path:
        """The file's place in the cache, after fetching what is missing of it.

        Raises HubError, DiskFull, DamagedFile, HeldByAnother.
        """
        store = RepoStore(self._root, repo)
        place = store.snapshot(commit, file.path)
        try:
            if self._is_right(store, place, file):  # nothing needs to be written, so the disk may be read-only
                self._begin(file, file.size)
                return place
            store.blob(file.etag).parent.mkdir(parents=True, exist_ok=True)
            with self._locked(store, file):
                if self._is_right(store, place, file):  # another process has fetched it meanwhile
                    self._begin(file, file.size)
                    return place
                if self._is_right(store, store.blob(file.etag), file):
                    self._begin(file, file.size)
                else:
                    self._complete(store, commit, file)
                return store.link(commit, file.path, file.etag)
        except OSError as error:
            raise _disk_error(error, store.folder) from error

    def remember(self, repo: str, revision: str, commit: str) -> None:
        """Note what a branch or tag meant, so that it can be found without a network. Raises DiskFull."""
        store = RepoStore(self._root, repo)
        try:
            store.remember(revision, commit)
        except OSError as error:
            raise _disk_error(error, store.folder) from error

    def is_sound(self, store: RepoStore, place: Path, name: str, etag: str) -> bool:
        """Whether a file that is here is the one of this hash. It is hashed only if no note says that it was.

        Wrong bytes are put aside, and the user is told.
        """
        if store.is_verified(place, etag):
            return True
        self._progress.note(f"Checking the hash of {name} once.")
        if check_file(place, etag) is None:
            store.mark_verified(place, etag)
            return True
        self._progress.note(f"{name} is damaged. It was moved to {store.set_aside(place)} and is downloaded again.")
        return False

    def _is_right(self, store: RepoStore, place: Path, file: RemoteFile) -> bool:
        return _is_whole(place, file) and self.is_sound(store, place, Path(file.path).name, file.etag)

    def _begin(self, file: RemoteFile, have: int) -> None:
        self._progress.begin(Path(file.path).name, file.size, have)

    def _have(self, store: RepoStore, commit: str, file: RemoteFile) -> int:
        if _is_whole(store.snapshot(commit, file.path), file) or _is_whole(store.blob(file.etag), file):
            return file.size
        part = store.incomplete(file.etag)
        return min(part.stat().st_size, file.size) if part.is_file() and not part.is_symlink() else 0

    def _complete(self, store: RepoStore, commit: str, file: RemoteFile) -> None:
        part = store.incomplete(file.etag)
        remove_irregular(part)
        with part.open("ab+") as out:
            if out.tell() > file.size:
                out.truncate(0)
                out.seek(0)
            self._begin(file, out.tell())
            hasher = _hasher(file.etag, file.size)
            _hash_all(out, hasher)

            def more() -> None:
                nonlocal hasher
                while out.tell() < file.size:
                    hasher = self._piece(store.repo, commit, file, out, hasher)

            with_retries(more, moved=out.tell, sleep=self._sleep, note=self._progress.note)
            out.flush()
            os.fsync(out.fileno())
        if hasher.hexdigest() != file.etag:
            raise _quarantined(part, store.damaged(file.etag), file, "its hash differs from the Hub's")
        if file.path.lower().endswith(".gguf"):
            try:
                read_gguf(part)
            except ModelError as error:
                reason = str(error).replace(part.name, "it").rstrip(".")
                raise _quarantined(part, store.damaged(file.etag), file, reason) from error
        os.replace(part, store.blob(file.etag))
        store.mark_verified(store.blob(file.etag), file.etag)

    def _piece(
        self, repo: str, commit: str, file: RemoteFile, out: BinaryIO, hasher: "hashlib._Hash"
    ) -> "hashlib._Hash":
        """One request's bytes, written and hashed. Returns the hash, begun anew if the server began anew."""
        place = self._hub.place(repo, commit, file.path)
        if (place.etag, place.size) != (file.etag, file.size):
            raise HubFailed(f"{file.path} changed on the Hub during the download.", hint="Pull again.")
        start = out.tell()
        stop = min(start + PIECE_BYTES, file.size)
        with self._hub.pieces(place, start, stop) as (begins, chunks):
            if begins != start:
                self._progress.advance(-start)
                out.truncate(0)
                out.seek(0)
                hasher = _hasher(file.etag, file.size)
            for chunk in chunks:
                if out.tell() + len(chunk) > file.size:
                    raise HubFailed(f"The server sent more bytes than {file.path} has.", hint="Try again.")
                out.write(chunk)
                hasher.update(chunk)
                self._progress.advance(len(chunk))
        if out.tell() < stop:
            raise HubFailed(f"The download of {file.path} ended early.", hint="Pull again to resume.")
        return hasher

    @contextmanager
    def _locked(self, store: RepoStore, file: RemoteFile) -> Iterator[None]:
        path = store.lock(file.etag)
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._acquire(path, stack, store, file)
            yield

    def _acquire(self, path: Path, stack: ExitStack, store: RepoStore, file: RemoteFile) -> None:
        """Wait for another process that fetches the same file, as long as it gets on."""
        seen, since = -1, self._clock()
        while True:
            try:
                stack.enter_context(lock(path, timeout=LOCK_NOTICE_SECONDS))
                return
            except TimeoutError:
                size, now = self._size_of_downloads(store, file), self._clock()
            if size != seen:
                seen, since = size, now
            if now - since > LOCK_STALE_SECONDS:
                raise HeldByAnother(
                    f"Another process has held {path} for ten minutes without downloading anything.",
                    hint="Stop it, then pull again to resume.",
                )
            self._progress.note(f"Waiting for another download of {file.path} (lock {path}).")

    def _size_of_downloads(self, store: RepoStore, file: RemoteFile) -> int:
        """Of every program that uses this cache: their names for unfinished files all begin with the hash."""
        return sum(part.stat().st_size for part in store.blob(file.etag).parent.glob(f"{file.etag}*") if part.is_file())


def remove_irregular(path: Path) -> None:
    """Take away a pipe, a device or a link where a file of ours is to grow: none of them keeps what is written."""
    if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
        path.unlink()


def check_file(path: Path, etag: str | None) -> str | None:
    """What is wrong with a file, or None: its hash where it is known, else its structure. Raises OSError."""
    if etag is None:
        try:
            read_gguf(path)
        except ModelError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            return str(error).rstrip(".")
        return None
    with path.open("rb") as file:
        hasher = _hasher(etag, path.stat().st_size)
        _hash_all(file, hasher)
    return None if hasher.hexdigest() == etag else "its hash differs from the expected one"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"


def _is_whole(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size


def _hasher(etag: str, size: int) -> "hashlib._Hash":
    """Large files are known by their sha256, small ones by git's hash of a blob."""
    return hashlib.sha256() if len(etag) == 64 else hashlib.sha1(b"blob %d\0" % size)


def _hash_all(file: BinaryIO, hasher: "hashlib._Hash") -> None:
    """Hash what is there; the file is left at its end."""
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        hasher.update(chunk)


def _quarantined(part: Path, damaged: Path, file: RemoteFile, reason: str) -> DamagedFile:
    os.replace(part, damaged)
    return DamagedFile(
        f"{file.path} arrived damaged: {reason}. It was moved to {damaged} and is not used.",
        hint="Pull again. If that does not help, report it to the repository's owner.",
    )


def _disk_error(error: OSError, folder: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"The disk of {folder} is full; the bytes downloaded so far are kept.",
            hint="Free some space and pull again to resume, or set HF_HUB_CACHE to a folder on another disk.",
        )
    if error.errno is None:
        return error
    return DiskFull(
        f"Cannot write to {error.filename or folder}: {error.strerror}.",
        hint="Check what is there, or set HF_HUB_CACHE to another folder.",
    )
