"""The local Hub cache: where files are, which are complete, and how they are deleted.

The layout is huggingface_hub's, so that every tool shares the files: `models--OWNER--NAME/` holds `blobs/ETAG`
(the bytes), `snapshots/COMMIT/PATH` (links to them) and `refs/BRANCH` (a commit). Ours beside it are
`blobs/ETAG.specdec.incomplete` (so far fetched), `blobs/ETAG.specdec.damaged` (never used) and
`blobs/ETAG.specdec.verified` (the size and time of a file whose hash was right, so that it is hashed only once).
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.models.gguf import parts_of
from specdec_cli.paths import write_whole
from specdec_cli.presets.schema import HubFile
from specdec_cli.untrusted import is_commit, is_etag

_SMALL = 256
"""Characters of the longest small file."""


@dataclass(frozen=True, slots=True)
class RepoStore:
    """One repository's part of the cache at `root`. Nothing is made until something is written."""

    root: Path
    repo: str

    @property
    def folder(self) -> Path:
        return self.root / f"models--{self.repo.replace('/', '--')}"

    def blob(self, etag: str) -> Path:
        return self.folder / "blobs" / etag

    def incomplete(self, etag: str) -> Path:
        return self.folder / "blobs" / f"{etag}.specdec.incomplete"

    def damaged(self, etag: str) -> Path:
        return self.folder / "blobs" / f"{etag}.specdec.damaged"

    def verified(self, etag: str) -> Path:
        return self.folder / "blobs" / f"{etag}.specdec.verified"

    def is_verified(self, place: Path, etag: str) -> bool:
        """Whether this file, as it is now, once had the right hash."""
        return read_small(self.verified(etag)) == _state_of(place)

    def mark_verified(self, place: Path, etag: str) -> None:
        """Note that the file has the right hash. Where nothing can be written, it is hashed again the next time."""
        with suppress(OSError):
            write_whole(self.verified(etag), _state_of(place))

    def lock(self, etag: str) -> Path:
        return self.root / ".locks" / self.folder.name / f"{etag}.lock"

    def snapshot(self, commit: str, path: str) -> Path:
        return self.folder / "snapshots" / commit / path

    def own_blob(self, place: Path) -> Path | None:
        """The blob that a place in a snapshot links to; None for a file of its own, and for links to elsewhere.

        Only one step: huggingface_hub makes a blob itself a link where several repositories share its bytes.
        """
        if not place.is_symlink():
            return None
        target = Path(os.path.normpath(place.parent / place.readlink()))
        return target if target.parent == self.folder / "blobs" else None

    def etag_of(self, place: Path) -> str | None:
        """The hash under which the bytes of a place were fetched, where it is known."""
        blob = self.own_blob(place)
        return blob.name if blob is not None and is_etag(blob.name) else None

    def set_aside(self, place: Path) -> Path:
        """Take a damaged file out of the snapshot, and its bytes with it. Returns where they lie now."""
        blob = self.own_blob(place)
        aside = self.damaged(self.etag_of(place) or place.name)
        self.verified(self.etag_of(place) or place.name).unlink(missing_ok=True)
        aside.parent.mkdir(parents=True, exist_ok=True)
        source = blob if blob is not None else place
        if source.exists() and not source.is_symlink():
            os.replace(source, aside)
        else:  # bytes that others share are theirs: only our link goes
            source.unlink(missing_ok=True)
        place.unlink(missing_ok=True)
        return aside

    def commit_of(self, revision: str) -> str | None:
        """The commit that a branch or tag meant when it was last looked up; a commit is itself."""
        if is_commit(revision):
            return revision
        commit = (read_small(self.folder / "refs" / revision) or "").strip()
        return commit if is_commit(commit) else None

    def remember(self, revision: str, commit: str) -> None:
        """Note what a branch or tag means now."""
        if self.commit_of(revision) != commit:
            write_whole(self.folder / "refs" / revision, commit)

    def link(self, commit: str, path: str, etag: str) -> Path:
        """Let the snapshot show a blob that is there; where links are not allowed, the blob moves."""
        place = self.snapshot(commit, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        blob = self.blob(etag)
        try:
            place.symlink_to(os.path.relpath(blob, place.parent))
        except OSError:  # Windows without the right to make links
            os.replace(blob, place)
        return place


def read_small(path: Path) -> str | None:
    """What one of the small files of a cache says; None for what is none, such as a pipe."""
    try:
        if not path.is_file():
            return None
        with path.open(encoding="ascii") as file:
            return file.read(_SMALL)
    except (OSError, ValueError):  # UnicodeDecodeError is one
        return None


def _state_of(place: Path) -> str:
    """What changes when a file is written again. Raises OSError."""
    found = place.stat()
    return f"{found.st_size} {found.st_mtime_ns}"


def cached(root: Path, file: HubFile) -> tuple[Path, ...] | None:
    """The parts of a model in the cache, first part first; None unless all are there. Asks no network."""
    store = RepoStore(root, file.repo)
    commit = store.commit_of(file.revision)
    if commit is None:
        return None
    places = tuple(store.snapshot(commit, part) for part in parts_of(file.file))
    return places if all(place.is_file() for place in places) else None


def gguf_files(root: Path) -> Iterator[tuple[RepoStore, Path]]:
    """Every whole GGUF in the cache, whoever fetched it: its repository, and its place in a snapshot."""
    for folder in sorted(root.glob("models--*")):
        store = RepoStore(root, folder.name.removeprefix("models--").replace("--", "/", 1))
        for place in sorted((folder / "snapshots").rglob("*")):
            if place.suffix.lower() == ".gguf" and place.is_file():
                yield store, place


def leftovers(root: Path) -> Iterator[Path]:
    """What downloads that were broken off, or came out damaged, have left."""
    yield from sorted(root.glob("models--*--*/blobs/*.specdec.incomplete"))
    yield from sorted(root.glob("models--*--*/blobs/*.specdec.damaged"))


def disk_bytes(places: Sequence[Path]) -> int:
    """Bytes on the disk, files that several places link to counted once."""
    return sum(real.stat().st_size for real in {place.resolve() for place in places})


def remove(store: RepoStore, place: Path) -> int:
    """Take a file out of its snapshot, and its blob with it unless another snapshot shows it. Returns the bytes freed.

    Nothing outside of the repository's folder is touched: bytes that it shares with others, or that somebody linked
    into it, stay where they are.
    """
    blob = store.own_blob(place)
    size = 0 if place.is_symlink() else place.stat().st_size
    place.unlink()
    if blob is not None and not any(store.own_blob(other) == blob for other in (store.folder / "snapshots").rglob("*")):
        size = 0 if blob.is_symlink() or not blob.exists() else blob.stat().st_size
        blob.unlink(missing_ok=True)
        store.verified(blob.name).unlink(missing_ok=True)
    _remove_if_empty(place.parent, store)
    return size


def _remove_if_empty(folder: Path, store: RepoStore) -> None:
    """Folders that hold nothing any more; with the last file goes the repository's."""
    snapshots, blobs = store.folder / "snapshots", store.folder / "blobs"
    while folder != snapshots and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
    if not any(snapshots.iterdir()) and not any(blobs.iterdir() if blobs.is_dir() else ()):
        shutil.rmtree(store.folder)
