"""What is on this machine: shared files once, nothing taken from another pair, nothing of another tool's harmed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hubstub import HubStub
from planted import PlantedPair
from shop import DRAFT, DRAFT_REPO, TARGET, TARGET_REPO, Buyer, fill

from specdec_cli.inventory import Inventory, remove_leftovers, remove_pair, stock_of, take_inventory, verify
from specdec_cli.presets import HubFile, ModelSource, Preset
from specdec_cli.store import RepoStore, cached


@pytest.fixture
def buyer(tmp_path: Path, planted_pair: PlantedPair) -> Iterator[Buyer]:
    fill(tmp_path / "shop", planted_pair.target, planted_pair.draft)
    with HubStub(tmp_path / "shop") as stub:
        yield Buyer(stub, tmp_path / "cache")


def preset(buyer: Buyer, name: str = "pair", draft: bool = True) -> Preset:
    target, own_draft = buyer.look_up()[0], buyer.look_up(DRAFT_REPO, DRAFT)[0]
    return Preset(
        name,
        "a pair",
        "MIT",
        ModelSource(hub=HubFile(TARGET_REPO, TARGET, target.commit)),
        ModelSource(hub=HubFile(DRAFT_REPO, DRAFT, own_draft.commit)) if draft else None,
    )


def inventory(buyer: Buyer, *presets: Preset) -> Inventory:
    return take_inventory(presets, buyer.root)


def test_an_empty_cache(buyer: Buyer) -> None:
    found = inventory(buyer, preset(buyer))
    assert (found.pairs, found.others, found.leftovers, found.total_bytes) == ((), (), (), 0)


def test_half_a_pair_is_there_in_part(buyer: Buyer) -> None:
    buyer.fetch()
    (stock,) = inventory(buyer, preset(buyer)).pairs
    assert (stock.is_here, stock.n_missing, len(stock.places)) == (False, 1, 1)


def test_files_that_pairs_share_count_once_and_stay(buyer: Buyer) -> None:
    target, draft = buyer.fetch(), buyer.fetch(DRAFT_REPO, DRAFT)
    both, alone = preset(buyer), preset(buyer, "alone", draft=False)
    found = inventory(buyer, both, alone)
    assert found.total_bytes == target.stat().st_size + draft.stat().st_size
    size = draft.stat().st_size
    freed, kept = remove_pair(found.pairs[0], found.pairs[1:])
    assert (freed, kept) == (size, (target,))
    assert target.is_file()
    assert not RepoStore(buyer.root, DRAFT_REPO).folder.exists(), "nothing is left of a repository without files"
    assert remove_pair(stock_of(alone, buyer.root), ())[1] == ()
    assert not RepoStore(buyer.root, TARGET_REPO).folder.exists()


def test_freed_bytes_are_the_files(buyer: Buyer) -> None:
    size = buyer.fetch().stat().st_size + buyer.fetch(DRAFT_REPO, DRAFT).stat().st_size
    assert remove_pair(stock_of(preset(buyer), buyer.root), ()) == (size, ())


def test_what_other_tools_fetched_of_a_repository_stays(buyer: Buyer) -> None:
    readme = buyer.fetch(TARGET_REPO, "README.md")
    buyer.fetch()
    remove_pair(stock_of(preset(buyer), buyer.root), ())
    assert readme.read_text() == "# A model\n"


def test_a_blob_that_another_commit_shows_stays(buyer: Buyer) -> None:
    place = buyer.fetch()
    other = place.parent.parent / ("f" * 40) / TARGET
    other.parent.mkdir()
    other.symlink_to(f"../../blobs/{place.resolve().name}")
    freed, _ = remove_pair(stock_of(preset(buyer, draft=False), buyer.root), ())
    assert freed == 0
    assert other.is_file()


def test_files_without_a_preset_are_shown_too(buyer: Buyer) -> None:
    place = buyer.fetch()
    assert inventory(buyer).others == ((TARGET_REPO, place),)


def test_leftovers_are_shown_and_go(buyer: Buyer) -> None:
    store = RepoStore(buyer.root, TARGET_REPO)
    store.blob("x").parent.mkdir(parents=True)
    store.incomplete("a" * 64).write_bytes(bytes(10))
    store.damaged("b" * 64).write_bytes(bytes(5))
    found = inventory(buyer)
    assert (len(found.leftovers), found.total_bytes) == (2, 15)
    assert remove_leftovers(found.leftovers) == 15
    assert inventory(buyer).leftovers == ()


@pytest.mark.parametrize("revision", ["main", "v1.0"])
def test_a_branch_is_found_by_what_it_meant(buyer: Buyer, revision: str) -> None:
    place = buyer.fetch()
    info, _ = buyer.look_up()
    file = HubFile(TARGET_REPO, TARGET, revision)
    assert cached(buyer.root, file) is None
    RepoStore(buyer.root, TARGET_REPO).remember(revision, info.commit)
    assert cached(buyer.root, file) == (place,)
    assert cached(buyer.root, replace(file, revision="0" * 40)) is None


def test_a_split_model_is_here_only_with_all_parts(tmp_path: Path) -> None:
    store = RepoStore(tmp_path, "a/b")
    file = HubFile("a/b", "x/m-00001-of-00002.gguf", "0" * 40)
    first, second = (store.snapshot("0" * 40, f"x/m-0000{i}-of-00002.gguf") for i in (1, 2))
    first.parent.mkdir(parents=True)
    first.touch()
    assert cached(tmp_path, file) is None
    second.touch()
    assert cached(tmp_path, file) == (first, second)


def test_a_file_that_is_whole_passes(buyer: Buyer) -> None:
    notes: list[str] = []
    assert verify(buyer.fetch(), buyer.root, notes.append)
    assert notes == []


def test_a_file_that_rotted_is_put_aside(buyer: Buyer) -> None:
    place = buyer.fetch()
    blob = place.resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    notes: list[str] = []
    assert not verify(place, buyer.root, notes.append)
    aside = RepoStore(buyer.root, TARGET_REPO).damaged(blob.name)
    assert str(aside) in notes[0]
    assert "hash" in notes[0]
    assert aside.is_file()
    assert not place.exists()
    assert not blob.exists()
    assert buyer.fetch().is_file()


def test_a_file_without_a_hash_is_checked_by_its_structure(buyer: Buyer) -> None:
    place = buyer.fetch()
    data = place.read_bytes()
    place.unlink()
    place.write_bytes(data[:-1000])
    notes: list[str] = []
    assert not verify(place, buyer.root, notes.append)
    assert "ends before its tensor" in notes[0]
