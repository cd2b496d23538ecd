"""What this machine gives us: cores that are really ours, memory that is really free."""

import os
import platform
import sys
from pathlib import Path

_CPU = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(*, cpu: Path = _CPU, cgroup: Path = _CGROUP) -> int:
    """Physical cores this process may use: its affinity and its cgroup's quota are respected.

    Two threads of one core share its arithmetic units, and llama.cpp saturates those, so siblings
    count once. Never less than 1.
    """
    logical = _allowed_cpus()
    cores = {_siblings(cpu, n) for n in logical}
    count = len(cores)
    quota = _cgroup_cpus(cgroup)
    if quota is not None:
        count = min(count, quota)
    return max(count, 1)


def _allowed_cpus() -> set[int]:
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _siblings(cpu: Path, n: int) -> str:
    """A name that all threads of a core share; the thread itself where the system does not tell."""
    text = _read(cpu / f"cpu{n}" / "topology" / "thread_siblings_list")
    return text or str(n)


def _cgroup_cpus(cgroup: Path) -> int | None:
    """Whole CPUs of the cgroup's quota (v2 `cpu.max`, v1 quota and period), rounded up; None if unlimited."""
    quota, _, period = (_read(cgroup / "cpu.max") or "").partition(" ")
    if not quota:
        quota = _read(cgroup / "cpu" / "cpu.cfs_quota_us") or "max"
        period = _read(cgroup / "cpu" / "cpu.cfs_period_us") or "100000"
    if quota == "max" or int(quota) <= 0:
        return None
    return -(-int(quota) // int(period))


def processor(*, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, as the system tells it."""
    for line in (_read(cpuinfo) or "").splitlines():
        if line.lower().startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def available_memory(*, meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int | None:
    """Bytes that can be taken without swapping, the cgroup's limit respected; None where unknown."""
    free = None
    for line in (_read(meminfo) or "").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit = _read(cgroup / "memory.max")
    if limit and limit != "max":
        used = int(_read(cgroup / "memory.current") or 0) - _file_cache(cgroup)
        room = max(int(limit) - used, 0)
        free = room if free is None else min(free, room)
    return free


def _file_cache(cgroup: Path) -> int:
    """Bytes of `memory.current` that are given back on demand: copies of files, such as a model read before."""
    stat = dict(line.split() for line in (_read(cgroup / "memory.stat") or "").splitlines())
    return int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
