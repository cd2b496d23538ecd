"""What is on this machine: shared files once, nothing taken from another pair, nothing of another tool's harmed."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from specdec_cli.errors import NotHere
from specdec_cli.hub.cache import RepoStore, cached
from specdec_cli.hub.inventory import Inventory, remove_leftovers, remove_places, stock_of, take_inventory, verify
from specdec_cli.presets import derive
from specdec_cli.presets.resolve import derived_folder
from specdec_cli.presets.schema import Derive, HubFile, ModelSource, Preset
from tests.hubstub import HubStub
from tests.planted import PlantedPair
from tests.shop import DRAFT, DRAFT_REPO, TARGET, TARGET_REPO, Buyer, add, fill


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
    freed, kept = remove_places(buyer.root, found.pairs[0].places, found.pairs[1:])
    assert (freed, kept) == (size, (target,))
    assert target.is_file()
    assert not RepoStore(buyer.root, DRAFT_REPO).folder.exists(), "nothing is left of a repository without files"
    assert remove_places(buyer.root, stock_of(alone, buyer.root).places, ())[1] == ()
    assert not RepoStore(buyer.root, TARGET_REPO).folder.exists()


def test_freed_bytes_are_the_files(buyer: Buyer) -> None:
    size = buyer.fetch().stat().st_size + buyer.fetch(DRAFT_REPO, DRAFT).stat().st_size
    assert remove_places(buyer.root, stock_of(preset(buyer), buyer.root).places, ()) == (size, ())


def test_what_other_tools_fetched_of_a_repository_stays(buyer: Buyer) -> None:
    readme = buyer.fetch(TARGET_REPO, "README.md")
    buyer.fetch()
    remove_places(buyer.root, stock_of(preset(buyer), buyer.root).places, ())
    assert readme.read_text() == "# A model\n"


def test_a_blob_that_another_commit_shows_stays(buyer: Buyer) -> None:
    place = buyer.fetch()
    other = place.parent.parent / ("f" * 40) / TARGET
    other.parent.mkdir()
    other.symlink_to(f"../../blobs/{place.resolve().name}")
    freed, _ = remove_places(buyer.root, stock_of(preset(buyer, draft=False), buyer.root).places, ())
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
    assert remove_leftovers(buyer.root, found.leftovers) == (15, 0)
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
    assert verify(buyer.fetch(), buyer.root, None) is None


def test_a_file_that_rotted_is_put_aside(buyer: Buyer) -> None:
    place = buyer.fetch()
    blob = place.resolve()
    flip_last_byte(blob)
    reason = verify(place, buyer.root, None) or ""
    aside = RepoStore(buyer.root, TARGET_REPO).damaged(blob.name)
    assert str(aside) in reason
    assert "hash" in reason
    assert aside.is_file()
    assert not place.is_symlink()
    assert not blob.exists()
    assert buyer.fetch().is_file()


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def without_links(place: Path) -> Path:
    """As it lies on Windows without the right to make links."""
    blob = place.resolve()
    place.unlink()
    blob.rename(place)
    return place


def test_a_file_without_a_link_is_checked_by_the_presets_hash_or_its_structure(buyer: Buyer) -> None:
    etag = buyer.look_up()[1].etag
    place = without_links(buyer.fetch())
    assert verify(place, buyer.root, etag) is None
    assert verify(place, buyer.root, None) is None
    flip_last_byte(place)
    assert verify(place, buyer.root, None) is None, "its structure tells nothing of its last byte"
    assert "hash" in (verify(place, buyer.root, etag) or "")
    assert not place.exists()


def test_a_file_without_a_hash_is_checked_by_its_structure(buyer: Buyer) -> None:
    place = without_links(buyer.fetch())
    place.write_bytes(place.read_bytes()[:-1000])
    assert "ends before the end of its tensor" in (verify(place, buyer.root, None) or "")


def test_a_file_whose_hash_is_right_is_right_whatever_it_holds(buyer: Buyer) -> None:
    add(buyer.stub.root, TARGET_REPO, "notes.txt", b"calibration data")
    place = buyer.fetch(TARGET_REPO, "notes.txt")
    assert verify(place, buyer.root, None) is None


def test_a_file_that_cannot_be_read_is_not_damaged(buyer: Buyer, monkeypatch: pytest.MonkeyPatch) -> None:
    place = buyer.fetch()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("specdec_cli.hub.inventory.check_file", refuse)
    with pytest.raises(NotHere, match=r"Cannot read .*: Permission denied"):
        verify(place, buyer.root, None)
    assert place.is_file()


# --- what belongs to others -------------------------------------------------------------------------------


def shared_blob(buyer: Buyer) -> tuple[Path, Path]:
    """A file whose bytes lie in huggingface_hub's store for several repositories: our place, and that store's file."""
    place = buyer.fetch()
    blob = RepoStore(buyer.root, TARGET_REPO).blob(buyer.look_up()[1].etag)
    store = buyer.root / "blobs" / "ab" / ("ab" + "c" * 62)
    store.parent.mkdir(parents=True)
    blob.rename(store)
    blob.symlink_to(store)
    return place, store


def test_bytes_that_repositories_share_are_checked_by_our_hash_and_stay(buyer: Buyer) -> None:
    place, store = shared_blob(buyer)
    assert verify(place, buyer.root, None) is None
    flip_last_byte(store)
    assert "hash" in (verify(place, buyer.root, None) or "")
    assert not place.is_symlink()
    assert store.is_file(), "others decide about it"


def test_removing_a_file_leaves_shared_bytes(buyer: Buyer) -> None:
    place, store = shared_blob(buyer)
    assert remove_places(buyer.root, [place], ()) == (0, ())
    assert store.is_file()
    assert not RepoStore(buyer.root, TARGET_REPO).folder.exists()


def test_a_file_that_somebody_linked_into_the_cache_stays(buyer: Buyer, tmp_path: Path) -> None:
    place = buyer.fetch()
    own = tmp_path / "precious.gguf"
    own.write_bytes(place.read_bytes())
    linked = place.with_name("linked.gguf")
    linked.symlink_to(own)
    remove_places(buyer.root, [linked], ())
    assert own.is_file()
    assert place.is_file()


def test_a_folder_called_snapshots_confuses_nobody(buyer: Buyer, planted_pair: PlantedPair) -> None:
    for name in ("snapshots/a.gguf", "keep.gguf", "models--x--y/b.gguf"):
        add(buyer.stub.root, TARGET_REPO, name, planted_pair.draft)
    place, keep, odd = (
        buyer.fetch(TARGET_REPO, name) for name in ("snapshots/a.gguf", "keep.gguf", "models--x--y/b.gguf")
    )
    assert remove_places(buyer.root, [place, odd], ()) == (0, ())
    assert keep.is_file()
    assert [path for path in keep.parent.rglob("*") if path.is_file()] == [keep]


def test_a_derivation_that_was_killed_is_a_leftover(
    buyer: Buyer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_source: Path, target: Path, _file_type: str) -> None:
        target.write_bytes(b"x" * 7)
        raise KeyboardInterrupt

    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "own"))
    monkeypatch.setattr(derive, "packaged_file", lambda _: tmp_path / "source.gguf")
    (tmp_path / "source.gguf").write_bytes(b"GGUF")
    recipe = Derive("some-model", "some-model.gguf", hashlib.sha256(b"GGUF").hexdigest(), "Q4_0", "demo")
    with monkeypatch.context() as dead:
        dead.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            derive.derived_model(recipe, derived_folder(), killed, lambda _: None)
    (half,) = derived_folder().iterdir()
    now = half.stat().st_mtime
    assert take_inventory((), buyer.root, clock=lambda: now + 10).leftovers == (), "it may still grow"
    assert take_inventory((), buyer.root, clock=lambda: now + 3600).leftovers == (half,)
    assert remove_leftovers(buyer.root, [half]) == (7, 0)
    assert not half.exists()


def test_what_is_being_fetched_is_no_leftover(buyer: Buyer) -> None:
    store, etag = RepoStore(buyer.root, TARGET_REPO), "a" * 64
    part = store.incomplete(etag)
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(10))
    store.lock(etag).parent.mkdir(parents=True)
    with FileLock(store.lock(etag)):
        assert remove_leftovers(buyer.root, [part]) == (0, 1)
    assert part.is_file()
    assert remove_leftovers(buyer.root, [part, part]) == (10, 0)
