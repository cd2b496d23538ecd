"""Whether `-k auto` finds out what a draft is worth, whatever the minute in which it first measured the pair.

    python -m scripts.benchmarks.empty_memories TARGET DRAFT [--memories 20] [-n 96] [-k 4,6]

Each memory is an empty cache folder. Two answers are written with it, each by a process of its own, with the draft
model alone. Beside the first answer of every other memory a program uses one core, from before the pair is opened to
the end of the answer, so that costs are measured in a bad minute. Prints what the memory then takes for the cost of
passes and drafts, the draft tokens of both answers, and their speed over plain decoding and over the best fixed length,
which are measured by turns with them. At the end: how many memories never asked the draft, and the median ratios.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROMPTS = ("Write a short story about a lighthouse.", "Write a Python function that returns the primes below n.")

OPTIONS = ("--temp", "0", "--ignore-eos", "--no-ngram", "--force", "--trust", "--json")


@dataclass(frozen=True)
class Pair:
    """What every command line has in common."""

    target: Path
    draft: Path
    n: int

    def answer(self, prompt: str, k: str, memory: Path) -> dict[str, Any]:
        """Statistics of one answer, written with drafts of `k` by a process that keeps what it learns in `memory`."""
        command = [sys.executable, "-m", "specdec_cli", "run", str(self.target), prompt, "--draft", str(self.draft)]
        command += ["-k", k, "-n", str(self.n), *OPTIONS]
        done = subprocess.run(
            command, env={**os.environ, "SPECDEC_CACHE": str(memory)}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        stats: dict[str, Any] = json.loads(done.stdout)["stats"]
        return stats


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy_core(is_busy: bool) -> Iterator[None]:
    """Another program uses one core meanwhile, if `is_busy`."""
    program = multiprocessing.Process(target=_spin, daemon=True)
    if is_busy:
        program.start()
    try:
        yield
    finally:
        if is_busy:
            program.kill()
            program.join()


def remembered(memory: Path) -> str:
    """Milliseconds of passes and of a draft token, as they are kept."""
    (file,) = (memory / "learned").glob("*.json")
    kept = json.loads(file.read_text(encoding="utf-8"))
    passes = {width: round(1000 * seconds, 1) for width, seconds in kept["passes"].items() if int(width) <= 8}
    drafts = ", ".join(f"{1000 * costs[0]:.1f}" for costs in kept["drafting"].values())
    return f"passes {passes}, draft token {drafts}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--memories", type=int, default=20)
    parser.add_argument("-n", type=int, default=96)
    parser.add_argument("-k", default="4,6", help="fixed lengths to hold it against; plain decoding always is")
    options = parser.parse_args()
    pair = Pair(options.target, options.draft, options.n)
    lengths = ["0", *options.k.split(",")]
    never, ratios = 0, [(list[float](), list[float]()) for _ in PROMPTS]
    for i in range(options.memories):
        with tempfile.TemporaryDirectory() as folder:
            memory, drafted = Path(folder), 0
            for turn, prompt in enumerate(PROMPTS):
                with busy_core(turn == 0 and i % 2 == 1):
                    auto = pair.answer(prompt, "auto", memory)
                    speed = {k: pair.answer(prompt, k, memory)["tokens_per_second"] for k in lengths}
                best = max(speed, key=speed.__getitem__)
                plain, fixed = (auto["tokens_per_second"] / speed[k] for k in ("0", best))
                ratios[turn][0].append(plain)
                ratios[turn][1].append(fixed)
                drafted += auto["drafted"]
                print(
                    f"{i} {'busy' if i % 2 else 'idle'} answer {turn + 1}: drafted {auto['drafted']}, accepted "
                    f"{auto['accepted']}, over plain {plain:.2f}, over k {best} {fixed:.2f}; {remembered(memory)}",
                    flush=True,
                )
            never += not drafted
    print(f"never asked: {never} of {options.memories}")
    for answer, (over_plain, over_best) in enumerate(ratios, 1):
        print(
            f"answer {answer}: over plain median {statistics.median(over_plain):.2f}, least {min(over_plain):.2f}; "
            f"over the best fixed length median {statistics.median(over_best):.2f}, least {min(over_best):.2f}"
        )


if __name__ == "__main__":
    main()
