"""doctor's checks, with the faults that they are to find."""

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from specdec_cli.doctor import machine, network
from specdec_cli.doctor.checkup import Check, Finding, Verdict, document, found_by, has_problem, next_command
from specdec_cli.doctor.costs import Costs, spread
from specdec_cli.doctor.network import hub, hub_check
from specdec_cli.doctor.processors import Load, load
from specdec_cli.errors import ModelError
from tests.hubstub import Fault, HubStub
from tests.secrets import TOKEN


def finding(verdict: Verdict, command: str | None = None) -> Finding:
    return Finding("name", verdict, "text", command)


# --- the frame ------------------------------------------------------------------------------------------


def test_an_error_is_a_problem_in_its_own_words() -> None:
    def look() -> Finding:
        raise ModelError("It is torn.", hint="Mend it.")

    assert found_by(Check("thing", "a thing", look, 5.0)) == Finding("thing", "problem", "It is torn. Mend it.")


def test_a_check_that_never_ends_is_given_up() -> None:
    began = time.monotonic()
    found = found_by(Check("thing", "a thing", lambda: time.sleep(30) or finding("ok"), 0.05))  # type: ignore[func-returns-value]
    assert (found.name, found.verdict) == ("thing", "warning")
    assert "did not finish within 0.05 seconds" in found.text
    assert time.monotonic() - began < 20


def test_a_mistake_in_a_check_is_not_hidden() -> None:
    def look() -> Finding:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        found_by(Check("thing", "a thing", look, 5.0))


def test_the_next_step_is_for_the_first_problem_then_the_first_warning() -> None:
    found = [finding("ok", "a"), finding("warning", "b"), finding("problem"), finding("problem", "c")]
    assert next_command(found, "d") == "c"
    assert next_command(found[:2], "d") == "b"
    assert next_command(found[:1], "d") == "d"
    assert has_problem(found)
    assert not has_problem(found[:2])
    assert document(found[:1], "d") == {
        "problems": False,
        "checks": [{"name": "name", "verdict": "ok", "text": "text", "command": "a"}],
        "next": "d",
    }


# --- the machine ----------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = machine.folder("cache", tmp_path / "file" / "specdec", "SPECDEC_CACHE")
    assert found.verdict == "problem"
    assert "cannot be written: not a directory" in found.text
    assert found.command == "export SPECDEC_CACHE=/path/to/a/writable/folder"
    assert machine.folder("history", tmp_path / "file" / "specdec", "SPECDEC_STATE").verdict == "warning"


def test_a_folder_that_is_right_is_left_as_it_was(tmp_path: Path) -> None:
    found = machine.folder("cache", tmp_path / "a" / "b", "SPECDEC_CACHE", usage=lambda _: (0, 0, 10**12))
    assert (found.verdict, found.command) == ("ok", None)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the name of a file and then none of its bytes."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    found = machine.folder("cache", tmp_path, "SPECDEC_CACHE")
    assert found.verdict == "problem"
    assert "no space left on device" in found.text
    assert found.command == "specdec list"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("free", "verdict"), [(5 * 10**7, "problem"), (10**9, "warning"), (10**11, "ok")])
def test_a_disk_with_little_room(tmp_path: Path, free: int, verdict: str) -> None:
    assert machine.folder("cache", tmp_path, "SPECDEC_CACHE", usage=lambda _: (0, 0, free)).verdict == verdict


def test_leftovers_are_what_to_delete_first(tmp_path: Path) -> None:
    (machine.cache_folder() / "drafts" / "stopped").mkdir(parents=True)
    found = machine.folder("cache", tmp_path, "SPECDEC_CACHE", usage=lambda _: (0, 0, 10))
    assert found.command == "specdec rm --leftovers"


def test_a_processor_that_can_do_more_than_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.amx, "crashes", lambda: False)
    monkeypatch.setattr(
        machine, "versions", lambda: {"llama_cpp_python": "1", "llama_cpp_features": "CPU : AVX2 = 1 | FMA = 0 |"}
    )
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : x\nflags\t\t: sse avx2 fma avx512f\n")
    found = machine.build(cpuinfo=cpuinfo)
    assert found.verdict == "warning"
    assert "also has FMA, AVX512" in found.text
    assert found.command is not None
    assert found.command.startswith('CMAKE_ARGS="-DGGML_NATIVE=on" pip install')
    cpuinfo.write_text("flags\t\t: sse avx2\n")
    assert machine.build(cpuinfo=cpuinfo).verdict == "ok"


def test_kernels_that_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.amx, "crashes", lambda: True)
    found = machine.build()
    assert found.verdict == "warning"
    assert found.command is not None
    assert found.command.startswith("CFLAGS=-mno-amx-int8 ")


def test_a_gpu_that_the_build_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_devices", list)
    monkeypatch.setattr(machine, "built_for_gpu", lambda: False)
    found = machine.gpu(drivers=["/dev/nvidiactl"])
    assert found.verdict == "warning"
    assert "-DGGML_CUDA=on" in str(found.command)
    assert machine.gpu(drivers=[]).verdict == "ok"
    monkeypatch.setattr(machine, "built_for_gpu", lambda: True)
    assert machine.gpu(drivers=[]).verdict == "warning"


