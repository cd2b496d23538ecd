"""Cores and memory that are really ours, read from the files of a made-up machine."""

import os
import sys
from pathlib import Path

import pytest

from specdec_cli.planning.machine import available_memory, usable_cores

GIB = 2**30


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def cpus(folder: Path, siblings: list[str]) -> Path:
    """siblings[n] is what the kernel says of logical CPU n."""
    return write(folder, {f"cpu{n}/topology/thread_siblings_list": text for n, text in enumerate(siblings)})


@pytest.fixture
def affinity(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The CPUs on which this process may run: fill it."""
    allowed: set[int] = set()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed, raising=False)
    return allowed


@pytest.mark.parametrize(
    ("siblings", "allowed", "expected"),
    [
        (["0", "1", "2", "3"], {0, 1, 2, 3}, 4),
        (["0,4", "1,5", "2,6", "3,7"] * 2, set(range(8)), 4),
        (["0-1", "0-1", "2-3", "2-3"], {0, 1, 2, 3}, 2),
        # Two threads of one core are one core, wherever they are pinned.
        (["0,4", "1,5", "2,6", "3,7"] * 2, {0, 4}, 1),
        (["0,4", "1,5", "2,6", "3,7"] * 2, {1, 4, 6}, 3),
        # Fast cores with two threads, slow ones with one.
        (["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"], set(range(8)), 6),
        (["0", "1", "2", "3"], {2}, 1),
    ],
)
def test_cores_are_counted_and_not_threads(
    siblings: list[str], allowed: set[int], expected: int, affinity: set[int], tmp_path: Path
) -> None:
    affinity |= allowed

    assert usable_cores(cpu=cpus(tmp_path, siblings), cgroup=tmp_path / "none") == expected


def test_where_the_system_does_not_tell_siblings_every_cpu_counts(affinity: set[int], tmp_path: Path) -> None:
    affinity |= {0, 1, 5}

    assert usable_cores(cpu=tmp_path, cgroup=tmp_path) == 3


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "200000 100000"}, 2),
        # One and a half CPUs keep two threads busy most of the time.
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "50000 20000"}, 3),
        ({"cpu.max": "6400000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "300000"}, 3),
        ({}, 8),
    ],
)
def test_a_quota_of_the_container_counts(
    files: dict[str, str], expected: int, affinity: set[int], tmp_path: Path
) -> None:
    """More threads than the quota would be stopped in the middle of a pass, all of them waiting for each other."""
    affinity |= set(range(8))

    assert usable_cores(cpu=tmp_path / "cpu", cgroup=write(tmp_path / "cgroup", files)) == expected


def test_there_is_always_one_core(affinity: set[int], tmp_path: Path) -> None:
    assert affinity == set()
    assert usable_cores(cpu=tmp_path, cgroup=tmp_path) == 1


def test_other_systems_count_what_python_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert usable_cores(cpu=tmp_path, cgroup=tmp_path) == 10

    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(cpu=tmp_path, cgroup=tmp_path) == 1


def test_this_machine() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


MEMINFO = {
    "meminfo": f"MemTotal:  {32 * 2**20} kB\nMemFree:  {2**20} kB\nMemAvailable:   {16 * 2**20} kB\nBuffers: 1 kB"
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (MEMINFO, 16 * GIB),
        ({**MEMINFO, "memory.max": "max", "memory.current": str(3 * GIB)}, 16 * GIB),
        ({**MEMINFO, "memory.max": str(8 * GIB), "memory.current": str(3 * GIB)}, 5 * GIB),
        ({**MEMINFO, "memory.max": str(8 * GIB)}, 8 * GIB),
        ({**MEMINFO, "memory.max": str(64 * GIB), "memory.current": "0"}, 16 * GIB),
        ({**MEMINFO, "memory.max": str(8 * GIB), "memory.current": str(9 * GIB)}, 0),
        ({"memory.max": str(8 * GIB), "memory.current": str(3 * GIB)}, 5 * GIB),
        # What the container read from files before, models above all, makes room when it is needed.
        (
            {
                **MEMINFO,
                "memory.max": str(8 * GIB),
                "memory.current": str(7 * GIB),
                "memory.stat": f"anon {GIB}\nfile {6 * GIB}\ninactive_file {4 * GIB}\nactive_file {2 * GIB}",
            },
            7 * GIB,
        ),
        ({"meminfo": "MemTotal: 1 kB"}, None),
        ({}, None),
    ],
)
def test_memory_that_can_be_taken(files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    machine = write(tmp_path, files)

    assert available_memory(meminfo=machine / "meminfo", cgroup=machine) == expected
