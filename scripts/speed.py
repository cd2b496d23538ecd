"""Plain decoding against a draft, alternating in one process, with the texts compared.

    python scripts/speed.py MODEL [--draft FILE] [-k 1,2,3,4] [--temp 0,0.8] [-n 200] [--repeats 3]

MODEL is a preset or a GGUF file. Every figure is a median over prompts and repeats; the first round
of measurements warms up and is dropped. Prints tokens/s of decoding and the ratio to plain decoding,
with `same` when all token ids are those of plain decoding.
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from datetime import datetime

from specdec_cli.commands.options import find, quantize
from specdec_cli.document import versions
from specdec_cli.draft_length import FixedLength
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.engine import generate
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.pairing import Pair, open_pair
from specdec_cli.plan import PairRequest
from specdec_cli.prompts import conversation
from specdec_cli.resolve import resolve
from specdec_cli.sampling import SamplingParams
from specdec_cli.stats import RunStats
from specdec_cli.types import Drafter

PROMPTS = (
    "Write a short story about a lighthouse.",
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the prime numbers below n, with a docstring.",
    "List ten things to pack for a week of camping.",
)


def main() -> None:
    options = _options()
    files = resolve(options.model, options.draft, quantize, find, lambda text: print(text, file=sys.stderr))
    ks = [int(k) for k in options.k.split(",")]
    print(f"{files.target.name} + {files.draft.name if files.draft else files.drafter}, {options.n} tokens")
    for temperature in (float(t) for t in options.temp.split(",")):
        sampling = SamplingParams(temperature=temperature, top_p=options.top_p)
        request = PairRequest(
            files.target,
            files.draft,
            files.drafter,
            max(ks),
            seed=1,
            sampling=sampling,
            p_min=options.p_min,
            force=True,
        )
        with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
            _table(pair, [0, *ks], options.n, options.repeats)
    print(", ".join(f"{k} {v}" for k, v in versions().items() if k != "llama_cpp_features"))


def _table(pair: Pair, ks: list[int], n: int, repeats: int) -> None:
    talk = conversation(pair.target.model, system=None, thinking=None, now=datetime.now)
    if talk is None:
        raise SystemExit("This model has no chat template.")
    prompts = [talk.ask(text) for text in PROMPTS]
    speeds: dict[int, list[float]] = defaultdict(list)
    ratios: dict[int, list[float]] = defaultdict(list)
    acceptance: dict[int, list[float]] = defaultdict(list)
    same: dict[int, bool] = defaultdict(lambda: True)
    for repeat in range(repeats + 1):
        for prompt in prompts:
            plain_ids: list[int] = []
            plain_speed = 0.0
            for k in ks:
                drafter = pair.drafter if k else NoDrafter()
                ids, stats = _measure(pair, drafter, k, prompt, n)
                speed = stats.tokens_per_second or 0.0
                if k == 0:
                    plain_ids, plain_speed = ids, speed
                same[k] &= ids == plain_ids
                if repeat:
                    speeds[k].append(speed)
                    ratios[k].append(speed / plain_speed)
                    acceptance[k].append(stats.acceptance or 0.0)
    for k in ks:
        print(
            f"{pair.rule.law.params}, k {k}: {statistics.median(speeds[k]):6.1f} tokens/s, "
            f"{statistics.median(ratios[k]):.2f} x plain ({min(ratios[k]):.2f} to {max(ratios[k]):.2f}), "
            f"acceptance {statistics.mean(acceptance[k]):.2f}, {'same' if same[k] else 'differs'}"
        )


def _measure(pair: Pair, drafter: Drafter, k: int, prompt: list[int], n: int) -> tuple[list[int], RunStats]:
    stats, ids = RunStats(), []
    for round_ in generate(
        pair.target.session,
        drafter,
        FixedLength(k),
        pair.rule,
        prompt,
        max_tokens=n,
        ends=lambda token: token in pair.end_tokens,
        clock=time.perf_counter,
    ):
        stats.add(round_)
        ids += round_.tokens
    return ids, stats


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("-k", default="1,2,3,4")
    parser.add_argument("--temp", default="0,0.8")
    parser.add_argument("--p-min", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
