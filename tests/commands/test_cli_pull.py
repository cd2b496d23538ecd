"""pull, plan, presets, list, rm, verify-files and run from the Hub: a user's way, against a stand-in."""

import errno
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from specdec_cli.errors import ModelError, OutOfMemory
from specdec_cli.hub.download import check_file
from specdec_cli.llama.model import read_vocabulary
from tests.cli import COMMAND, Done, Models, inside, specdec
from tests.hubstub import Fault, HubStub
from tests.planted import make_vocab, random_chain, write_planted, write_split
from tests.secrets import PASSWORD, TOKEN
from tests.shop import DRAFT, DRAFT_REPO, TARGET, TARGET_REPO, add, fill, settings
from tests.terminals import Terminal

PAIR = ("--target", f"{TARGET_REPO}:Q8_0", "--draft", f"{DRAFT_REPO}:Q4_0")


@dataclass
class Desk:
    """One user's machine: a cache, a config folder, a Hub to reach."""

    stub: HubStub
    folder: Path
    target: Path
    draft: Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def env(self) -> dict[str, str]:
        return {
            "HF_ENDPOINT": self.stub.endpoint,
            "HF_HUB_CACHE": str(self.folder / "hub"),
            "HF_HOME": str(self.folder / "hf"),
            "SPECDEC_CONFIG": str(self.folder / "config"),
            "NO_PROXY": "127.0.0.1",
        }

    def __call__(self, *arguments: object, **env: str) -> Done:
        """In this process, which huggingface_hub has read the environment of already, and no other for each file."""
        with self.monkeypatch.context() as patch:
            patch.setattr("specdec_cli.hub.inspect.read_vocabulary_apart", read_vocabulary)
            for name, value in {**self.env, **env}.items():
                patch.setenv(name, value)
            patch.setattr(constants, "HF_HUB_CACHE", {**self.env, **env}["HF_HUB_CACHE"])
            patch.setattr(constants, "HF_HUB_OFFLINE", "HF_HUB_OFFLINE" in env)
            return inside(*arguments)

    def outside(self, *arguments: object, **env: str) -> Done:
        """In a process of its own."""
        return specdec(*arguments, env={**self.env, **env})

    def pull(self, *arguments: object, **env: str) -> Done:
        return self("pull", *PAIR, *arguments, **env)

    @property
    def bodies(self) -> int:
        """How many bytes of weights the Hub was asked for."""
        return sum(r["sent"] for r in self.stub.log if r["method"] == "GET" and "/cdn/" in r["path"])

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "hub").rglob("*.gguf"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def desk(tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    fill(tmp_path / "shop", models.words, models.draft)
    with HubStub(tmp_path / "shop") as stub:
        yield Desk(stub, tmp_path, models.words, models.draft, monkeypatch)


def only_error(done: Done, code: int) -> str:
    """What happened and what to do, after notes."""
    assert done.code == code, done.err
    notes, error, rest = done.err.rpartition("Error: ")
    assert error, done.err
    assert rest.splitlines()[-1].startswith("Hint: "), done.err
    assert "Traceback" not in notes
    return error + rest


# --- the whole way ----------------------------------------------------------------------------------------


def test_pull_a_pair_save_it_run_it(desk: Desk) -> None:
    pulled = desk.outside("pull", *PAIR, "--save", "mine")
    assert (pulled.code, pulled.out) == (0, ""), pulled.err
    said = pulled.err.splitlines()[1:]  # after "Reading headers ..."
    assert f"target: {TARGET} ({TARGET_REPO}, " in said[0]
    assert "licence apache-2.0" in said[0]
    assert f"draft: {DRAFT} ({DRAFT_REPO}, " in said[1]
    assert said[2].startswith("tokenizers match")
    assert re.fullmatch(r"memory: about \S+ MB of \S+ GB free: fits", said[3])
    assert said[4].startswith("to download: ")
    assert said[-1].endswith("Next: specdec run mine")
    assert desk.files == [DRAFT, TARGET]

    desk.stub.log.clear()
    run = desk.outside("run", "mine", "a b", "-n", 8, "-k", 2, "--temp", 0, "--raw", "--json")
    assert run.document["stats"]["drafted"] > 0
    same = desk("run", desk.target, "a b", "-n", 8, "--temp", 0, "--raw", "--json", "--draft", desk.draft)
    assert run.document["token_ids"] == same.document["token_ids"]
    assert desk.stub.log == [], "files that are here need no network"


def test_a_pull_of_what_is_here_asks_nothing(desk: Desk) -> None:
    desk.pull("--save", "mine")
    desk.stub.log.clear()
    again = desk("pull", "mine")
    assert again.code == 0, again.err
    assert "already downloaded" in again.err
    assert "nothing to download" in again.err
    assert desk.stub.log == []


def test_the_headers_are_judged_before_any_weights(desk: Desk) -> None:
    add(
        desk.stub.root,
        "acme/other-GGUF",
        "other-Q4_0.gguf",
        write_planted(desk.folder / "o.gguf", random_chain(320, 1), vocab=make_vocab(320, kind="gpt2")),
    )
    done = desk("pull", "--target", TARGET_REPO, "--draft", "acme/other-GGUF")
    assert "Error: The tokenizer of other-Q4_0.gguf (draft) differs from that of target-Q8_0.gguf" in only_error(
        done, 4
    )
    assert desk.files == []
    forced = desk("pull", "--target", TARGET_REPO, "--draft", "acme/other-GGUF", "--force")
    assert forced.code == 0, forced.err
    assert desk.files == ["other-Q4_0.gguf", TARGET]


def test_a_hub_target_and_a_draft_that_is_here(desk: Desk) -> None:
    done = desk("pull", "--target", TARGET_REPO, "--draft", desk.draft, "--save", "mixed")
    assert done.code == 0, done.err
    assert desk.files == [TARGET]
    run = desk("run", "mixed", "a b", "-n", 40, "-k", 2, "--raw", "--json")
    assert run.document["stats"]["drafted"] > 0


def test_json_names_the_files(desk: Desk) -> None:
    done = desk.pull("--json")
    assert (done.code, done.err) == (0, "")
    (pair,) = json.loads(done.out)["pairs"]
    assert [file["role"] for file in pair["files"]] == ["target", "draft"]
    for file, source in zip(pair["files"], (desk.target, desk.draft), strict=True):
        assert Path(file["path"]).read_bytes() == source.read_bytes()
        assert file["hub"]["bytes"] == source.stat().st_size
        assert len(file["hub"]["revision"]) == 40


def test_quiet_says_nothing(desk: Desk) -> None:
    done = desk.pull("--quiet")
    assert (done.code, done.out, done.err) == (0, "", ""), done.err


# --- faults, as a user meets them -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "No preset given."),
        (("demo", "--target", "a/b"), "A preset already has a target and a draft."),
        (("--draft", "a/b"), "--draft needs --target."),
        (("--target", "nonsense"), "'nonsense' is not a model on the Hub."),
        (("demo", "--save", "x"), "--save is for pairs given with --target and --draft."),
        (("--target", "a/b", "--save", "demo"), "The preset 'demo' already exists."),
        (("--target", "a/b", "--save", "../x"), "Invalid preset name: '../x'."),
        (("demmo",), "No file or preset is called 'demmo'."),
    ],
)
def test_wrong_use(desk: Desk, arguments: tuple[str, ...], words: str) -> None:
    assert f"Error: {words}" in only_error(desk("pull", *arguments), 2)
    assert desk.stub.log == []


