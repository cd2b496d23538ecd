"""Fetching one file through every fault that a network, a disk or another process can have."""

import errno
import gc
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from specdec_cli.errors import (
    DamagedFile,
    DiskFull,
    HeldByAnother,
    HubFailed,
    NoNetwork,
    RateLimited,
    Stalled,
)
from specdec_cli.hub import download
from specdec_cli.hub.cache import RepoStore
from tests.hubstub import Fault, HubStub
from tests.planted import PlantedPair, random_chain, write_planted, write_split
from tests.shop import DRAFT, DRAFT_REPO, TARGET, TARGET_REPO, Buyer, add, fetch_in_a_process, fill, sha256

BIG = "big-F32.gguf"


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 10 MB, so that a download of it has pieces."""
    path = write_planted(tmp_path_factory.mktemp("big") / BIG, random_chain(640, seed=3))
    assert path.stat().st_size > 8 * download.CHUNK_BYTES
    return path


@pytest.fixture
def buyer(tmp_path: Path, planted_pair: PlantedPair, big: Path) -> Iterator[Buyer]:
    shop = tmp_path / "shop"
    fill(shop, planted_pair.target, planted_pair.draft)
    add(shop, TARGET_REPO, BIG, big)
    with HubStub(shop) as stub:
        yield Buyer(stub, tmp_path / "cache")


def test_a_file_lies_where_every_tool_looks_for_it(buyer: Buyer, planted_pair: PlantedPair) -> None:
    place = buyer.fetch()
    assert place.read_bytes() == planted_pair.target.read_bytes()
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    info, file = buyer.look_up()
    assert try_to_load_from_cache(TARGET_REPO, TARGET, cache_dir=buyer.root, revision=info.commit) == str(place)
    assert place.is_symlink()
    assert place.resolve().name == file.etag == sha256(planted_pair.target)
    scanned = scan_cache_dir(buyer.root)
    assert (scanned.size_on_disk, scanned.warnings) == (file.size, [])


def test_what_huggingface_hub_fetched_is_not_fetched_again(buyer: Buyer) -> None:
    from huggingface_hub import hf_hub_download

    theirs = hf_hub_download(TARGET_REPO, TARGET, cache_dir=buyer.root, endpoint=buyer.stub.endpoint)
    n = len(buyer.ranges())
    assert str(buyer.fetch()) == theirs
    assert len(buyer.ranges()) == n


def test_a_small_file_is_checked_by_its_git_hash(buyer: Buyer) -> None:
    assert buyer.fetch(TARGET_REPO, "README.md").read_text() == "# A model\n"


@pytest.mark.parametrize("kind", ["cut", "reset"])
def test_a_broken_connection_goes_on_where_it_broke(buyer: Buyer, big: Path, kind: str) -> None:
    size = big.stat().st_size
    buyer.stub.faults.append(Fault(path="/cdn/", kind=kind, after=size // 2))
    assert sha256(buyer.fetch(TARGET_REPO, BIG)) == sha256(big)
    (first, _), (second, sent) = buyer.ranges()
    assert first == f"bytes=0-{size - 1}"
    assert second is not None
    start = int(second.removeprefix("bytes=").split("-")[0])
    assert start == size // 2, "every byte that came is kept"
    assert sent == size - start
    assert (buyer.slept, buyer.progress.advanced) == ([1.0], size)
    assert any("Retrying in 1 s." in note for note in buyer.progress.notes)


def test_the_next_run_goes_on_where_the_last_one_gave_up(buyer: Buyer, big: Path) -> None:
    size = big.stat().st_size
    buyer.stub.faults.append(Fault(path="/cdn/", kind="cut", after=size // 2))
    buyer.stub.faults.append(Fault(path="/cdn/", kind="cut", after=0, times=-1))
    with pytest.raises(HubFailed):
        buyer.fetch(TARGET_REPO, BIG)
    assert buyer.slept == [1.0, 2.0, 4.0, 8.0, 8.0]
    buyer.stub.faults.clear()
    again = Buyer(buyer.stub, buyer.root)
    assert sha256(again.fetch(TARGET_REPO, BIG)) == sha256(big)
    have = again.progress.began[0][2]
    assert have == size // 2
    assert again.ranges()[-1] == (f"bytes={have}-{size - 1}", size - have)
    assert again.progress.advanced == size - have


def test_progress_between_failures_renews_the_patience(buyer: Buyer, big: Path) -> None:
    """Seven breaks, each after another piece: more than the retries that a standstill is given."""
    for _ in range(7):
        buyer.stub.faults.append(Fault(path="/cdn/", kind="cut", after=1.5 * download.LEAST_PROGRESS))
    assert sha256(buyer.fetch(TARGET_REPO, BIG)) == sha256(big)
    assert buyer.slept == [1.0] * 7


def test_a_server_without_ranges_begins_anew_and_is_right(buyer: Buyer, big: Path) -> None:
    size = big.stat().st_size
    buyer.stub.faults.append(Fault(path="/cdn/", kind="cut", after=size // 2))
    buyer.stub.faults.append(Fault(path="/cdn/", kind="norange", times=-1))
    assert sha256(buyer.fetch(TARGET_REPO, BIG)) == sha256(big)
    assert buyer.ranges()[-1][1] == size
    assert buyer.progress.advanced == size


def test_a_silent_server_is_given_up_with_a_hint(buyer: Buyer) -> None:
    buyer.stall_seconds = 0.2
    buyer.stub.faults.append(Fault(path="/cdn/", kind="stall", after=1000, times=-1))
    with pytest.raises(Stalled, match="sent nothing for") as caught:
        buyer.fetch()
    assert "proxy and firewall" in str(caught.value.hint)
    assert len(buyer.slept) == download.RETRIES


def test_a_server_that_never_answers_is_given_up(buyer: Buyer) -> None:
    buyer.stall_seconds = 0.2
    info, file = buyer.look_up()
    buyer.stub.faults.append(Fault(path="/resolve/", method="*", kind="hang", after=30, times=-1))
    with pytest.raises(Stalled):
        buyer.downloader().fetch(TARGET_REPO, info.commit, file)


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
def test_a_failing_server_is_asked_again(buyer: Buyer, status: int) -> None:
    buyer.stub.faults.append(Fault(path="/cdn/", kind="status", status=status, times=2))
    assert buyer.fetch().is_file()
    assert buyer.slept == [1.0, 2.0]


def test_a_server_that_names_a_time_is_asked_then(buyer: Buyer) -> None:
    buyer.stub.faults.append(Fault(path="/cdn/", kind="status", status=429, headers={"Retry-After": "17"}, times=1))
    assert buyer.fetch().is_file()
    assert buyer.slept == [17.0]


def test_a_server_that_wants_too_much_patience_is_an_error(buyer: Buyer) -> None:
    buyer.stub.faults.append(Fault(path="/cdn/", kind="status", status=429, headers={"Retry-After": "3600"}))
    with pytest.raises(RateLimited) as caught:
        buyer.fetch()
    assert buyer.slept == []
    assert re.fullmatch(r"Try again after \d{4}-\d\d-\d\d \d\d:\d\d\.", str(caught.value.hint))


def test_a_damaged_body_is_put_aside_and_named(buyer: Buyer) -> None:
    buyer.stub.faults.append(Fault(path="/cdn/", kind="corrupt"))
    with pytest.raises(DamagedFile) as caught:
        buyer.fetch()
    info, file = buyer.look_up()
    store = RepoStore(buyer.root, TARGET_REPO)
    assert str(store.damaged(file.etag)) in str(caught.value)
    assert store.damaged(file.etag).stat().st_size == file.size
    assert not store.blob(file.etag).exists()
    assert not store.snapshot(info.commit, TARGET).exists()
    assert not store.incomplete(file.etag).exists()
    assert sha256(buyer.fetch()) == file.etag, "the next pull begins anew"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<!doctype html><title>Sorry</title>" * 100, "is not a GGUF file"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 100, "claims"),
    ],
)
def test_a_file_that_is_no_model_is_put_aside(buyer: Buyer, body: bytes, reason: str) -> None:
    add(buyer.stub.root, TARGET_REPO, "page.gguf", body)
    with pytest.raises(DamagedFile, match=reason):
        buyer.fetch(TARGET_REPO, "page.gguf")


def test_a_model_that_was_cut_before_it_was_uploaded_is_put_aside(buyer: Buyer, big: Path) -> None:
    add(buyer.stub.root, TARGET_REPO, "cut.gguf", big.read_bytes()[: big.stat().st_size // 2])
    with pytest.raises(DamagedFile, match="ends before the end of its tensor"):
        buyer.fetch(TARGET_REPO, "cut.gguf")


def test_an_unfinished_file_of_another_time_is_hashed_too(buyer: Buyer, big: Path) -> None:
    """What lies there may be anything: the end shows it, and the pull after that is whole."""
    _, file = buyer.look_up(TARGET_REPO, BIG)
    part = RepoStore(buyer.root, TARGET_REPO).incomplete(file.etag)
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(5000))
    with pytest.raises(DamagedFile):
        buyer.fetch(TARGET_REPO, BIG)
    assert sha256(buyer.fetch(TARGET_REPO, BIG)) == sha256(big)


def test_an_unfinished_file_that_is_too_long_begins_anew(buyer: Buyer) -> None:
    _, file = buyer.look_up()
    part = RepoStore(buyer.root, TARGET_REPO).incomplete(file.etag)
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(file.size + 1))
    assert sha256(buyer.fetch()) == file.etag


def test_the_sum_of_what_is_missing_is_held_against_the_disk(buyer: Buyer, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = buyer.look_up()[1], buyer.look_up(DRAFT_REPO, DRAFT)[1]
    needed = sum(
        buyer.downloader().missing_bytes(repo, "0" * 40, [file])
        for repo, file in ((TARGET_REPO, target), (DRAFT_REPO, draft))
    )
    assert needed == target.size + draft.size
    usage = shutil.disk_usage(buyer.root.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed + download.SPARE_BYTES - 1))
    with pytest.raises(DiskFull) as caught:
        buyer.downloader().check_disk(needed)
    assert "HF_HUB_CACHE" in str(caught.value.hint)
    assert "67.1 MB kept free" in str(caught.value)
    buyer.downloader().check_disk(needed - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    buyer.downloader().check_disk(0)


def mounted(folder: Path, megabytes: int) -> bool:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    return shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0


def test_a_disk_that_fills_up_keeps_what_came(buyer: Buyer, big: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    if not mounted(disk, 4):
        pytest.skip("no right to mount a small disk")
    try:
        small = Buyer(buyer.stub, disk / "cache")
        with pytest.raises(DiskFull, match="is full; the bytes downloaded so far are kept"):
            small.fetch(TARGET_REPO, BIG)
        _, file = small.look_up(TARGET_REPO, BIG)
        kept = RepoStore(small.root, TARGET_REPO).incomplete(file.etag).stat().st_size
        assert 0 < kept < big.stat().st_size
        assert small.downloader().missing_bytes(TARGET_REPO, "0" * 40, [file]) == big.stat().st_size - kept
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_cache_that_cannot_be_written_is_named(buyer: Buyer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    info, file = buyer.look_up()
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DiskFull, match=r"Cannot write to .*: Permission denied") as caught:
        buyer.downloader().fetch(TARGET_REPO, info.commit, file)
    assert "HF_HUB_CACHE" in str(caught.value.hint)


def test_without_links_the_file_itself_lies_in_the_snapshot(buyer: Buyer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows without the right to make links."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("A required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    place = buyer.fetch()
    assert place.is_file()
    assert not place.is_symlink()
    n = len(buyer.ranges())
    assert buyer.fetch() == place
    assert len(buyer.ranges()) == n


def test_two_pulls_at_once_fetch_every_byte_once(buyer: Buyer, big: Path) -> None:
    buyer.stub.faults.append(Fault(path="/cdn/", kind="slow", after=20 * 2**20, times=-1))
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[tuple[str, int]] = context.Queue()
    arguments = (buyer.stub.endpoint, buyer.root, BIG, queue)
    processes = [context.Process(target=fetch_in_a_process, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    got = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert {digest for digest, _ in got} == {sha256(big)}
    assert sorted(n for _, n in got) == [0, big.stat().st_size]
    assert sum(sent for _, sent in buyer.ranges()) == big.stat().st_size


def test_a_pull_killed_in_mid_file_goes_on_in_the_next(buyer: Buyer, big: Path) -> None:
    size = big.stat().st_size
    buyer.stub.faults.append(Fault(path="/cdn/", kind="slow", after=4 * 2**20, times=1))
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[tuple[str, int]] = context.Queue()
    process = context.Process(target=fetch_in_a_process, args=(buyer.stub.endpoint, buyer.root, BIG, queue))
    process.start()
    part = RepoStore(buyer.root, TARGET_REPO).incomplete(sha256(big))
    until = time.monotonic() + 60
    while time.monotonic() < until and not (part.exists() and part.stat().st_size > 2 * download.CHUNK_BYTES):
        time.sleep(0.02)
    process.kill()
    process.join()
    kept = part.stat().st_size
    assert 0 < kept < size
    buyer.stub.log.clear()
    assert sha256(buyer.fetch(TARGET_REPO, BIG)) == sha256(big)
    assert buyer.ranges() == [(f"bytes={kept}-{size - 1}", size - kept)]


def test_a_lock_that_nobody_works_under_is_named(buyer: Buyer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LOCK_NOTICE_SECONDS", 0.05)
    monkeypatch.setattr(download, "LOCK_STALE_SECONDS", 0.3)
    info, file = buyer.look_up()
    path = RepoStore(buyer.root, TARGET_REPO).lock(file.etag)
    path.parent.mkdir(parents=True)
    with FileLock(path), pytest.raises(HeldByAnother) as caught:
        buyer.downloader().fetch(TARGET_REPO, info.commit, file)
    assert str(path) in str(caught.value)
    assert any(str(path) in note for note in buyer.progress.notes)


def test_a_lock_under_which_a_file_grows_is_waited_for(buyer: Buyer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LOCK_NOTICE_SECONDS", 0.05)
    monkeypatch.setattr(download, "LOCK_STALE_SECONDS", 0.3)
    info, file = buyer.look_up()
    store = RepoStore(buyer.root, TARGET_REPO)
    store.lock(file.etag).parent.mkdir(parents=True)
    store.blob(file.etag).parent.mkdir(parents=True)
    theirs = store.blob(file.etag).with_name(f"{file.etag}.1234abcd.incomplete")  # as huggingface_hub calls it
    held = FileLock(store.lock(file.etag))
    held.acquire()
    done: list[Path] = []
    waiting = threading.Thread(
        target=lambda: done.append(buyer.downloader().fetch(TARGET_REPO, info.commit, file)), daemon=True
    )
    waiting.start()
    for n in range(8):
        theirs.write_bytes(bytes(1000 * (n + 1)))
        time.sleep(0.1)
    assert waiting.is_alive(), "it waited longer than a lock may stand still"
    held.release()
    waiting.join(20)
    assert [sha256(place) for place in done] == [file.etag]


def test_a_file_that_changes_on_the_hub_meanwhile_is_not_mixed(buyer: Buyer, big: Path) -> None:
    info, file = buyer.look_up(TARGET_REPO, BIG)
    other = bytearray(big.read_bytes())
    other[-1] ^= 1
    add(buyer.stub.root, TARGET_REPO, BIG, bytes(other))
    buyer.stub.repos.clear()
    meta = buyer.stub.root / TARGET_REPO / ".hub.json"
    meta.write_text(f'{{"sha": "{info.commit}"}}')
    with pytest.raises(HubFailed, match="changed on the Hub"):
        buyer.downloader().fetch(TARGET_REPO, info.commit, file)


def test_nothing_is_left_open(buyer: Buyer) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        buyer.stub.faults.append(Fault(path="/cdn/", kind="corrupt"))
        with pytest.raises(DamagedFile):
            buyer.fetch()
    gc.collect()  # each of them had a client of its own
    assert len(os.listdir("/proc/self/fd")) <= before + 4


def test_a_portals_page_costs_no_byte_of_what_is_there(buyer: Buyer, big: Path) -> None:
    """A login page of a network comes with status 200, like the file itself."""
    buyer.stub.faults.append(Fault(path="/cdn/", kind="cut", after=big.stat().st_size // 2))
    buyer.stub.faults.append(Fault(path="/cdn/", kind="cut", after=0, times=-1))
    with pytest.raises(HubFailed):
        buyer.fetch(TARGET_REPO, BIG)
    buyer.stub.faults.clear()
    buyer.stub.faults.append(Fault(path="/cdn/", kind="status", status=200, times=-1))
    with pytest.raises(HubFailed, match="sent something other than"):
        buyer.fetch(TARGET_REPO, BIG)
    _, file = buyer.look_up(TARGET_REPO, BIG)
    kept = RepoStore(buyer.root, TARGET_REPO).incomplete(file.etag).stat().st_size
    assert kept == big.stat().st_size // 2


def test_a_body_that_ends_early_without_an_error_is_not_waited_for(buyer: Buyer) -> None:
    headers = {"Content-Range": "bytes 0-16/17"}
    buyer.stub.faults.append(Fault(path="/cdn/", kind="status", status=206, headers=headers, times=1))
    buyer.stub.faults.append(Fault(path="/cdn/", kind="status", status=206, headers=headers, times=-1))
    with pytest.raises(HubFailed):
        buyer.fetch()
    assert len(buyer.slept) == download.RETRIES


def test_an_expired_address_is_asked_for_anew(buyer: Buyer) -> None:
    buyer.stub.faults.append(Fault(path="/cdn/", kind="status", status=403))
    assert buyer.fetch().is_file()
    assert buyer.slept == [1.0]


def test_half_a_blob_is_not_taken_for_the_file(buyer: Buyer) -> None:
    info, file = buyer.look_up()
    store = RepoStore(buyer.root, TARGET_REPO)
    store.blob(file.etag).parent.mkdir(parents=True)
    store.blob(file.etag).write_bytes(b"GGUF")
    assert buyer.downloader().missing_bytes(TARGET_REPO, info.commit, [file]) == file.size
    assert sha256(buyer.fetch()) == file.etag


def test_without_links_a_file_that_is_here_is_not_missing(buyer: Buyer) -> None:
    place = buyer.fetch()
    blob = place.resolve()
    place.unlink()
    blob.rename(place)
    info, file = buyer.look_up()
    assert buyer.downloader().missing_bytes(TARGET_REPO, info.commit, [file]) == 0


def test_progress_of_a_part_that_was_too_long(buyer: Buyer) -> None:
    _, file = buyer.look_up()
    part = RepoStore(buyer.root, TARGET_REPO).incomplete(file.etag)
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(file.size + 1))
    buyer.fetch()
    assert buyer.progress.began == [(TARGET, file.size, 0)]
    assert buyer.progress.advanced == file.size


def test_a_part_of_a_split_model_is_a_model(buyer: Buyer, big: Path, tmp_path: Path) -> None:
    for part in write_split(big, tmp_path, "split"):
        add(buyer.stub.root, TARGET_REPO, part.name, part)
        assert buyer.fetch(TARGET_REPO, part.name).is_file()


# --- what lies in the cache -------------------------------------------------------------------------------


def test_wrong_bytes_of_the_right_size_are_found_once_and_fetched_again(buyer: Buyer) -> None:
    """As another program may leave them when the power fails."""
    info, file = buyer.look_up()
    store = RepoStore(buyer.root, TARGET_REPO)
    store.blob(file.etag).parent.mkdir(parents=True)
    store.blob(file.etag).write_bytes(bytes(file.size))
    place = store.link(info.commit, TARGET, file.etag)
    assert sha256(buyer.fetch()) == file.etag
    assert any(str(store.damaged(file.etag)) in note for note in buyer.progress.notes)
    assert store.is_verified(place, file.etag)


def test_a_file_is_hashed_once_and_again_when_it_changes(buyer: Buyer, monkeypatch: pytest.MonkeyPatch) -> None:
    place = buyer.fetch()
    _, file = buyer.look_up()
    store = RepoStore(buyer.root, TARGET_REPO)
    hashed: list[Path] = []
    real = download.check_file
    monkeypatch.setattr(download, "check_file", lambda path, etag: hashed.append(path) or real(path, etag))
    buyer.fetch()
    assert hashed == [], "what was fetched here was hashed on the way"
    store.verified(file.etag).unlink()
    buyer.fetch()
    buyer.fetch()
    assert hashed == [place]
    os.utime(place)
    buyer.fetch()
    assert hashed == [place, place]


def test_a_complete_cache_on_a_read_only_disk(buyer: Buyer, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    if not mounted(disk, 16):
        pytest.skip("no right to mount a small disk")
    try:
        there = Buyer(buyer.stub, disk / "cache")
        info, file = there.look_up()
        place = there.fetch()
        there.downloader().remember(TARGET_REPO, "main", info.commit)
        RepoStore(there.root, TARGET_REPO).verified(file.etag).unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert there.fetch() == place
        there.downloader().remember(TARGET_REPO, "main", info.commit)
        assert there.downloader().missing_bytes(TARGET_REPO, info.commit, [file]) == 0
        with pytest.raises(DiskFull, match="Cannot write to"):
            there.fetch(DRAFT_REPO, DRAFT)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("kind", ["pipe", "link", "link to nothing"])
def test_what_is_no_file_where_a_download_grows_is_replaced(buyer: Buyer, tmp_path: Path, kind: str) -> None:
    """A pipe would be waited for, and through a link the bytes would go elsewhere."""
    _, file = buyer.look_up()
    part = RepoStore(buyer.root, TARGET_REPO).incomplete(file.etag)
    part.parent.mkdir(parents=True)
    precious = tmp_path / "precious"
    if kind == "pipe":
        os.mkfifo(part)
    else:
        part.symlink_to(precious)
    if kind == "link":
        precious.write_bytes(b"precious")
    assert sha256(buyer.fetch()) == file.etag
    assert not precious.exists() or precious.read_bytes() == b"precious"


@pytest.mark.parametrize("where", ["lock", "blob", "snapshot", "verified"])
def test_a_pipe_in_the_cache_is_not_waited_for(buyer: Buyer, where: str) -> None:
    info, file = buyer.look_up()
    store = RepoStore(buyer.root, TARGET_REPO)
    places = {
        "lock": store.lock(file.etag),
        "blob": store.blob(file.etag),
        "snapshot": store.snapshot(info.commit, TARGET),
        "verified": store.verified(file.etag),
    }
    places[where].parent.mkdir(parents=True)
    os.mkfifo(places[where])
    assert sha256(buyer.fetch()) == file.etag


@pytest.mark.parametrize("text", ["", "x" * 5000, "../../x", "\x00", "é"])
def test_a_branch_that_is_noted_wrongly_is_not_known(buyer: Buyer, text: str) -> None:
    store = RepoStore(buyer.root, TARGET_REPO)
    ref = store.folder / "refs" / "main"
    ref.parent.mkdir(parents=True)
    ref.write_text(text)
    assert store.commit_of("main") is None
    ref.unlink()
    os.mkfifo(ref)
    assert store.commit_of("main") is None


def test_the_lock_of_a_process_that_died_holds_nobody_up(buyer: Buyer) -> None:
    _, file = buyer.look_up()
    path = RepoStore(buyer.root, TARGET_REPO).lock(file.etag)
    path.parent.mkdir(parents=True)
    code = (
        f"import os, signal; from specdec_cli.hub.client import lock; lock(__import__('pathlib').Path({str(path)!r}), "
        "timeout=5).__enter__(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", code], check=False)
    assert died.returncode == -signal.SIGKILL
    assert path.exists()
    began = time.monotonic()
    assert sha256(buyer.fetch()) == file.etag
    assert time.monotonic() - began < download.LOCK_NOTICE_SECONDS


@pytest.mark.parametrize(("unreachable", "waits"), [(0, []), (1, [1.0]), (download.RETRIES, [1.0, 2.0, 4.0, 8.0, 8.0])])
def test_a_hub_out_of_reach_is_given_up_soon_before_anything_came(unreachable: int, waits: list[float]) -> None:
    slept: list[float] = []

    def fail() -> None:
        raise NoNetwork("hub.example cannot be reached.")

    with pytest.raises(NoNetwork):
        download.with_retries(fail, sleep=slept.append, note=lambda _: None, unreachable=unreachable)
    assert slept == waits
