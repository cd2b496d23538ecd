"""`specdec draft`: from a planted model to a draft that run takes, with costs that no clock has to be right for.

A pass costs what its model weighs: then the layers that add nothing are worth leaving out on every machine.
"""

import errno
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest

from specdec_cli.bench import prompt_set as kinds
from specdec_cli.bench.measure import Bench
from specdec_cli.bench.prompt_set import BenchPrompt
from specdec_cli.errors import ModelError, UsageError
from specdec_cli.generation.pair import Pair
from specdec_cli.hub.client import lock
from specdec_cli.lengths.speedup_model import CostCurve
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.quantize import Changes, change
from specdec_cli.llama.rewind import StartOver, Way
from specdec_cli.make_draft import candidates as workshop
from specdec_cli.make_draft import search as make_draft
from specdec_cli.paths import WORK_LOCK
from tests.cli import CALM, COMMAND, PATIENCE, Done, inside, json_inside
from tests.planted import BYTES, UNK, disturbed, make_vocab, random_chain, write_planted, write_split, write_tiny_mamba

N = 320
VOCAB = make_vocab(N)
CHAIN = random_chain(N, 0, never=(UNK, VOCAB.bos, *BYTES))
PROMPTS = [BenchPrompt("words", (" a b c",)), BenchPrompt("more", (" d e f",))]


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight layers that add nothing to what the model says."""
    return write_planted(tmp_path_factory.mktemp("draft") / "deep.gguf", CHAIN, vocab=VOCAB, n_layers=8, n_ff=64)


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One thin layer: half of it is the output matrix."""
    folder = tmp_path_factory.mktemp("draft")
    return write_planted(folder / "flat.gguf", disturbed(CHAIN, 0.3, 1), vocab=VOCAB, n_layers=1, n_ff=32)


