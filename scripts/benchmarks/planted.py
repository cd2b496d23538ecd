"""Predictions of `specdec bench` on pairs whose acceptance and cost ratio are planted.

    python -m scripts.benchmarks.planted [--chances 0.3,0.6,0.8,0.95] [-k 1,2,4,8] [-n 504] [--folder FOLDER]

The target goes round a ring of tokens; its draft knows the given share of the steps (rings.py says which). So greedily
the chance of every draft position is that share, and theory has accepted / drafted as the mean of its first k powers.
An answer of 504 tokens, two rounds of the ring, has that within half a point for every k, whatever is measured later.
Prints the measured acceptance beside it, and the measured speedup beside the one that costs and chances predict. Ends
with exit code 1 if a measured acceptance is more than a point from theory. `-k auto` has no theory.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scripts.benchmarks.rings import Known, drawn, in_theory, lengths
from specdec_cli.bench.measure import Bench, Cell, Extent, Length, Setting, Task, longest_draft
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.generation.pair import open_pair
from specdec_cli.lengths.speedup_model import CostCurve
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Sampling
from specdec_cli.settings import AUTO
from tests.planted import Chain, write_planted

N_VOCAB, FIRST_WORD = 512, 260
SHAPE = {"n_layers": 16, "n_ff": 2048, "n_head": 8}
DRAFT_SHAPE = {"n_layers": 1, "n_ff": 512, "n_head": 8}
GREEDY = SamplingParams(temperature=0.0)
POINT = 0.01


def ring(known: Known) -> Chain:
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
    parser.add_argument("-n", type=int, default=504)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    ks = lengths(options.k)
    fixed = [k for k in ks if isinstance(k, int)]
    farthest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        where = options.folder or Path(folder)
        n_words = N_VOCAB - FIRST_WORD
        target = write_planted(where / "target.gguf", ring(np.ones(n_words, bool)), **SHAPE)
        print(
            f"{'share':>5} {'k':>4} {'theory':>7} {'accepted':>8} {'predicted':>9} {'measured':>8} {'off by':>8}  text"
        )
        for share in (float(c) for c in options.chances.split(",")):
            known = drawn(share, n_words, options.n, fixed)
            draft = write_planted(where / f"draft-{share}.gguf", ring(known), **DRAFT_SHAPE)
            farthest = max(farthest, measure(target, draft, share, ks, options.n, options.repeats))
    if farthest > POINT:
        raise SystemExit(f"A measured acceptance is {farthest:.3f} from theory.")


def measure(target: Path, draft: Path, share: float, ks: Sequence[Length], n: int, repeats: int) -> float:
    """Print a row for each k; how far the acceptance farthest from theory is."""
    settings = [Setting("model", k, 0.0) for k in ks]
    longest = longest_draft(settings)
    request = PairRequest(
        target, Drafting("none", longest, draft, force=True, auto=AUTO in ks), Sampling(seed=1, params=GREEDY)
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        bench = Bench(pair, GREEDY, n, time.perf_counter)
        task = Task("ring", (1, FIRST_WORD))
        bench.warm_up(task, settings)
        curve = bench.cost_curve([1, *range(FIRST_WORD, N_VOCAB)], n // 2, longest + 1, 0.0)
        for _ in bench.measure(Extent([task], repeats, n), settings):
            pass
    return max(_row(cell, curve, share) for cell in bench.cells.values())


def _row(cell: Cell, curve: CostCurve, share: float) -> float:
    k, predicted, accepted = cell.setting.k, cell.predicted(curve) or 0.0, cell.acceptance or 0.0
    theory = in_theory(share, k) if isinstance(k, int) else None
    shown = "-" if theory is None else f"{theory:.3f}"
    off = predicted / cell.speedup - 1
    figures = f"{shown:>7} {accepted:8.3f} {predicted:9.2f} {cell.speedup:8.2f} {off:+8.1%}"
    print(f"{share:5.2f} {k:>4} {figures}  {cell.worst.verdict}", flush=True)
    return abs(accepted - theory) if theory is not None else 0.0


if __name__ == "__main__":
    main()
