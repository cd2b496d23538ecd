"""How far the estimated gain is from the measured one, on a real pair.

    python -m scripts.benchmarks.gain_estimate TARGET DRAFT [-k auto|N] [-n 160] [--prompts 6]

Each prompt is answered plainly, with drafts, and plainly again. What the drafted answer estimates of plain decoding is
held against the mean of the two plain answers beside it: by as much the estimate of the gain is off. The two plain
answers' own difference says how far the machine drifted meanwhile.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from specdec_cli.decode.plain_pace import PlainChecks
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import RunStats
from specdec_cli.generation.json_document import versions
from specdec_cli.generation.pair import Decoding, Pair, open_pair, plain_decoding
from specdec_cli.generation.prompts import conversation
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling
from specdec_cli.settings import AUTO, LONGEST_AUTO

PROMPTS = (
    "Write a short story about a lighthouse.",
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the prime numbers below n, with a docstring.",
    "List ten things to pack for a week of camping.",
    "Translate into French: The old man walked slowly along the beach, looking for his dog.",
    "Write an e-mail that asks a landlord to repair a heater.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("-k", default=AUTO)
    parser.add_argument("-n", type=int, default=160)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    options = parser.parse_args()
    with open_pair(_request(options), say=lambda _: None, abort=AbortFlag()) as pair:
        _answer(pair, _ids(pair, PROMPTS[0]), pair.decoding, 16)  # the first of all is not like the others
        errors = [_row(pair, text, options.n) for text in PROMPTS[: options.prompts]]
    print(
        f"{options.target.name} + {options.draft.name}, k {options.k}: off by {statistics.median(errors):.1%} "
        f"(median), {max(errors):.1%} (most)"
    )
    print(", ".join(f"{k} {v}" for k, v in versions().items() if k != "llama_cpp_features"))


def _request(options: argparse.Namespace) -> PairRequest:
    is_auto = options.k == AUTO
    drafting = Drafting("model", LONGEST_AUTO if is_auto else int(options.k), options.draft, auto=is_auto, force=True)
    return PairRequest(options.target, drafting, Sampling(SamplingParams(temperature=0), seed=1), Placement(n_ctx=1024))


def _ids(pair: Pair, text: str) -> list[int]:
    talk = conversation(pair.target.model, system=None, thinking=None, now=datetime.now)
    return talk.ask(text) if talk else pair.target.model.tokenize(text, add_special=True, parse_special=False)


def _row(pair: Pair, text: str, n: int) -> float:
    """One prompt; the share by which the estimate is off."""
    ids, plain = _ids(pair, text), plain_decoding(pair.rule)
    before = _answer(pair, ids, plain, n)
    drafted = _answer(pair, ids, pair.decoding, n)
    after = _answer(pair, ids, plain, n)
    gain = drafted.gain
    seconds = [1 / stats.tokens_per_second for stats in (before, after) if stats.tokens_per_second]
    if gain is None or not seconds:
        raise SystemExit("Nothing was drafted, so that there is nothing to estimate: give -k.")
    measured = statistics.mean(seconds) * (drafted.tokens_per_second or 0.0)
    off = gain.speedup / measured - 1
    print(
        f"measured {measured:.2f}, estimated {gain.speedup:.2f} +- {gain.plain.spread:.0%}, off by {off:+.1%}; "
        f"plain {1 / seconds[0]:.1f} and {1 / seconds[-1]:.1f} tokens/s; "
        f"{drafted.plain_pace.n_plain} of {drafted.passes} passes plain: {text}",
        flush=True,
    )
    return abs(off)


def _answer(pair: Pair, ids: Sequence[int], decoding: Decoding, n: int) -> RunStats:
    stats = RunStats()
    pair.target.session.forget()
    checks = PlainChecks() if decoding is pair.decoding else None
    for round_ in pair.rounds(
        ids, decoding, max_tokens=n, clock=time.perf_counter, ends=lambda _: False, checks=checks
    ):
        stats.add(round_)
    return stats


if __name__ == "__main__":
    main()
