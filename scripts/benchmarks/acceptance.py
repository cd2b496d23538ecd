"""What each rule of verification accepts, and the speed it gives, on a real pair.

    python -m scripts.benchmarks.acceptance TARGET DRAFT [-k 3] [--temp 0.3,0.7,1.0] [-n 120] [--repeats 2]

No cuts: the whole distribution, tempered. Rules: plain decoding, coupled (shared noise), rejection, block,
and argmax (the draft's likeliest token, kept while the target chooses it too, as llama.cpp does).

First, along plain texts of four prompts, the chance that one draft token stands: at the same positions for
all, so that they can be compared (not for block, which judges drafts as a whole). Then the rules take turns
on the prompts in one process, with k draft tokens; the first turn warms up and is dropped. Every rule but
coupled and argmax writes texts of its own there, so acceptance has some noise.
"""

import argparse
import statistics
import time
from collections import defaultdict
from datetime import datetime
from pathlib import Path

import numpy as np

from specdec_cli.decode.coupled import Rule, SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.rejection import at
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import Drafter
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.generation.json_document import versions
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.generation.prompts import conversation
from specdec_cli.generation.rules import RULES
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling

PROMPTS = (
    "Write a short story about a lighthouse.",
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the prime numbers below n, with a docstring.",
    "List ten things to pack for a week of camping.",
)
NAMES = ("plain", *RULES, "argmax")
_NOISES = 16
"""Seeds with which the chance of equal choices is estimated at every position."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("-k", type=int, default=3)
    parser.add_argument("--temp", default="0.3,0.7,1.0")
    parser.add_argument("-n", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    print(f"{options.target.name} + {options.draft.name}, k {options.k}, {options.n} tokens, end tokens ignored")
    request = PairRequest(
        options.target, Drafting("model", options.k, options.draft, force=True), Sampling(seed=1), Placement(n_ctx=1024)
    )
    with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
        for temperature in (float(t) for t in options.temp.split(",")):
            _table(pair, temperature, options)
    print(", ".join(f"{k} {v}" for k, v in versions().items() if k != "llama_cpp_features"))


def _chances(pair: Pair, temperature: float, prompts: list[list[int]], n: int) -> None:
    """Means over all positions of the plain texts, with the standard error."""
    assert pair.draft is not None
    found: dict[str, list[float]] = defaultdict(list)
    for i, prompt in enumerate(prompts):
        rules = [SharedNoise(_law(pair, temperature), seed=seed) for seed in range(i, i + _NOISES)]
        prefix = list(prompt)
        for _ in range(n):
            row, draft_row = (m.session.score(prefix, 1)[0].copy() for m in (pair.target, pair.draft))
            p, q = (rules[0].law.distribution(r, prefix) for r in (row, draft_row))
            found["rejection"].append(float(np.minimum(p.probs, at(q, p.ids)).sum()))
            found["argmax"].append(float(at(p, q.ids[[q.probs.argmax()]])[0]))
            choices = [rule.choose(row, prefix) for rule in rules]
            agreed = [a == rule.choose(draft_row, prefix) for a, rule in zip(choices, rules, strict=True)]
            found["coupled"].append(statistics.mean(agreed))
            prefix.append(choices[0])
    means = (
        f"{name} {statistics.mean(values):.3f} +- {statistics.stdev(values) / len(values) ** 0.5:.3f}"
        for name, values in sorted(found.items())
    )
    print(f"temperature {temperature:g}, one token, {len(prompts) * n} positions: {', '.join(means)}", flush=True)


def _table(pair: Pair, temperature: float, options: argparse.Namespace) -> None:
    talk = conversation(pair.target.model, system=None, thinking=None, now=datetime.now)
    prompts = [
        talk.ask(text) if talk else pair.target.model.tokenize(text, add_special=True, parse_special=False)
        for text in PROMPTS
    ]
    _chances(pair, temperature, prompts, options.n)
    if options.repeats == 0:
        return
    totals: dict[str, RunStats] = defaultdict(RunStats)
    ratios: dict[str, list[float]] = defaultdict(list)
    speeds: dict[str, list[float]] = defaultdict(list)
    for repeat in range(options.repeats + 1):
        for i, prompt in enumerate(prompts):
            plain = 0.0
            for name in NAMES:
                stats = RunStats()
                rule, drafter = _parts(pair, name, temperature, seed=100 * repeat + i)
                for round_ in generate(
                    pair.target.session,
                    drafter,
                    FixedLength(options.k, give_up_after=10**9),
                    rule,
                    prompt,
                    max_tokens=options.n,
                    ends=lambda _: False,
                    clock=time.perf_counter,
                ):
                    stats.add(round_)
                    if repeat:
                        totals[name].add(round_)
                speed = stats.tokens_per_second or 0.0
                plain = speed if name == "plain" else plain
                if repeat:
                    ratios[name].append(speed / plain)
                    speeds[name].append(speed)
    for name in NAMES:
        total = totals[name]
        print(
            f"temperature {temperature:g} {name:9}: acceptance {total.acceptance or 0:.3f}, "
            f"{total.tokens_per_pass:.2f} tokens per pass, {statistics.median(speeds[name]):6.1f} tokens/s, "
            f"{statistics.median(ratios[name]):.2f} x plain ({min(ratios[name]):.2f} to {max(ratios[name]):.2f})",
            flush=True,
        )


def _parts(pair: Pair, name: str, temperature: float, seed: int) -> tuple[Rule, Drafter]:
    assert pair.draft is not None
    rule = RULES[name if name in RULES else "coupled"](_law(pair, temperature), seed=seed)
    if name == "plain":
        return rule, NoDrafter()
    drafts_by = SharedNoise(_law(pair, 0), seed=seed) if name == "argmax" else rule
    return rule, ModelDrafter(pair.draft.session, drafts_by, frozenset())


def _law(pair: Pair, temperature: float) -> Law:
    params = SamplingParams(temperature=temperature, top_k=0, top_p=1, min_p=0)
    return Law(params, n_shared=pair.rule.law.n_shared, banned=tuple(pair.end_tokens))


if __name__ == "__main__":
    main()
