"""Predictions of `specdec bench` on pairs whose acceptance and cost ratio are planted.

    python scripts/bench_planted.py [--chances 0.3,0.6,0.8,0.95] [-k 1,2,4,8] [-n 256] [--folder FOLDER]

The target goes round a ring of tokens; its draft knows the given share of the steps, at places drawn once. So greedily
the chance of every draft position is that share, and theory has accepted / drafted as the mean of its first k powers.
Prints the measured acceptance beside it, and the measured speedup beside the one that costs and chances predict.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from planted import write_planted

from specdec_cli.bench import Bench, Setting, Task
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.pairing import open_pair
from specdec_cli.plan import PairRequest
from specdec_cli.sampling import SamplingParams

N_VOCAB, FIRST_WORD = 512, 260
SHAPE = {"n_layers": 16, "n_ff": 2048, "n_head": 8}
DRAFT_SHAPE = {"n_layers": 1, "n_ff": 512, "n_head": 8}
GREEDY = SamplingParams(temperature=0.0)


def ring(known: np.ndarray) -> np.ndarray:
    """Each word is followed by the next one where `known`, else by the one after that."""
    words = np.arange(FIRST_WORD, N_VOCAB)
    chain = np.zeros((N_VOCAB, N_VOCAB))
    chain[:, FIRST_WORD] = 1.0
    for i, word in enumerate(words):
        follower = words[(i + (1 if known[i] else 2)) % len(words)]
        chain[word] = 0.0
        chain[word, follower] = 1.0
    return chain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chances", default="0.3,0.6,0.8,0.95")
    parser.add_argument("-k", default="1,2,4,8")
    parser.add_argument("-n", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    ks = [int(k) for k in options.k.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        where = options.folder or Path(folder)
        n_words = N_VOCAB - FIRST_WORD
        target = write_planted(where / "target.gguf", ring(np.ones(n_words, bool)), **SHAPE)
        print(
            f"{'share':>6} {'k':>3} {'theory':>8} {'accepted':>9} {'predicted':>10} {'measured':>9} {'off by':>8} text"
        )
        for share in (float(c) for c in options.chances.split(",")):
            known = np.random.default_rng(7).permutation(n_words) < round(share * n_words)
            draft = write_planted(where / f"draft-{share}.gguf", ring(known), **DRAFT_SHAPE)
            measure(target, draft, known, ks, options.n, options.repeats)


def measure(target: Path, draft: Path, known: np.ndarray, ks: list[int], n: int, repeats: int) -> None:
    request = PairRequest(target, draft, "none", max(ks), seed=1, sampling=GREEDY, force=True)
    share = float(known.mean())
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        bench = Bench(pair, GREEDY, n, time.perf_counter)
        task = Task("ring", (1, FIRST_WORD))
        settings = [Setting("model", k, 0.0) for k in ks]
        bench.warm_up(task, settings)
        curve = bench.cost_curve([1, *range(FIRST_WORD, N_VOCAB)], n // 2, max(ks) + 1, 0.0)
        for _ in bench.measure([task], settings, repeats):
            pass
        for (_, setting), cell in bench.cells.items():
            theory = np.mean([share ** (i + 1) for i in range(setting.k)])
            predicted = cell.predicted(curve) or 0.0
            off = predicted / cell.speedup - 1
            figures = f"{theory:7.3f} {cell.acceptance:8.3f} {predicted:9.2f} {cell.speedup:8.2f} {off:+8.1%}"
            print(
                f"{share:5.2f} {setting.k:3} {figures}  {cell.worst.verdict}",
                flush=True,
            )


if __name__ == "__main__":
    main()
