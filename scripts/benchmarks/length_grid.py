"""How near `-k auto` comes to the best fixed length, simulated over a grid of drafts, machines and texts.

    python -m scripts.benchmarks.length_grid [--sample 720] [--seed 7] [--worst 8]

Chances of acceptance from 0.3 to 0.97 (constant, falling with the position, told by the draft's confidence, changing in
the text) x a draft token for 0.02 to 0.6 of a pass x twelve measured or published curves of passes x answers of 64,
200 and 1,000 tokens x costs that are steady or drift by a factor of two. Every cell begins with a calibration
that is off by 10 % (standard deviation) in each cost, and writes two answers. Both are held against the
best of the fixed lengths in hindsight, plain decoding included, and against plain decoding: above 1 auto is
faster. `--sample N` takes N cells at random, by default all 7,200.

Sources of the curves: two CPU cores: docs/benchmarks.md and docs/log.md. GPUs: pull requests of ggml-org/llama.cpp,
tokens per second by width: #15131 (1B F32), #5351 (7B Q2_K), #15802 (MI50).
"""

import argparse
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specdec_cli.lengths.auto import AutoLength
from specdec_cli.lengths.learned import Learned
from specdec_cli.lengths.pass_costs import PassCosts
from tests.simulated import CURVES, Machine, Words, decode, fixed_seconds

LONGEST = 16
CALIBRATED = (1, 4, 2, 8, 3)
CALIBRATION_ERROR, NOISE = 0.1, 0.05
FIXED = (0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 15)
KINDS = ("constant", "confidence", "position", "changing")
CHANCES = (0.3, 0.5, 0.7, 0.85, 0.97)
DRAFT_TOKENS = (0.02, 0.1, 0.25, 0.45, 0.6)
ANSWERS = (64, 200, 1000)


class Cell(NamedTuple):
    """One point of the grid."""

    curve: str
    kind: str
    chance: float
    draft_token: float
    n: int
    drifts: bool


@dataclass(frozen=True)
class Answer:
    """What auto reached in one answer: over the best fixed length, over plain decoding, and that length's speedup."""

    over_best: float
    over_plain: float
    best_k: int
    best_speedup: float
    lengths: Sequence[int]


def cells() -> list[Cell]:
    return [Cell(*of) for of in itertools.product(CURVES, KINDS, CHANCES, DRAFT_TOKENS, ANSWERS, (False, True))]


def words(kind: str, chance: float, n: int, rng: np.random.Generator) -> Words:
    """A text of this kind in which a first draft token is accepted with this chance on average."""
    logit, falls = math.log(chance / (1 - chance)), kind == "position"
    if kind in ("constant", "position"):  # the draft is always sure
        return Words.drawn(np.full(n, 0.95), np.full(n, chance), rng, falls=falls)
    logits = logit + 1.8 * rng.normal(size=n)
    if kind == "changing":
        is_easy = np.arange(n) // max(n // 4, 16) % 2 == 0
        logits = np.where(is_easy, logit + 1.2, logit - 1.8) + 0.8 * rng.normal(size=n)
    else:
        for _ in range(30):  # so that the mean of the chances is the chance
            mean = float(np.mean(1 / (1 + np.exp(-logits))))
            logits += logit - math.log(mean / (1 - mean))
    chances = 1 / (1 + np.exp(-logits))
    sureness = 1 / (1 + np.exp(-(logits + 0.7 + 0.5 * rng.normal(size=n))))
    return Words.drawn(sureness, chances, rng)


def run(cell: Cell, seed: int) -> list[Answer]:
    """Two answers of one cell."""
    machine = Machine.of_curve(CURVES[cell.curve], cell.draft_token, LONGEST)
    rng, errors = np.random.default_rng(seed), random.Random(seed)

    def measured(seconds: float) -> float:
        return seconds * math.exp(CALIBRATION_ERROR * errors.gauss(0, 1))

    def pace(now: float) -> float:
        return math.exp(math.log(2) / 2 * math.sin(4 * math.pi * now / cell.n)) if cell.drifts else 1.0

    learned = Learned(PassCosts({w: measured(machine.passes[w]) for w in CALIBRATED}, longest=LONGEST))
    learned.costs.set_drafting("model", measured(machine.draft_token), machine.token_behind)
    answers = []
    for i in range(2):
        text = words(cell.kind, cell.chance, cell.n, rng)
        fixed = {k: fixed_seconds(machine, text, k, pace) for k in FIXED}
        length = AutoLength(learned, longest=LONGEST, sources=("model",))
        seconds, lengths = decode(machine, text, length, noise=NOISE, seed=seed + i, pace=pace)
        best = min(fixed, key=fixed.__getitem__)
        answers.append(Answer(fixed[best] / seconds, fixed[0] / seconds, best, fixed[0] / fixed[best], lengths))
    return answers


def sampled(n: int | None, seed: int) -> Iterator[tuple[Cell, list[Answer]]]:
    """`n` cells at random, each with a seed of its own; all without a number."""
    grid = cells()
    random.Random(seed).shuffle(grid)
    for i, cell in enumerate(grid[:n]):
        yield cell, run(cell, seed * 10_007 + i)


def summary(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, tenth percentile, least."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[len(ordered) // 10], ordered[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--worst", type=int, default=5)
    options = parser.parse_args()
    rows = list(sampled(options.sample, options.seed))
    print("| answer | tokens | cells | over the best: median | tenth percentile | worst | over plain: mean | worst |")
    print("|---|---|---|---|---|---|---|---|")
    for i, n in itertools.product(range(2), ANSWERS):
        of = [answers[i] for cell, answers in rows if cell.n == n]
        if of:
            over_best = " | ".join(f"{value:.3f}" for value in summary([one.over_best for one in of]))
            plain = [one.over_plain for one in of]
            name = ("first", "second")[i]
            print(f"| {name} | {n} | {len(of)} | {over_best} | {sum(plain) / len(plain):.3f} | {min(plain):.3f} |")
    for i, over in itertools.product(range(2), ("over_best", "over_plain")):
        print(f"\nThe least {over}, {('first', 'second')[i]} answers of 200 tokens or more:")
        for cell, answers in sorted((row for row in rows if row[0].n >= 200), key=lambda row: getattr(row[1][i], over))[
            : options.worst
        ]:
            one = answers[i]
            print(
                f"  {getattr(one, over):.3f} {tuple(cell)} best k {one.best_k} ({one.best_speedup:.2f}), "
                f"over plain {one.over_plain:.3f}, drafts {list(one.lengths[:14])}"
            )


if __name__ == "__main__":
    main()
