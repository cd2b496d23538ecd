"""Which presets are on this machine, the disk space they use, and deleting them."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.errors import NotHere
from specdec_cli.hub.cache import RepoStore, cached, disk_bytes, gguf_files, leftovers, remove
from specdec_cli.hub.client import lock
from specdec_cli.hub.download import check_file
from specdec_cli.paths import WORK_LOCK, draft_folder
from specdec_cli.presets.derive import derived_path, record_of, recorded_sha256
from specdec_cli.presets.resolve import derived_folder
from specdec_cli.presets.schema import Preset, hub_files

_AT_ONCE = 0.1
"""Seconds: whether somebody holds a lock, not when they will let go."""
_ABANDONED_SECONDS = 600.0
"""A model that is being made grows all the time. One that has not changed for so long was left by a killed process."""


_MADE_HERE = "derived"
"""In place of a repository's owner, for models that were made on this machine."""


@dataclass(frozen=True, slots=True)
class Stock:
    """A preset's files, from the Hub or made here: those that are here, and how many models of it are missing.

    `sha256` has the hash of each place that the preset, or the note of its making, knows one for.
    """

    preset: Preset
    places: tuple[Path, ...]
    n_missing: int
    sha256: Mapping[Path, str]

    @property
    def is_here(self) -> bool:
        return self.n_missing == 0


@dataclass(frozen=True, slots=True)
class Inventory:
    """All of it. `others` are models that no preset names, with their repository, or as derived/NAME; `leftovers` are
    unfinished or damaged files."""

    pairs: tuple[Stock, ...]
    others: tuple[tuple[str, Path], ...]
    leftovers: tuple[Path, ...]

    @property
    def total_bytes(self) -> int:
        """On the disk; what several pairs share counts once."""
        places = [place for stock in self.pairs for place in stock.places] + [place for _, place in self.others]
        return disk_bytes([*places, *self.leftovers])


def stock_of(preset: Preset, root: Path) -> Stock:
    """What is here of one preset."""
    found = {file: cached(root, file) for file in hub_files(preset)}
    places = [place for parts in found.values() if parts is not None for place in parts]
    known = {parts[0]: file.sha256 for file, parts in found.items() if parts is not None and file.sha256 is not None}
    recipes = [source.derive for source in (preset.target, preset.draft) if source is not None and source.derive]
    made = dict.fromkeys(derived_path(recipe, derived_folder()) for recipe in recipes)
    here = [place for place in made if place.is_file()]
    known |= {place: sha256 for place in here if (sha256 := recorded_sha256(place)) is not None}
    n_missing = sum(parts is None for parts in found.values()) + len(made) - len(here)
    return Stock(preset, (*places, *here), n_missing, known)


def take_inventory(presets: Sequence[Preset], root: Path, *, clock: Callable[[], float] = time.time) -> Inventory:
    """Pairs of which something is here, the rest of the cache's GGUF files, and what was never finished."""
    stocks = tuple(stock for preset in presets if (stock := stock_of(preset, root)).places)
    known = {place for stock in stocks for place in stock.places}
    others = [(store.repo, place) for store, place in gguf_files(root) if place not in known]
    made = sorted(place for place in derived_folder().glob("*.gguf") if place not in known)
    others += [(f"{_MADE_HERE}/{place.name}", place) for place in made]
    return Inventory(stocks, tuple(others), (*leftovers(root), *_abandoned(clock())))


def _abandoned(now: float) -> list[Path]:
    """Models whose derivation was killed."""
    found = []
    for path in sorted(derived_folder().glob(".*.half")):
        with suppress(FileNotFoundError):  # finished just now
            if now - path.stat().st_mtime > _ABANDONED_SECONDS:
                found.append(path)
    return found


def remove_places(root: Path, places: Sequence[Path], others: Sequence[Stock]) -> tuple[int, tuple[Path, ...]]:
    """Take files away, but for those that another pair here uses. Returns bytes freed, and files kept."""
    shared = {place.resolve() for other in others for place in other.places}
    kept = tuple(place for place in places if place.resolve() in shared)
    return sum(_remove(root, place) for place in places if place not in kept), kept


def _remove(root: Path, place: Path) -> int:
    """Bytes freed."""
    if not is_made_here(place):
        return remove(store_of(root, place), place)
    size = place.stat().st_size
    place.unlink()
    record_of(place).unlink(missing_ok=True)
    return size


def is_made_here(place: Path) -> bool:
    """Whether a model was made on this machine, and is none of the Hub's."""
    return place.parent == derived_folder()


def known_sha256(place: Path, root: Path, sha256: str | None = None) -> str | None:
    """The hash that a file should have, where one is known; `sha256` is what a preset knows of it."""
    if is_made_here(place):
        return recorded_sha256(place)
    return store_of(root, place).etag_of(place) or sha256


def remove_leftovers(root: Path, places: Sequence[Path]) -> tuple[int, int]:
    """Delete what broken-off and damaged downloads and killed derivations left, but for what is being fetched now.

    Returns the bytes freed, and how many files were left to whoever fetches them.
    """
    freed, n_kept = 0, 0
    for place in places:
        if place.suffix == ".half":
            freed += place.stat().st_size if place.exists() else 0
            place.unlink(missing_ok=True)
            continue
        path = store_of(root, place).lock(place.name.split(".")[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with lock(path, timeout=_AT_ONCE):
                freed += place.stat().st_size if place.exists() else 0
                place.unlink(missing_ok=True)
        except TimeoutError:
            n_kept += 1
    return freed, n_kept


def draft_work() -> tuple[Path, ...]:
    """Folders of work on drafts that was stopped, or whose result was not kept."""
    return tuple(sorted(folder for folder in draft_folder().glob("*") if folder.is_dir()))


def work_bytes(folders: Sequence[Path]) -> int:
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def remove_draft_work(folders: Sequence[Path]) -> tuple[int, int]:
    """Delete such folders, but for those where work goes on. Returns the bytes freed, and how many were left."""
    freed, n_kept = 0, 0
    for folder in folders:
        try:
            with lock(folder / WORK_LOCK, timeout=_AT_ONCE):
                freed += work_bytes([folder])
                shutil.rmtree(folder, ignore_errors=True)
        except TimeoutError:
            n_kept += 1
    return freed, n_kept


def store_of(root: Path, place: Path) -> RepoStore:
    """The repository that a file of the cache belongs to."""
    folder = place.relative_to(root).parts[0]
    return RepoStore(root, folder.removeprefix("models--").replace("--", "/", 1))


def verify(place: Path, root: Path, sha256: str | None) -> str | None:
    """Check a file: None if it is right. A damaged one is put aside, never to be used, or deleted if it was made here;
    the answer says so.

    `sha256` is what a preset knows of it, for files that do not lie under their hash. Raises NotHere for a file that
    cannot be read: that says nothing about it.
    """
    try:
        reason = check_file(place, known_sha256(place, root, sha256))
    except OSError as error:
        raise NotHere(f"Cannot read {place}: {error.strerror}.", hint="Check its permissions.") from error
    if reason is None:
        return None
    if is_made_here(place):
        _remove(root, place)
        return f"{place.name}, which was made here, is damaged: {reason}. It was deleted; its next use makes it again."
    store = store_of(root, place)
    aside = store.set_aside(place)
    return f"{place.name} of {store.repo} is damaged: {reason}. It was moved to {aside} and is not used."
