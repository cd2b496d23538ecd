"""Files in the Hub's cache on this disk: where they lie, which are whole, and how they are taken out again.

The layout is huggingface_hub's, so that every tool shares the files: `models--OWNER--NAME/` holds `blobs/ETAG`
(the bytes), `snapshots/COMMIT/PATH` (links to them) and `refs/BRANCH` (a commit). Ours beside it are
`blobs/ETAG.specdec.incomplete` (so far fetched) and `blobs/ETAG.specdec.damaged` (never used).
"""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.gguf import parts_of
from specdec_cli.presets import HubFile


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

    def lock(self, etag: str) -> Path:
        return self.root / ".locks" / self.folder.name / f"{etag}.lock"

    def snapshot(self, commit: str, path: str) -> Path:
        return self.folder / "snapshots" / commit / path

    def commit_of(self, revision: str) -> str | None:
        """The commit that a branch or tag meant when it was last looked up; a commit is itself."""
        if re.fullmatch(r"[0-9a-f]{40}", revision):
            return revision
        try:
            return (self.folder / "refs" / revision).read_text(encoding="ascii").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def remember(self, revision: str, commit: str) -> None:
        """Note what a branch or tag means now."""
        if revision != commit:
            _write(self.folder / "refs" / revision, commit)

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


def cached(root: Path, file: HubFile) -> tuple[Path, ...] | None:
    """The parts of a model in the cache, first part first; None unless all are there. Asks no network."""
    store = RepoStore(root, file.repo)
    commit = store.commit_of(file.revision)
    if commit is None:
        return None
    places = tuple(store.snapshot(commit, part) for part in parts_of(file.file))
    return places if all(place.is_file() for place in places) else None


def gguf_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Every whole GGUF in the cache, whoever fetched it: the repository, and the path in its snapshot."""
    for folder in sorted(root.glob("models--*--*")):
        for place in sorted((folder / "snapshots").rglob("*.gguf")):
            if place.is_file():
                yield repo_of(place), place


def repo_of(place: Path) -> str:
    """The repository that a file of the cache came from."""
    folder = next(parent.name for parent in place.parents if parent.name.startswith("models--"))
    return folder.removeprefix("models--").replace("--", "/", 1)


def leftovers(root: Path) -> Iterator[Path]:
    """What downloads that were broken off, or came out damaged, have left."""
    yield from sorted(root.glob("models--*--*/blobs/*.specdec.incomplete"))
    yield from sorted(root.glob("models--*--*/blobs/*.specdec.damaged"))


def disk_bytes(places: Sequence[Path]) -> int:
    """Bytes on the disk, files that several places link to counted once."""
    return sum(real.stat().st_size for real in {place.resolve() for place in places})


def remove(place: Path) -> int:
    """Take one file of a snapshot away, its blob with it unless another snapshot shows it. Returns the bytes freed."""
    snapshots = next(parent for parent in place.parents if parent.name == "snapshots")
    blob = place.resolve()
    size = blob.stat().st_size if blob.is_file() else 0
    place.unlink()
    if blob != place.absolute() and any(
        other.resolve() == blob for other in snapshots.rglob("*") if other.is_symlink()
    ):
        size = 0
    else:
        blob.unlink(missing_ok=True)
    _remove_if_empty(place.parent, snapshots.parent)
    return size


def _remove_if_empty(folder: Path, top: Path) -> None:
    """Folders that hold nothing any more; with the last blob goes the repository's."""
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
    blobs = top / "blobs"
    if not any(blobs.iterdir() if blobs.is_dir() else ()) and not any((top / "snapshots").glob("*")):
        shutil.rmtree(top)


def _write(path: Path, text: str) -> None:
    """A small file that others may read at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}")
    half.write_text(text, encoding="ascii")
    os.replace(half, path)
