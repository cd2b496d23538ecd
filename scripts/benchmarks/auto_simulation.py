"""What `-k auto` does on machines that are not at hand: simulated texts, measured or published times of passes.

    python -m scripts.benchmarks.auto_simulation [-n 1000] [--seeds 3] [--draft-share 0.15]

A draft token is taken to cost `--draft-share` of a pass of one token, and one that it only reads a quarter of that
on a CPU, a twentieth on a GPU. For every machine and kind of text: the best fixed length in hindsight (0 is plain
decoding) and its speedup; what auto reaches of it in the first answer, and when it knows the pair; and the bound, the
speedup of somebody who knows which draft tokens are right.

Times by width (see SOURCES): tokens per second of a prompt read in microbatches of w tokens, or of w sequences at once,
as the authors of llama.cpp's kernels published them; a pass of w tokens takes w over that.
"""

import argparse
import statistics
from collections.abc import Mapping

import numpy as np

from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.lengths.auto import AutoLength
from specdec_cli.lengths.learned import Learned
from specdec_cli.lengths.pass_costs import PassCosts
from tests.simulated import F32, Q4_0, Machine, Text, decode, text, with_hindsight

NEVER = 10**9
NOISE = 0.05


def rates(by_width: Mapping[int, float]) -> dict[int, float]:
    """Milliseconds of a pass from tokens per second at each width."""
    return {width: 1000 * width / rate for width, rate in by_width.items()}


MACHINES = {
    "2 CPU cores, 135M Q4_0": Q4_0,
    "2 CPU cores, 135M F32": F32,
    "2 CPU cores, 7B Q4_0": {
        1: 111.3,
        2: 213.4,
        3: 314.6,
        4: 304.1,
        5: 403.8,
        6: 503.4,
        7: 604.4,
        8: 583.3,
        9: 677.8,
        12: 864.3,
        13: 962.9,
        16: 854.9,
    },
    "RTX 3090, 1B F32": rates({1: 201.45, 2: 377.68, 3: 532.20, 4: 711.83, 5: 875.70, 6: 1046.83, 7: 1206.49}),
    "RTX 3090, 7B Q2_K": rates({1: 102.80, 2: 177.01, 4: 248.26, 8: 297.62}),
    "MI50, 1B Q4_0": rates({1: 331.09, 2: 617.04, 3: 536.87, 4: 658.36, 5: 842.40, 6: 714.23, 7: 804.37}),
    "RTX 3090 by Vulkan of 2024, 8B Q4_0": rates(
        {1: 82.55, 2: 29.52, 3: 43.21, 4: 56.99, 5: 70.54, 6: 83.78, 7: 88.84, 8: 99.71, 9: 170.22, 10: 187.04}
    ),
}
SOURCES = """Sources: 2 CPU cores: measured, docs/benchmarks.md. Pull requests of ggml-org/llama.cpp: #15131 (1B F32),
#5351 (7B Q2_K), #15802 (MI50), #10991 (Vulkan)."""


def texts(n: int, seed: int) -> dict[str, Text]:
    return {
        "easy": text(n, 3.0, 1.5, seed),
        "ordinary": text(n, 1.0, 1.5, seed),
        "hard": text(n, -1.0, 1.5, seed),
        "never right": text(n, -6.0, 1.0, seed),
        "now sure, now not": text(n, 0.5, 4.0, seed),
        "6 of 10, always sure": always_sure(n, 0.6, seed),
        "8 of 10, always sure": always_sure(n, 0.8, seed),
        "code, prose, code": text(n // 3, 3.0, 1.5, seed)
        + text(n // 3, -2.0, 1.0, seed)
        + text(n // 3, 3.0, 1.5, seed),
    }


def always_sure(n: int, share: float, seed: int) -> Text:
    """As on planted pairs: the draft's confidence says nothing."""
    return Text(np.full(n, 0.999), np.random.default_rng(seed).random(n) < share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draft-share", type=float, default=0.15)
    options = parser.parse_args()
    seeds = range(1, options.seeds + 1)
    print(
        f"{'machine':36} {'text':20} {'best k':>6} {'speedup':>8} {'auto, first':>12} {'auto, then':>11} {'bound':>6}"
    )
    worst, over_plain = [], []
    for name, passes in MACHINES.items():
        draft_token = options.draft_share * passes[1]
        machine = Machine.measured(passes, draft_token, draft_token / (4 if "CPU" in name else 20))
        for kind in texts(3, 1):
            rows = [_row(machine, texts(options.n, seed)[kind], max(passes) - 1, seed) for seed in seeds]
            best_k, speedup, first, then, bound = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"{name:36} {kind:20} {best_k:6.0f} {speedup:8.2f} {first:12.3f} {then:11.3f} {bound:6.2f}")
            worst += [row[3] for row in rows]
            over_plain += [row[1] * row[3] for row in rows]
    print(f"\nauto over the best fixed length: median {statistics.median(worst):.3f}, least {min(worst):.3f}")
    print(f"auto over plain decoding: median {statistics.median(over_plain):.2f}, least {min(over_plain):.3f}")
    print(SOURCES)


def _row(machine: Machine, words: Text, longest: int, seed: int) -> tuple[float, ...]:
    """Best fixed k, its speedup, auto in the first answer and the second over that, and the bound."""
    fixed = [decode(machine, words, FixedLength(k, give_up_after=NEVER))[0] for k in range(longest + 1)]
    learned = Learned(PassCosts({w: machine.passes[w] for w in range(1, longest + 2)}, longest=longest))
    learned.costs.set_drafting("model", machine.draft_token, machine.token_behind)
    first, then = (
        decode(machine, words, AutoLength(learned, longest=longest, sources=("model",)), noise=NOISE, seed=seed + i)[0]
        for i in (0, 1)
    )
    best = min(fixed)
    return (
        fixed.index(best),
        fixed[0] / best,
        best / first,
        best / then,
        fixed[0] / with_hindsight(machine, words, longest),
    )


if __name__ == "__main__":
    main()