@pytest.mark.parametrize(
    ("found", "verdict"), [(None, "ok"), (Load(0.1, None), "ok"), (Load(0.9, (12, "make")), "warning")]
)
def test_busy_cores(monkeypatch: pytest.MonkeyPatch, found: Load | None, verdict: str) -> None:
    monkeypatch.setattr(machine, "load", lambda: found)
    told = machine.cores()
    assert told.verdict == verdict
    if verdict == "warning":
        assert "most of all by make (process 12)" in told.text
        assert told.command == "ps -o pid,user,etime,args -p 12"


def test_the_load_is_read_from_what_grew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})

    def write(busy: int, idle: int, made: int, slept: int) -> None:
        (tmp_path / "stat").write_text(f"cpu 1 1 1 1\ncpu0 {busy} 0 0 {idle} 0 0 0 0 7 7\ncpu1 9 0 0 0 0 0 0 0\n")
        for pid, name, ticks in ((5, "a make)", made), (6, "sleep", slept)):
            folder = tmp_path / str(pid)
            folder.mkdir(exist_ok=True)
            (folder / "stat").write_text(f"{pid} ({name}) R {' '.join(['0'] * 10)} {ticks} 0 0 0\n")
            (folder / "comm").write_text(f"{name}\n")

    write(100, 100, 50, 50)
    found = load(proc=tmp_path, sleep=lambda _: write(175, 125, 110, 51))
    assert found == Load(0.75, (5, "a make)"))
    assert load(proc=tmp_path / "nothing") is None


@pytest.mark.parametrize(("free", "verdict"), [(None, "ok"), (10**10, "ok"), (10**8, "warning")])
def test_little_memory(monkeypatch: pytest.MonkeyPatch, free: int | None, verdict: str) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: free)
    assert machine.memory().verdict == verdict


# --- the Hub --------------------------------------------------------------------------------------------


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStub]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with HubStub(tmp_path) as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.endpoint)
        yield stub


def test_a_hub_that_answers(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    found = hub(offline=False)
    assert (found.verdict, found.text) == (
        "ok",
        f"{stub.endpoint} answers; no token is set; only gated models need one.",
    )
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert hub(offline=False).text == f"{stub.endpoint} answers, and takes the token of stub."


def test_a_token_that_is_refused(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    stub.faults.append(Fault(path="whoami", kind="status", status=401, times=-1))
    found = hub(offline=False)
    assert (found.verdict, found.command) == ("problem", "hf auth login")


def test_a_mirror_without_accounts(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    stub.faults.append(Fault(path="whoami", kind="status", status=404, times=-1))
    assert hub(offline=False).text == f"{stub.endpoint} answers; whether the token is right is not known."


@pytest.mark.usefixtures("stub")
def test_a_dead_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    found = hub(offline=False)
    assert (found.verdict, found.command) == ("warning", "curl -sSI http://127.0.0.1:9")
    assert "need no network" in found.text


def test_a_hub_that_says_nothing(stub: HubStub) -> None:
    stub.faults.append(Fault(path="whoami", kind="hang", after=30, times=-1))
    found = found_by(hub_check(offline=False, seconds=0.3))
    assert found.verdict == "warning"
    assert "need no network" in found.text


def test_offline_asks_nothing(stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub(offline=True).verdict == "skipped"
    monkeypatch.setattr(network, "is_offline", lambda: True)
    assert hub(offline=False).verdict == "skipped"
    assert stub.log == []


# --- costs ----------------------------------------------------------------------------------------------


def costs(passes: dict[int, float], draft: float | None = None) -> Costs:
    return Costs(64, {width: [ms / 1000] * 3 for width, ms in passes.items()}, [draft / 1000] * 3 if draft else [])


def test_widths_between_are_on_the_line() -> None:
    assert costs({1: 10, 3: 14, 5: 30}).curve.target == pytest.approx({1: 0.01, 2: 0.012, 3: 0.014, 4: 0.022, 5: 0.03})


def test_what_drafts_can_be_worth() -> None:
    cheap = costs({1: 10, 2: 11, 3: 12, 5: 14}, 1)
    assert cheap.bound() == (4, pytest.approx(5 * 10 / 19))
    assert cheap.expected([1.0, 0.0]) == (1, pytest.approx(20 / 13))
    assert cheap.needed() == pytest.approx(0.22, abs=0.01)
    dear = costs({1: 10, 2: 11, 3: 12, 5: 14}, 12)
    assert dear.bound()[1] < 1
    assert dear.needed() is None
    assert dear.bound_without_draft_costs() == pytest.approx(50 / 14)


def test_the_spread_leaves_the_outermost_tenths_alone() -> None:
    seconds = [*[1.0] * 8, 1.2, 9.0]
    assert spread(seconds) < 1.1
    assert spread([1.0] * 10) == spread([1.0]) == spread([]) == 0
