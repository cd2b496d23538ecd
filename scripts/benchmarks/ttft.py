"""The time to first token with a draft against that of plain decoding, by turns in one process.

    python -m scripts.benchmarks.ttft TARGET.gguf DRAFT.gguf [--lengths 16,512,1536] [--batch 512] [--repeats 7]

A draft reads the prompt when it is first asked, after the first token: what that costs is printed beside it,
as the statistics have it (it counts as time spent drafting). Every prompt is new to both caches. Prints
medians, the ratio's over pairs of neighbours.
"""

import argparse
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path

from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Drafter, Round
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.generation.json_document import versions
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.plan import PairRequest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--lengths", default="16,512,1536")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()

    request = PairRequest(
        options.target,
        options.draft,
        "model",
        options.k,
        seed=1,
        sampling=SamplingParams(temperature=options.temp),
        n_batch=options.batch,
        force=True,
    )
    print(f"{options.target.name} + {options.draft.name}, prompts in batches of {options.batch}")
    print(f"{'prompt':>7} {'plain':>9} {'drafting':>9} {'ratio':>7} {'(from, to)':>16} {'draft reads in':>15}")
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        for length in (int(n) for n in options.lengths.split(",")):
            _row(pair, length, options)
    print(", ".join(f"{k} {v}" for k, v in versions().items() if k != "llama_cpp_features"))


def _row(pair: Pair, length: int, options: argparse.Namespace) -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    reads: list[float] = []
    for repeat in range(options.repeats + 1):
        # Who goes first changes, so that a machine that slows down or warms up favours nobody.
        for name in ("plain", "drafting") if repeat % 2 else ("drafting", "plain"):
            prompt = _prompt(pair, length, f"{name} {repeat}")
            before = _read_seconds(pair)
            first = _write(pair, NoDrafter() if name == "plain" else pair.drafter, prompt, options.k)[0]
            if repeat:  # the first round warms up
                seconds[name].append(first.seconds)
                reads += [_read_seconds(pair) - before] if name == "drafting" else []
    ratios = [a / b for a, b in zip(seconds["drafting"], seconds["plain"], strict=True)]
    plain, drafting = (1000 * statistics.median(seconds[name]) for name in ("plain", "drafting"))
    print(
        f"{length:7} {plain:6.1f} ms {drafting:6.1f} ms {statistics.median(ratios):7.3f} "
        f"{f'({min(ratios):.2f}, {max(ratios):.2f})':>16} {1000 * statistics.median(reads):12.1f} ms"
    )


def _prompt(pair: Pair, length: int, seed: str) -> list[int]:
    rng = random.Random(f"{length} {seed}")
    return [rng.randrange(1000, pair.rule.law.n_shared) for _ in range(length)]


def _read_seconds(pair: Pair) -> float:
    return pair.draft.session.evaluation.read_seconds if pair.draft is not None else 0.0


def _write(pair: Pair, drafter: Drafter, prompt: list[int], k: int) -> list[Round]:
    """Four tokens: enough for the draft to be asked."""
    return list(
        generate(
            pair.target.session,
            drafter,
            FixedLength(k),
            pair.rule,
            prompt,
            max_tokens=4,
            ends=lambda _: False,
            clock=time.perf_counter,
        )
    )


if __name__ == "__main__":
    main()
