"""What waiting threads cost: passes of 1 and 5 tokens, alone and beside a program that uses one core.

    python -m scripts.benchmarks.waiting_threads MODEL ... [--repeats 3] [--seconds 2] [--threads N]

llama.cpp's threads meet at a barrier after every operation. OpenMP decides how one that is early waits there: by
spinning, which takes a core from every other program, or by sleeping, which takes time to wake up. Each setting gets
processes of its own, by turns; GOMP_SPINCOUNT is how often one of GNU's looks before it sleeps. Prints milliseconds per
pass (median of the repeats), and how much of its speed the other program keeps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.planning.machine import usable_cores
from specdec_cli.settings import ContextSettings, ModelSettings

SETTINGS: dict[str, dict[str, str]] = {
    "as libgomp has it": {},
    "ACTIVE": {"OMP_WAIT_POLICY": "ACTIVE"},
    "PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "GOMP_SPINCOUNT=100000": {"GOMP_SPINCOUNT": "100000"},
}
WIDTHS = (1, 5)
_CONTEXT = 64
_LOADING = 4.0
"""Seconds that a process takes to get to its passes."""
_NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_COUNT = """
import sys, time
end, n = time.perf_counter() + float(sys.argv[1]), 0
while time.perf_counter() < end:
    n += 1
print(n)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.models[0], options.threads, options.seconds)))
        return
    for path in options.models:
        compare(path, options)


def compare(path: Path, options: argparse.Namespace) -> None:
    alone: dict[str, list[list[float]]] = {name: [] for name in SETTINGS}
    beside: dict[str, list[list[float]]] = {name: [] for name in SETTINGS}
    kept: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(options.repeats):
        full = _count(options.seconds)
        for name, setting in SETTINGS.items():
            alone[name].append(_passes(path, setting, options))
            with subprocess.Popen([sys.executable, "-c", _COUNT, "3600"]) as hog:
                beside[name].append(_passes(path, setting, options))
                hog.kill()
            with _running(path, setting, options, options.seconds + _LOADING) as child:
                time.sleep(_LOADING / 2)
                kept[name].append(_count(options.seconds) / full)
                child.kill()
    print(f"{path.name}, {options.threads} threads: ms for 1 and {WIDTHS[1]} tokens")
    print("| waiting | alone | beside a program on one core | which keeps |\n|---|---|---|---|")
    for name in SETTINGS:
        print(f"| {name} | {_told(alone[name])} | {_told(beside[name])} | {statistics.median(kept[name]):.0%} |")


def measure(path: Path, threads: int, seconds: float) -> list[float]:
    """Median milliseconds of passes of each width."""
    found = []
    with LlamaModel(ModelSettings(path)) as model:
        context = ContextSettings(n_ctx=512, threads=threads, max_rows=max(WIDTHS))
        with LlamaSession(model, context) as session:
            for width in WIDTHS:
                text = [i * 7919 % model.n_vocab for i in range(1, _CONTEXT + 1 + width)]
                session.score(text[:_CONTEXT], 1)
                took: list[float] = []
                end = time.perf_counter() + seconds / len(WIDTHS)
                while time.perf_counter() < end:
                    begin = time.perf_counter()
                    session.score(text, width)
                    took.append(time.perf_counter() - begin)
                found.append(1000 * statistics.median(took))
    return found


def _running(path: Path, setting: dict[str, str], options: argparse.Namespace, seconds: float) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name not in _NAMES} | setting
    command = [sys.executable, "-m", "scripts.benchmarks.waiting_threads", str(path), "--child"]
    more = ["--seconds", str(seconds), "--threads", str(options.threads)]
    return subprocess.Popen([*command, *more], env=environ, stdout=subprocess.PIPE, text=True)


def _passes(path: Path, setting: dict[str, str], options: argparse.Namespace) -> list[float]:
    with _running(path, setting, options, options.seconds) as child:
        out, _ = child.communicate()
    found: list[float] = json.loads(out)
    return found


def _count(seconds: float) -> int:
    return int(subprocess.run([sys.executable, "-c", _COUNT, str(seconds)], capture_output=True, check=True).stdout)


def _told(runs: list[list[float]]) -> str:
    return ", ".join(f"{statistics.median(values):.1f}" for values in zip(*runs, strict=True))


if __name__ == "__main__":
    main()