def test_demo_needs_nothing_from_the_hub(desk: Desk) -> None:
    done = desk("pull", "demo")
    assert (done.code, desk.stub.log) == (0, [])
    assert "needs no download" in done.err


def test_a_mistyped_quant(desk: Desk) -> None:
    add(desk.stub.root, TARGET_REPO, "target-BF16.gguf", desk.target)
    error = only_error(desk("pull", "--target", f"{TARGET_REPO}:Q8_1"), 22)
    assert "has no Q8_1; it has BF16, Q8_0." in error
    assert "Did you mean Q8_0?" in error
    assert desk.files == []


def test_a_gated_pair_stops_before_the_first_byte(desk: Desk) -> None:
    settings(desk.stub.root, DRAFT_REPO, gated="manual", token="hf_x")
    error = only_error(desk.pull(), 20)
    assert "is gated, and no token was found." in error
    assert f"{desk.stub.endpoint}/{DRAFT_REPO}" in error
    assert desk.files == []
    secret = "hf_thisisnotforprinting"
    refused = desk.pull(HF_TOKEN=secret, SPECDEC_DEBUG="")
    assert "your token has no access" in only_error(refused, 21)
    assert secret not in refused.err + refused.out
    assert desk.pull(HF_TOKEN="hf_x").code == 0