class Costs:
    """A draft token costs `draft` times its share of the target's bytes, however wide the target's passes are."""

    draft = 1.0

    def curve(self, bench: Bench, _text: Any, context: int, widest: int, _temperature: float) -> CostCurve:
        pair: Pair = bench._pair
        assert pair.draft is not None
        share = pair.draft.facts.weights_bytes / pair.target.facts.weights_bytes
        return CostCurve(context, dict.fromkeys(range(1, widest + 1), 1.0), self.draft * share)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Costs:
    """Also few prompts, a clock of which every round takes as long, and a quantiser without a process of its own."""
    costs = Costs()
    monkeypatch.setattr(Bench, "cost_curve", lambda *arguments: costs.curve(*arguments))
    read = kinds.read_prompts
    monkeypatch.setattr(kinds, "read_prompts", lambda file: PROMPTS if file == kinds.SHIPPED else read(file))
    clock = itertools.count()
    monkeypatch.setattr(make_draft, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    monkeypatch.setattr(
        workshop, "change_apart", lambda *files, threads, abort: change(*files, threads=threads) or abort
    )
    return costs


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "drafts"


def made(target: Path, *arguments: object) -> Done:
    return inside("draft", "make", target, "--threads", 1, "-n", 24, *arguments)


def trimmed(draft: Path, *arguments: object) -> Done:
    return inside("draft", "trim", draft, "--threads", 1, "-n", 24, *arguments)


def about(draft: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(draft).fields
    return {name.removeprefix("specdec.draft."): f.contents() for name, f in fields.items() if "specdec" in name}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("costs")
def test_a_draft_is_made_and_says_how(deep: Path, tmp_path: Path, cache: Path) -> None:
    done = made(deep)
    assert done.code == 0, done.err
    draft = tmp_path / "deep-draft.gguf"
    assert f"Next: specdec run {deep} --draft deep-draft.gguf -k " in done.out
    facts = about(draft)
    assert facts["source"] == "deep.gguf"
    assert facts["source_bytes"] == deep.stat().st_size
    assert "without layers" in facts["method"], "they add nothing, so the fewer the better"
    assert 0 < facts["acceptance"] <= 1
    assert 0 < facts["agreement"] <= 1
    assert facts["measured_speedup"] > 1
    assert facts["k"] >= 1
    assert len(list(gguf.GGUFReader(draft).tensors)) < len(list(gguf.GGUFReader(deep).tensors))
    assert draft.stat().st_size < deep.stat().st_size / 3
    assert names(cache) == set(), "what it was made with is gone"

    for temperature in (0, 0.8):
        plain = json_inside(deep, " a b", "-n", 40, "--temp", temperature, "--seed", 5)
        drafted = json_inside(deep, " a b", "-n", 40, "--temp", temperature, "--seed", 5, "-k", 4, "--draft", draft)
        assert drafted.document["text"] == plain.document["text"]
        assert drafted.stats["accepted"] > 0


def test_what_does_not_pay_is_not_kept_unless_asked_and_not_made_again(
    costs: Costs, deep: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs.draft = 50.0
    done = made(deep)
    assert done.code == 10
    assert "No draft was kept, because none pays here: the best candidate (" in done.err
    assert "--keep-anyway" in done.err
    assert not (tmp_path / "deep-draft.gguf").exists()
    assert sorted(name.rpartition(".")[2] for name in names(cache)) == ["gguf", "json", "lock"], "the best one is left"

    monkeypatch.setattr(make_draft, "measure", lambda *_: pytest.fail("everything is in the journal"))
    done = made(deep, "--keep-anyway", "--out", tmp_path / "kept.gguf", "--json")
    assert done.code == 0, done.err
    assert "It was kept (--keep-anyway)." in done.err
    assert done.document["file"] == str(tmp_path / "kept.gguf")
    assert len(done.document["candidates"]) > 3
    assert "measured_speedup" not in about(tmp_path / "kept.gguf"), "it was not worth running"
    assert about(tmp_path / "kept.gguf")["expected_speedup"] < 0.8


def test_work_that_lies_about_is_listed_and_deleted(cache: Path) -> None:
    (cache / "old").mkdir(parents=True)
    (cache / "old" / "Q4_0.gguf").write_bytes(bytes(2000))
    assert (
        "Unfinished work on 1 draft (2.0 kB): specdec draft resumes it, specdec rm --leftovers deletes it."
        in inside("list").out
    )
    with lock(cache / "old" / WORK_LOCK, timeout=1):
        assert "1 folder kept: a draft is being made there." in inside("rm", "--leftovers", "--yes").err
    assert inside("rm", "--leftovers", "--yes").code == 0
    assert names(cache) == set()


@pytest.mark.usefixtures("costs")
def test_two_do_not_work_in_one_folder(deep: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_draft, "work_folder", lambda *_: cache / "work")
    (cache / "work").mkdir(parents=True)
    with lock(cache / "work" / WORK_LOCK, timeout=1):
        done = made(deep)
    assert done.code == 31
    assert "Another process is making a draft" in done.err


@pytest.mark.usefixtures("costs")
def test_a_place_that_is_taken_stays_as_it_is(deep: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_text("mine")
    done = made(deep, "--out", tmp_path / "mine.gguf")
    assert (done.code, (tmp_path / "mine.gguf").read_text()) == (2, "mine")
    assert "already exists" in done.err
    assert made(deep, "--out", "/nowhere/x.gguf").code == 2


@pytest.mark.usefixtures("costs")
def test_a_full_disk_is_told_before_anything_is_made(deep: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=70 << 20))
    done = made(deep)
    assert done.code == 24, done.err
    assert "Making a draft needs" in done.err
    assert names(cache) == set()


@pytest.mark.usefixtures("costs")
def test_a_recurrent_model_gets_a_draft_too(tmp_path: Path) -> None:
    mamba = write_tiny_mamba(tmp_path / "mamba.gguf", 0)
    done = made(mamba)
    assert done.code == 0, done.err


@pytest.mark.usefixtures("costs")
def test_a_memory_that_cannot_be_taken_back_gets_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_cli.llama.session.ways", lambda *_, **__: (Way(StartOver),))
    done = made(write_tiny_mamba(tmp_path / "mamba.gguf", 0))
    assert done.code == 3
    assert "cannot undo tokens" in done.err


@pytest.mark.usefixtures("costs")
def test_a_trimmed_draft_is_measured_alone_or_with_its_target(flat: Path, deep: Path, tmp_path: Path) -> None:
    done = trimmed(flat)
    assert done.code == 0, done.err
    assert about(tmp_path / "flat-trimmed.gguf")["method"].startswith("output ")
    done = trimmed(flat, "--target", deep, "--out", tmp_path / "other.gguf")
    assert done.code == 0, done.err
    assert f"Next: specdec run {deep} --draft {tmp_path / 'other.gguf'}" in done.out
    by_name = {t.name: t for t in gguf.GGUFReader(flat).tensors}
    for tensor in gguf.GGUFReader(tmp_path / "other.gguf").tensors:
        is_output = tensor.name == "output.weight"
        assert (tensor.tensor_type != by_name[tensor.name].tensor_type) == is_output, tensor.name


@pytest.mark.usefixtures("costs")
def test_a_draft_without_a_large_output_matrix_is_not_trimmed(deep: Path) -> None:
    done = trimmed(deep)
    assert done.code == 10
    assert "a small part" in done.err


@pytest.fixture
def one_prompt(tmp_path: Path) -> Path:
    """For commands in a process of their own: no kinds of text, one prompt."""
    file = tmp_path / "prompt.txt"
    file.write_text(" a b c")
    return file


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>")
    for command in ("make", "trim"):
        assert inside("draft", command, tmp_path / "none.gguf").code == 3
        assert inside("draft", command, tmp_path / "page.gguf").code == 3


def started(*arguments: object, **kwargs: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*COMMAND, "draft", "make", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **CALM},
        **kwargs,
    )


def wait_for(there: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)


def candidates(cache: Path) -> dict[str, Any]:
    journals = list(cache.glob("*/journal.json"))
    found: dict[str, Any] = json.loads(journals[0].read_text())["candidates"] if journals else {}
    return found


@pytest.mark.usefixtures("costs")
def test_work_that_was_stopped_goes_on_where_it_stopped(
    deep: Path, cache: Path, tmp_path: Path, one_prompt: Path
) -> None:
    out = tmp_path / "out.gguf"
    arguments = (deep, "--threads", 1, "-n", 24, "--prompts", one_prompt, "--keep-anyway", "--out", out)
    process = started(*arguments)
    wait_for(lambda: len(candidates(cache)) > 0)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err.decode()
    assert b"Run the same command again to resume." in err
    before = candidates(cache)
    assert not out.exists()
    assert not any(name.endswith(".half") for name in names(tmp_path))

    done = inside("draft", "make", *arguments, "--json")
    assert done.code == 0, done.err
    assert "Resuming earlier work." in done.err
    now = [candidate for candidate in done.document["candidates"] if "n_bytes" in candidate]
    for figures in before.values():
        assert any(c["draft_seconds"] == figures["draft_seconds"] for c in now), "it was measured again"
    assert about(out)["source"] == "deep.gguf"


@pytest.mark.usefixtures("costs")
def test_a_disk_that_fills_up_is_told_and_leaves_nothing_half_written(
    deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_source: Path, target: Path, _changes: object, **_: object) -> None:
        target.write_bytes(b"half")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        raise ModelError("llama.cpp could not write it")

    monkeypatch.setattr(workshop, "change_apart", full)
    done = made(deep)
    assert done.code == 24
    assert "is full" in done.err
    assert names(tmp_path) == {"journal.json", ".lock"}, "the texts need not be written again"


def test_what_could_not_be_written_to_the_end_is_not_there(deep: Path, tmp_path: Path) -> None:
    """In the quantiser's own process, by a limit on the length of files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(ModelError, match="could not write deep"):
            workshop.write_changed(deep, tmp_path / "out.gguf", Changes("Q4_0"), threads=1, abort=AbortFlag())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == set()


def test_a_model_in_parts_becomes_a_draft_in_one(deep: Path, tmp_path: Path) -> None:
    first, _ = write_split(deep, tmp_path, "parts")
    workshop.write_changed(first, tmp_path / "out.gguf", Changes("Q8_0", (), (3,)), threads=1, abort=AbortFlag())
    whole = {t.name for t in gguf.GGUFReader(deep).tensors}
    assert {t.name for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors} == {n for n in whole if "blk.7." not in n}


def test_the_old_log_survives_an_output_that_cannot_be(deep: Path, flat: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "old.log", tmp_path / "there.gguf"
    log.write_text("old")
    out.write_text("old")
    for command in (("make", deep), ("trim", flat)):
        for place in (out, tmp_path / "missing" / "a.gguf", log):
            done = inside("draft", *command, "--out", place, "--log", log)
            assert done.code == 2, done.err
            assert log.read_text() == "old"
    new = tmp_path / "new"
    assert "same file" in inside("draft", "make", deep, "--out", new, "--log", new).err


@pytest.mark.parametrize("has_links", [True, False])
def test_what_has_appeared_meanwhile_is_not_replaced(
    deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def late(source: Path, half: Path, changes: Changes, *, threads: int, abort: AbortFlag) -> None:
        change(source, half, changes, threads=threads)
        abort.clear()
        if half.name.startswith(".taken"):
            (tmp_path / "taken.gguf").write_text("another's")

    if not has_links:
        monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(workshop, "change_apart", late)
    write = partial(workshop.write_changed, deep, changes=Changes("Q8_0"), threads=1, abort=AbortFlag())
    write(tmp_path / "free.gguf")
    with pytest.raises(UsageError, match=r"taken\.gguf already exists"):
        write(tmp_path / "taken.gguf")
    assert (tmp_path / "free.gguf").read_bytes().startswith(b"GGUF")
    assert (tmp_path / "taken.gguf").read_text() == "another's"
    assert not list(tmp_path.glob(".*half*"))
