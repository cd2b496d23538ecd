"""Seconds from the start of a command to the first sign on the screen, and to its end, in a terminal.

python -m scripts.checks.first_sign TARGET DRAFT [--times 5]

Medians. An idle machine, files that were opened before, and no network: that is part of what is waited for.
"""

import argparse
import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    pair = (str(options.target), "--draft", str(options.draft))
    print(f"{'command':<14} first sign  end or stop")
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "--version": ["--version"],
            "run": ["run", *pair, "Hello.", "-n", "8"],
            "bench": ["bench", *pair, "-k", "2", "-n", "8", "--kinds", "qa", "--repeats", "1"],
            "audit": ["audit", *pair, "--budget", "0.1"],
            "check": ["check", pair[0], pair[2]],
            "plan": ["plan", *pair],
            "pull": ["pull", "smollm2-1.7b"],
            "presets": ["presets"],
            "list": ["list"],
            "doctor": ["doctor", "--offline"],
            "draft make": ["draft", "make", pair[0], "-o", str(Path(folder) / "draft.gguf"), "-n", "8"],
        }
        for name, arguments in commands.items():
            seen = [timed(arguments) for _ in range(options.times)]
            first, end = (statistics.median(column) for column in zip(*seen, strict=True))
            print(f"{name:<14} {first:8.2f} s  {end:8.2f} s", flush=True)


def timed(arguments: Sequence[str], patience: float = 4.0) -> tuple[float, float]:
    """Seconds to the first byte on the terminal, and to the end, or to when it was stopped after `patience`."""
    ours, theirs = pty.openpty()
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "specdec_cli", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    first = None
    while process.poll() is None and time.monotonic() - began < patience:
        if select.select([ours], [], [], 0.01)[0] and os.read(ours, 1 << 16) and first is None:
            first = time.monotonic() - began
    end = time.monotonic() - began
    if process.poll() is None:
        process.terminate()
    while process.poll() is None:  # what is still written must not stop it
        if select.select([ours], [], [], 0.01)[0]:
            os.read(ours, 1 << 16)
    os.close(ours)
    os.close(theirs)
    return first if first is not None else end, end


if __name__ == "__main__":
    main()
