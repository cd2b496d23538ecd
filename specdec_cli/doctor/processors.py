"""How busy the processors are, and with what: from /proc, between two looks at it."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_IDLE = (3, 4)
"""Fields of a processor's line in /proc/stat: idle, and waiting for a disk."""
_COUNTED = 8
"""Fields of it; what follows them (guests) is counted twice."""
_TICKS_AT = (13, 14)
"""Fields of /proc/PID/stat: time in the program and in the system, in ticks."""


@dataclass(frozen=True, slots=True)
class Load:
    """`share` (0 to 1) of the processors' time that others take, and which process takes most of it."""

    share: float
    busiest: tuple[int, str] | None


def load(seconds: float = 0.5, *, proc: Path = PROC, sleep: Callable[[float], None] = time.sleep) -> Load | None:
    """The load of the processors that this process may use; None where the system does not tell."""
    before, by_process = _times(proc), _ticks(proc)
    if before is None:
        return None
    sleep(seconds)
    after = _times(proc)
    if after is None:
        return None
    whole = sum(after[0][n] - before[0].get(n, 0) for n in after[0])
    idle = sum(after[1][n] - before[1].get(n, 0) for n in after[1])
    grown = {pid: ticks - by_process.get(pid, ticks) for pid, ticks in _ticks(proc).items() if pid != os.getpid()}
    pid = max(grown, key=lambda one: grown[one], default=None)
    busiest = (pid, _name(proc, pid)) if pid is not None and grown[pid] > 0 else None
    return Load(1 - idle / whole if whole > 0 else 0.0, busiest)


def _times(proc: Path) -> tuple[dict[int, int], dict[int, int]] | None:
    """Ticks so far by processor, all of them and those in which it did nothing."""
    ours = os.sched_getaffinity(0) if sys.platform == "linux" else set[int]()
    whole, idle = {}, {}
    try:
        lines = (proc / "stat").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in ours:
            ticks = list(map(int, fields[:_COUNTED]))
            whole[int(name[3:])] = sum(ticks)
            idle[int(name[3:])] = sum(ticks[i] for i in _IDLE)
    return (whole, idle) if whole else None


def _ticks(proc: Path) -> Mapping[int, int]:
    """By process."""
    found = {}
    for path in proc.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # it has ended, or is not ours to see
            fields = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = sum(int(fields[i - 2]) for i in _TICKS_AT)
    return found


def _name(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return "a process that has ended"
