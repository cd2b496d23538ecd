"""What of the presets is on this machine, what it takes, and taking it away."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.download import check_file
from specdec_cli.hub import is_etag
from specdec_cli.presets import HubFile, Preset
from specdec_cli.store import RepoStore, cached, disk_bytes, gguf_files, leftovers, remove


@dataclass(frozen=True, slots=True)
class Stock:
    """A preset's files from the Hub: those that are here, and how many models of it are missing."""

    preset: Preset
    places: tuple[Path, ...]
    n_missing: int

    @property
    def is_here(self) -> bool:
        return self.n_missing == 0


@dataclass(frozen=True, slots=True)
class Inventory:
    """All of it. `others` are GGUF files in the Hub's cache that no preset names, `leftovers` unfinished or damaged."""

    pairs: tuple[Stock, ...]
    others: tuple[tuple[str, Path], ...]
    leftovers: tuple[Path, ...]

    @property
    def total_bytes(self) -> int:
        """On the disk; what several pairs share counts once."""
        places = [place for stock in self.pairs for place in stock.places] + [place for _, place in self.others]
        return disk_bytes([*places, *self.leftovers])


def hub_files(preset: Preset) -> tuple[HubFile, ...]:
    """The models of a preset that come from the Hub."""
    sources = (preset.target, preset.draft)
    return tuple(source.hub for source in sources if source is not None and source.hub is not None)


def stock_of(preset: Preset, root: Path) -> Stock:
    """What is here of one preset."""
    found = [cached(root, file) for file in hub_files(preset)]
    places = tuple(place for parts in found if parts is not None for place in parts)
    return Stock(preset, places, sum(parts is None for parts in found))


def take_inventory(presets: Sequence[Preset], root: Path) -> Inventory:
    """Pairs of which something is here, and the rest of the cache's GGUF files."""
    stocks = tuple(stock for preset in presets if (stock := stock_of(preset, root)).places)
    known = {place for stock in stocks for place in stock.places}
    others = tuple((repo, place) for repo, place in gguf_files(root) if place not in known)
    return Inventory(stocks, others, tuple(leftovers(root)))


def remove_pair(stock: Stock, others: Sequence[Stock]) -> tuple[int, tuple[Path, ...]]:
    """Take a pair's files away, but for those that another pair here uses. Returns bytes freed, and files kept."""
    shared = {place.resolve() for other in others for place in other.places}
    kept = tuple(place for place in stock.places if place.resolve() in shared)
    return sum(remove(place) for place in stock.places if place not in kept), kept


def remove_leftovers(places: Sequence[Path]) -> int:
    """Delete what broken-off and damaged downloads left. Returns the bytes freed."""
    freed = sum(place.stat().st_size for place in places)
    for place in places:
        place.unlink(missing_ok=True)
    return freed


def verify(place: Path, root: Path, say: Callable[[str], None]) -> bool:
    """Check a file of the cache against the hash it lies under; a damaged one is put aside, never to be used."""
    blob = place.resolve()
    etag = blob.name if is_etag(blob.name) else None
    reason = check_file(blob, etag)
    if reason is None:
        return True
    repo = (
        next(p for p in place.parents if p.name.startswith("models--"))
        .name.removeprefix("models--")
        .replace("--", "/", 1)
    )
    aside = RepoStore(root, repo).damaged(etag or place.name)
    aside.parent.mkdir(parents=True, exist_ok=True)
    blob.replace(aside)
    place.unlink(missing_ok=True)
    say(f"{place.name} of {repo} is damaged: {reason.replace(blob.name, 'it')}. It lies at {aside} and is not used.")
    return False