def test_no_network_and_no_such_model(desk: Desk) -> None:
    assert "does not exist on the Hub" in only_error(desk("pull", "--target", "acme/none"), 22)
    desk.stub.endpoint = "http://127.0.0.1:1"
    begun = time.monotonic()
    done = specdec(
        "pull", "--target", "acme/none", env={**desk.env, "HTTP_PROXY": "http://127.0.0.1:1", "NO_PROXY": ""}
    )
    assert "Cannot reach the proxy 127.0.0.1" in only_error(done, 26)
    assert time.monotonic() - begun < 20


def test_a_pair_that_does_not_fit_the_disk(desk: Desk) -> None:
    """Both files together, before the first byte of either."""
    small = desk.folder / "disk"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no right to mount a small disk")
    try:
        error = only_error(desk.pull(HF_HUB_CACHE=str(small / "hub")), 24)
        assert re.search(
            r"The download needs 10\.3 MB, plus 67\.1 MB kept free, but the disk of \S+ has 1\.0 MB free", error
        )
        assert not list(small.rglob("*.gguf"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_damaged_file_is_named_and_the_next_pull_is_whole(desk: Desk) -> None:
    desk.stub.faults.append(Fault(path="draft-Q4_0", kind="corrupt", times=-1))
    # The header is read first: a damaged one is refused there.
    first = desk.pull()
    assert first.code in (3, 29), first.err
    assert "Traceback" not in first.err
    assert DRAFT not in desk.files
    desk.stub.faults.clear()
    assert desk.pull().code == 0
    assert desk.files == [DRAFT, TARGET]


def test_ctrl_c_keeps_what_came_and_the_next_pull_goes_on(desk: Desk) -> None:
    desk.pull()  # the small one is there
    big = write_planted(desk.folder / "big.gguf", random_chain(640, 3))
    add(desk.stub.root, "acme/big-GGUF", "big-F32.gguf", big)
    size = big.stat().st_size
    command = [*COMMAND, "pull", "--target", "acme/big-GGUF"]
    for number in (signal.SIGINT, signal.SIGTERM):
        desk.stub.faults.append(Fault(path="/cdn/", kind="slow", after=8 * 2**20, times=-1))
        process = subprocess.Popen(command, env={**os.environ, **desk.env}, stderr=subprocess.PIPE, text=True)
        for line in process.stderr or ():
            if re.search(r"\b[1-9]\d% of", line):
                break
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 128 + number, err
        assert "Traceback" not in err
        (part,) = (desk.folder / "hub").rglob("*.specdec.incomplete")
        kept = part.stat().st_size
        assert 0 < kept < size
    desk.stub.faults.clear()
    desk.stub.log.clear()
    done = desk(*command[len(COMMAND) :])
    assert f"resumes at {kept / 1e6:.1f} MB" in done.err
    sent = [r["sent"] for r in desk.stub.log if r["method"] == "GET" and "/cdn/" in r["path"]]
    assert sent[-1] == size - kept


# --- offline ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "env"), [(("--offline",), {}), ((), {"HF_HUB_OFFLINE": "1"})])
def test_offline_names_the_file_and_the_command(desk: Desk, arguments: tuple[str, ...], env: dict[str, str]) -> None:
    desk.pull("--save", "mine")
    assert desk("run", "mine", "a b", "-n", 2, "--raw", *arguments, **env).code == 0
    desk("rm", "mine", "--yes")
    desk.stub.log.clear()
    error = only_error(desk("run", "mine", "a b", *arguments, **env), 30)
    assert f"{TARGET} of {TARGET_REPO} is not on this machine." in error
    assert "Hint: Download it: specdec pull mine" in error
    assert desk.stub.log == []


def test_pull_in_offline_mode_says_so(desk: Desk) -> None:
    assert "HF_HUB_OFFLINE is set" in only_error(desk.pull(HF_HUB_OFFLINE="1"), 30)
    assert desk.stub.log == []


@pytest.mark.parametrize("how", ["offline", "away"])
def test_a_complete_cache_needs_no_network(desk: Desk, how: str) -> None:
    """Also by the names of the Hub, and on a branch that nobody can look up now."""
    desk.pull("--save", "mine")
    files = desk.files
    desk.stub.log.clear()
    env = {"HF_HUB_OFFLINE": "1"} if how == "offline" else {"HF_ENDPOINT": "http://127.0.0.1:1"}
    for arguments in (PAIR, ("mine",), ("--target", TARGET_REPO)):
        again = desk("pull", *arguments, **env)
        assert again.code == 0, again.err
        assert "nothing to download" in again.err
    assert (desk.files, desk.stub.log) == (files, [])
    code = {"offline": 30, "away": 25}[how]
    only_error(desk("pull", "--target", f"{TARGET_REPO}:Q4_0", **env), code)
    only_error(desk("pull", "--target", f"{TARGET_REPO}@v2", **env), code)


def test_no_network_ends_soon_and_in_words(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    error = only_error(desk.pull(HF_ENDPOINT="http://127.0.0.1:1"), 25)
    assert error.startswith("Error: Cannot reach 127.0.0.1: connection refused.")
    assert sum(slept) <= 2


def test_a_pulled_file_with_wrong_bytes_is_fetched_again(desk: Desk) -> None:
    """A pinned file asks no network, so its note of a hash is all that tells."""
    desk.pull("--save", "mine")
    place = next((desk.folder / "hub").rglob(TARGET))
    data = place.read_bytes()
    place.resolve().write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    again = desk("pull", "mine")
    assert again.code == 0, again.err
    assert f"{TARGET} is damaged." in again.err
    assert place.read_bytes() == data


def test_a_password_is_not_said_again(desk: Desk) -> None:
    """Wherever an address is taken: Done looks for it in everything that a command prints."""
    address = desk.stub.endpoint.replace("//", f"//me:{PASSWORD}@")
    assert desk.pull(HF_ENDPOINT=address, HF_TOKEN=TOKEN).code == 0
    desk("rm", TARGET_REPO, "--yes")
    for path in ("/revision/", "/tree/", "/resolve/", "/cdn/"):
        desk.stub.faults = [Fault(path=path, method="*", kind="status", status=404, times=-1)]
        assert desk.pull(HF_ENDPOINT=address, HF_TOKEN=TOKEN).code != 0
    for text in (address, f"{address}/{TARGET_REPO}"):
        assert desk("pull", "--target", text).code == 2
        assert desk("plan", text).code != 0
        assert desk("run", text, "a").code != 0


def test_missing_files_are_offered_on_a_terminal(desk: Desk) -> None:
    desk.pull("--save", "mine")
    desk("rm", "mine", "--yes")
    with Terminal("run", "mine", "a b", "-n", "4", "--raw", "--plain", env=desk.env) as terminal:
        terminal.wait_for(b"Download it now")
        terminal.send(b"n\n")
        assert terminal.end() == 30
        terminal.assert_clean()
    assert desk.files == []
    with Terminal("run", "mine", "a b", "-n", "4", "--raw", "--plain", env=desk.env) as terminal:
        terminal.wait_for(b"Download it now")
        terminal.send(b"\n")
        assert terminal.end() == 0
        terminal.assert_clean()
    assert desk.files == [DRAFT, TARGET]


def test_bars_on_a_terminal_leave_it_as_it_was(desk: Desk) -> None:
    desk.stub.faults.append(Fault(path="/cdn/", kind="slow", after=10 * 2**20, times=-1))
    with Terminal("pull", *PAIR, env=desk.env) as terminal:
        terminal.wait_for(b"MB/s")
        assert terminal.end() == 0
        terminal.assert_clean()
        text = terminal.text
    assert TARGET in text
    assert "in all" in text


# --- presets, list, rm, verify-files ----------------------------------------------------------------------


def test_presets_lists_sizes_and_what_is_here(desk: Desk) -> None:
    desk.pull("--save", "mine")
    done = desk("presets")
    assert done.code == 0, done.err
    rows = {line.split()[0]: line for line in done.out.splitlines() if line}
    assert re.search(r"mine +\S+ MB +yes +yes ", rows["mine"])
    assert list(rows).index("mine") < list(rows).index("smollm2-1.7b")  # what is here comes first
    assert re.search(r"llama-3.1-8b +5.73 GB +(yes|no|\?) +no ", rows["llama-3.1-8b"])
    assert re.search(r"demo +~6\d\d.\d MB +yes +no ", rows["demo"])
    assert re.search(r"gemma-3-12b +~8.\d\d GB ", rows["gemma-3-12b"])
    assert "?" not in {word for line in rows.values() for word in line.split()[1:2]}
    document = json.loads(desk("presets", "--json").out)["presets"]
    assert {"name", "bytes", "estimated", "fits", "here", "gated", "unconfirmed", "description"} == set(document[0])


def test_presets_show_tells_what_is_not_confirmed(desk: Desk) -> None:
    shown = desk("presets", "llama-3.1-8b").out
    assert desk("presets", "show", "llama-3.1-8b").out == shown
    for words in ("bartowski/Llama-3.2-1B-Instruct-GGUF", "sha256 6f85a640", "72% accepted", "#5877", "unconfirmed"):
        assert words in shown
    assert "Did you mean 'llama-3.1-8b'?" in only_error(desk("presets", "show", "llama-3.1-8"), 2)
    assert json.loads(desk("presets", "show", "qwen3-8b", "--json").out)["k"] > 0


def test_a_broken_preset_of_ones_own_hides_no_other(desk: Desk) -> None:
    folder = desk.folder / "config" / "presets"
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_text("targit: {}\n")
    done = desk("presets")
    assert done.code == 0
    assert "targit is not a key of a preset" in done.err
    assert "llama-3.1-8b" in done.out


def test_list_and_rm(desk: Desk) -> None:
    assert "No models on this machine yet" in desk("list").out
    desk.pull("--save", "mine")
    desk("pull", "--target", TARGET_REPO, "--save", "alone")
    document = json.loads(desk("list", "--json").out)
    sizes = {pair["name"]: pair["bytes"] for pair in document["pairs"]}
    target, draft = desk.target.stat().st_size, desk.draft.stat().st_size
    assert sizes == {"mine": target + draft, "alone": target}
    assert document["total_bytes"] == target + draft
    assert "Deleting needs confirmation" in only_error(desk("rm", "mine"), 2)
    gone = desk("rm", "mine", "--yes")
    assert f"{TARGET} was kept: also used by alone." in gone.err
    assert desk.files == [TARGET]
    assert desk("rm", "alone", "--yes").code == 0
    assert desk.files == []
    assert "No files of alone on this machine." in desk("rm", "alone", "--yes").err


def test_verify_files_finds_the_one_that_rotted(desk: Desk) -> None:
    desk.pull("--save", "mine")
    assert desk("verify-files").out.splitlines() == [f"ok  {TARGET}", f"ok  {DRAFT}"]
    (place,) = (desk.folder / "hub").rglob(DRAFT)
    with place.resolve().open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    done = desk("verify-files", "mine")
    assert "1 of 2 files are damaged." in only_error(done, 29)
    assert done.out == f"ok  {TARGET}\n"
    assert desk.files == [TARGET]
    assert "unfinished or damaged file" in desk("list").out
    assert desk("rm", "--leftovers", "--yes").code == 0
    assert desk("run", "mine", "a").code == 30


# --- plan -------------------------------------------------------------------------------------------------


def planned(desk: Desk, *arguments: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(desk("plan", *arguments, "--json").out)
    return document


def test_plan_reads_headers_only(desk: Desk) -> None:
    there = planned(desk, f"{TARGET_REPO}:Q8_0", "--draft", DRAFT_REPO)
    assert desk.files == []
    here = planned(desk, desk.target, "--draft", desk.draft)
    for role in ("target", "draft"):
        assert {there[role].pop("file"), here[role].pop("file")} & {TARGET, DRAFT}
    assert there["target"] == here["target"]
    assert there["draft"] == here["draft"]
    assert there["fits"]


def test_plan_says_what_would_fit(desk: Desk) -> None:
    needed = planned(desk, desk.target, "--draft", desk.draft)["ram_needed"]
    done = desk("plan", desk.target, "--draft", desk.draft, "--ram", f"{(needed - 10**6) // 1024}K")
    assert "It does not fit." in only_error(done, 5)
    assert "TOO LITTLE" in done.out
    assert "(--kv q8_0 --kv-draft q8_0)" in done.out
    assert "  - " in done.out


def test_plan_for_another_machines_gpu(desk: Desk) -> None:
    document = planned(desk, desk.target, "--vram", "8G")
    assert document["gpus"] == [{"name": "GPU", "free": 8 * 2**30, "used": document["gpu_needed"]}]
    assert document["target"]["gpu_layers"] == 3
    assert document["target"]["gpu"] > desk.target.stat().st_size // 2
    none = planned(desk, desk.target, "--vram", "0")
    assert (none["gpus"], none["target"]["gpu_layers"]) == ([], 0)
    assert "Invalid --vram: '8X'" in only_error(desk("plan", desk.target, "--vram", "8X"), 2)


def test_plan_grows_with_the_context_and_shrinks_with_the_cache(desk: Desk) -> None:
    def cache(*arguments: object) -> int:
        return int(planned(desk, desk.target, *arguments)["target"]["cache"])

    assert cache("--ctx", 4096) == 2 * cache("--ctx", 2048)
    assert cache("--ctx", 2048, "--kv", "q8_0") == cache("--ctx", 2048) * 34 // 64


HOSTILE = {
    "a web page": b"<!doctype html>" * 10_000,
    "2^63 keys": b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (2**63).to_bytes(8, "little") + bytes(1000),
    "a million keys": b"GGUF"
    + (3).to_bytes(4, "little")
    + bytes(8)
    + (10**6).to_bytes(8, "little")
    + bytes(20 * 10**6),
    "a key past the end": b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little") + b"\xff" * 100,
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("command", ["plan", "pull"])
def test_a_hostile_header_is_refused_at_once_and_nothing_is_fetched(desk: Desk, command: str, what: str) -> None:
    add(desk.stub.root, "acme/bad-GGUF", "bad-Q8_0.gguf", HOSTILE[what])
    model = ("--target", "acme/bad-GGUF") if command == "pull" else ("acme/bad-GGUF",)
    begun = time.monotonic()
    assert "bad-Q8_0.gguf" in only_error(desk(command, *model), 3)
    assert time.monotonic() - begun < 2
    assert desk.files == []
    assert desk.bodies <= 4 * 2**20


# --- split models -----------------------------------------------------------------------------------------


def test_a_split_model_is_planned_pulled_checked_and_run(desk: Desk) -> None:
    for part in write_split(desk.target, desk.folder, "big-Q8_0", 3):
        add(desk.stub.root, "acme/big-GGUF", f"Q8_0/{part.name}", part)
    names = [f"big-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    whole, parts = planned(desk, desk.target), planned(desk, "acme/big-GGUF:Q8_0")
    assert parts["target"]["weights"] == whole["target"]["weights"]
    done = desk("pull", "--target", "acme/big-GGUF:Q8_0", "--draft", DRAFT_REPO, "--save", "big")
    assert done.code == 0, done.err
    assert desk.files == [*names, DRAFT]
    assert desk("verify-files", "big").out.splitlines() == [f"ok  {name}" for name in (*names, DRAFT)]
    run = desk("run", "big", "a b", "-n", 6, "--raw", "--temp", 0, "--json")
    same = desk("run", desk.target, "a b", "-n", 6, "--raw", "--temp", 0, "--json")
    assert run.document["token_ids"] == same.document["token_ids"]
    assert desk("rm", "big", "--yes").code == 0
    assert desk.files == []


# --- what went wrong once ---------------------------------------------------------------------------------


def test_a_later_part_of_a_split_model_stands_for_all_of_it(desk: Desk) -> None:
    parts = write_split(desk.target, desk.folder, "shards")
    told = f"{parts[1].name} is a later part of a split model; opening its first part, {parts[0].name}."
    draft = write_split(desk.draft, desk.folder, "small")
    asked = ("a b", "-n", 4, "--raw", "--temp", 0, "--json")
    run = desk("run", parts[1], *asked, "--draft", draft[1])
    assert told in run.err
    assert f"opening its first part, {draft[0].name}." in run.err
    assert run.document["token_ids"] == desk("run", desk.target, *asked).document["token_ids"]
    assert told in desk("plan", parts[1]).err
    for part in parts:
        add(desk.stub.root, "acme/shards-GGUF", part.name, part)
    pulled = desk("pull", "--target", f"acme/shards-GGUF:{parts[1].name}", "--save", "shards")
    assert (pulled.code, told in pulled.err) == (0, True), pulled.err
    assert desk("run", "shards", "a b", "-n", 2, "--raw").code == 0


# --- plan without a network -------------------------------------------------------------------------------

AWAY = {"HF_ENDPOINT": "http://127.0.0.1:1"}


def test_plan_without_a_network_counts_what_the_preset_knows(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    fits = desk("plan", "llama-3.1-8b", "--ram", "8G", "--vram", "0", **AWAY)
    assert (fits.code, slept) == (0, [])
    assert "weights  5.73 GB of 8.59 GB free (target 4.92 GB, draft 807.7 MB)" in fits.out
    assert "Counting only the weights" in fits.err
    assert "The weights alone do not fit." in only_error(
        desk("plan", "llama-3.1-8b", "--ram", "2G", "--vram", "0", **AWAY), 5
    )
    alone = desk("plan", "llama-3.1-8b", "--draft", "none", "--ram", "8G", "--vram", "0", "--json", HF_HUB_OFFLINE="1")
    assert json.loads(alone.out) == {"weights": {"target": 4920739232}, "free": 8 * 2**30, "fits": None}


@pytest.mark.parametrize("arguments", [("acme/none",), ("llama-3.1-8b", "--draft", "acme/none"), ("gemma-3-4b",)])
def test_plan_without_a_network_and_without_sizes_says_so(desk: Desk, arguments: tuple[str, ...]) -> None:
    assert "Cannot reach 127.0.0.1" in only_error(desk("plan", *arguments, **AWAY), 25)


def test_a_file_that_was_cut_on_this_disk_is_fetched_anew(desk: Desk) -> None:
    desk.pull("--save", "mine")
    (place,) = (desk.folder / "hub").rglob(DRAFT)
    with place.resolve().open("r+b") as file:
        file.truncate(1000)
    done = desk("pull", "mine")
    assert done.code == 0, done.err
    assert "It is set aside and downloaded again." in done.err
    assert (desk.folder / "hub").exists()
    assert desk("verify-files", "mine").code == 0


@pytest.mark.parametrize("error", [ModelError("unknown architecture.", hint="-"), OutOfMemory("too large.", hint="-")])
@pytest.mark.parametrize("is_hashed", [True, False])
def test_a_file_whose_bytes_are_right_is_never_put_aside(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: ModelError, is_hashed: bool
) -> None:
    def refuse(_: Path) -> None:
        raise error

    desk.pull("--save", "mine")
    (place,) = (desk.folder / "hub").rglob(DRAFT)
    if not is_hashed:  # as where links are not allowed
        place.resolve().rename(place)
    before = sorted((desk.folder / "hub").rglob("*.gguf"))
    monkeypatch.setattr("specdec_cli.hub.pull.examine_local", refuse)
    assert str(error) in only_error(desk("pull", "mine", **AWAY), error.exit_code)
    assert sorted((desk.folder / "hub").rglob("*.gguf")) == before
    assert place.is_file()


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", closed)
    for etag in (None, "0" * 64):
        with pytest.raises(PermissionError):
            check_file(tmp_path / "a.gguf", etag)


def test_a_pair_with_a_file_of_this_machine_is_found_from_any_folder(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.draft.parent)
    done = desk("pull", "--target", TARGET_REPO, "--draft", f"./{desk.draft.name}", "--save", "mixed")
    assert done.code == 0, done.err
    monkeypatch.chdir(desk.folder)
    assert desk("run", "mixed", "a b", "-n", 2, "--raw").code == 0


def test_a_preset_is_written_whole_and_never_over_another(desk: Desk) -> None:
    assert desk.pull("--save", "mine").code == 0
    folder = desk.folder / "config" / "presets"
    assert [path.name for path in folder.iterdir()] == ["mine.yaml"]
    assert desk.pull("--save", "mine").code == 0, "the same pair is the same preset"
    other = desk("pull", "--target", TARGET_REPO, "--save", "mine")
    assert "The preset 'mine' already exists, for another pair." in only_error(other, 2)
    assert "The preset 'demo' already exists." in only_error(desk.pull("--save", "demo"), 2)


def test_all_names_are_known_before_the_first_byte(desk: Desk) -> None:
    desk.pull("--save", "mine")
    desk("rm", "mine", "--yes")
    desk.stub.log.clear()
    only_error(desk("pull", "mine", "typo"), 2)
    assert (desk.files, desk.stub.log) == ([], [])


def test_only_what_a_run_needs_is_offered_and_fetched(desk: Desk) -> None:
    desk.pull("--save", "mine")
    desk("rm", "mine", "--yes")
    arguments = ("run", "mine", "a b", "-n", "4", "--raw", "--plain", "--draft", "ngram")
    with Terminal(*arguments, env=desk.env) as terminal:
        terminal.wait_for(b"Download it now")
        terminal.send(b"\n")
        assert terminal.end() == 0
    assert desk.files == [TARGET]


def test_a_repository_without_a_preset_can_be_deleted(desk: Desk) -> None:
    desk.pull()
    assert "(no preset)" in desk("list").out
    assert desk("rm", TARGET_REPO, DRAFT_REPO, "--yes").code == 0
    assert desk.files == []


def test_a_branch_that_cannot_be_noted_is_told(desk: Desk) -> None:
    refs = desk.folder / "hub" / f"models--{TARGET_REPO.replace('/', '--')}" / "refs"
    refs.parent.mkdir(parents=True)
    refs.write_text("a file where a folder should be")
    assert "Cannot write to" in only_error(desk("pull", "--target", TARGET_REPO), 24)


def test_words_of_the_hub_stay_in_their_line(desk: Desk) -> None:
    settings(desk.stub.root, TARGET_REPO, licence="mit\nError: your disk is broken.\x1b[2J")
    done = desk("pull", "--target", TARGET_REPO)
    assert "licence mit Error: your disk is broken." in done.err.splitlines()[1]
    assert "\x1b" not in done.err


@pytest.mark.parametrize("kind", ["gemma4", "bert", "rwkv"])
def test_a_tokenizer_that_ends_llama_cpp_does_not_end_us(desk: Desk, kind: str) -> None:
    data = desk.target.read_bytes()
    key = b"tokenizer.ggml.model" + (8).to_bytes(4, "little")
    at = data.index(key) + len(key)
    n = int.from_bytes(data[at : at + 8], "little")
    text = kind.encode()
    made_up = data[:at] + len(text).to_bytes(8, "little") + text + data[at + 8 + n :]
    add(desk.stub.root, "acme/evil-GGUF", "evil-Q8_0.gguf", made_up)
    for command in (("pull", "--target", "acme/evil-GGUF"), ("plan", "acme/evil-GGUF")):
        done = desk.outside(*command)
        assert done.code in (0, 3), done.err
        assert "Traceback" not in done.err


def test_pairs_with_the_same_files_are_deleted_together(desk: Desk) -> None:
    desk.pull("--save", "one")
    desk.pull("--save", "two")
    assert desk("rm", "one", "two", "one", "--yes").code == 0
    assert desk.files == []


def test_a_file_that_stays_names_who_uses_it(desk: Desk) -> None:
    desk.pull("--save", "one")
    desk.pull("--save", "two")
    done = desk("rm", "one", "--yes")
    assert f"{TARGET} was kept: also used by two." in done.err
    assert "Deleted" not in done.err
    assert desk.files == [DRAFT, TARGET]


def test_what_was_pulled_says_how_it_is_run(desk: Desk) -> None:
    last = desk.pull().err.splitlines()[-1]
    assert re.fullmatch(rf"Next: specdec run \S+/{TARGET} --draft \S+/{DRAFT}", last)
    arguments = last.removeprefix("Next: specdec ").split()
    assert desk(*arguments, "a b", "-n", 2, "--raw").code == 0
    error = only_error(desk("run", f"{TARGET_REPO}:Q8_0", "a b"), 30)
    assert f"specdec pull --target {TARGET_REPO}:Q8_0 --save NAME" in error


def test_a_licence_that_nobody_tells_is_unknown(desk: Desk) -> None:
    settings(desk.stub.root, DRAFT_REPO)
    desk.pull("--save", "mine")
    assert "licence       apache-2.0 (target) and unknown (draft)" in desk("presets", "show", "mine").out


@pytest.mark.parametrize(
    ("env", "code", "words"),
    [
        ({"SSL_CERT_FILE": "/nowhere.pem"}, 27, "/nowhere.pem has no readable certificates"),
        ({"SSL_CERT_FILE": "/dev/null"}, 27, "/dev/null has no readable certificates"),
        ({"ALL_PROXY": "socks5://127.0.0.1:1"}, 26, "A SOCKS proxy needs another package."),
    ],
)
def test_settings_of_the_environment_that_cannot_be(desk: Desk, env: dict[str, str], code: int, words: str) -> None:
    done = desk.outside("pull", *PAIR, **env)
    assert words in only_error(done, code)


def test_a_size_needs_its_unit(desk: Desk) -> None:
    assert "Invalid --ram: '8'." in only_error(desk("plan", desk.target, "--ram", "8"), 2)


def test_ctrl_c_at_a_question_is_ctrl_c(desk: Desk) -> None:
    desk.pull("--save", "mine")
    with Terminal("rm", "mine", env=desk.env) as terminal:
        terminal.wait_for(b"Delete mine?")
        terminal.send(b"\x03")
        assert terminal.end() == 130
    assert desk.files == [DRAFT, TARGET]
