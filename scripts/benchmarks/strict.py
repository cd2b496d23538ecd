"""What --strict costs and how many divergences it removes, on a pair whose numbers depend on the width of a pass.

    python -m scripts.benchmarks.strict TARGET DRAFT [-k 4] [-n 128] [--prompt-tokens 40] [--texts 12]
        [--threads N] [--kv f16]

Every text (a seed, a prompt, greedy or temperature 0.8) is written plain, with drafts, and with drafts and
--strict. Texts count as divergent if one token differs from the plain text.
"""

import argparse
import statistics
import time
from pathlib import Path

from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.strict import Strict
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.generation.rules import make_strict
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.request import Drafting, PairRequest, Placement, Sampling

SAMPLERS = (SamplingParams(temperature=0), SamplingParams())
WORDS = (Path(__file__).parent.parent.parent / "docs" / "log.md").read_text(encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=40)
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kv", default="f16")
    options = parser.parse_args()
    print(f"{options.target.name} + {options.draft.name}, k {options.k}, {options.texts} texts of {options.n} tokens")
    for sampling in SAMPLERS:
        _compare(sampling, options)


def _compare(sampling: SamplingParams, options: argparse.Namespace) -> None:
    apart = {"loose": 0, "strict": 0}
    speeds: dict[str, list[float]] = {"plain": [], "loose": [], "strict": []}
    noise, settled, drafts = 0.0, 0, set()
    counts = {"loose": RunStats(), "strict": RunStats()}
    for seed in range(options.texts):
        request = PairRequest(
            options.target,
            Drafting("model", options.k, options.draft, strict=True, force=True),
            Sampling(seed=seed, params=sampling),
            Placement(n_ctx=2048, threads=options.threads, cache_type=options.kv),
        )
        with open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair:
            prompt = _prompt(pair, seed, options.prompt_tokens)
            plain = _write(pair, 0, prompt, options.n, None, speeds["plain"], RunStats())
            for name in apart:
                strict = make_strict(request, pair.rule) if name == "strict" else None
                text = _write(pair, options.k, prompt, options.n, strict, speeds[name], counts[name])
                apart[name] += text != plain
                if strict is not None:
                    noise, settled = max(noise, strict.noise), settled + strict.n_settled
                    drafts.add(strict.longest)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    print(
        f"{sampling}: divergent without --strict {apart['loose']}, with it {apart['strict']}; "
        f"longest drafts {drafts}, width noise {noise:.2f}; "
        f"{settled / counts['strict'].passes:.2f} choices made again per pass; "
        f"tokens per pass {counts['loose'].tokens_per_pass:.2f}, strict {counts['strict'].tokens_per_pass:.2f}; "
        f"tokens/s plain {medians['plain']:.1f}, "
        f"drafts {medians['loose']:.1f}, strict {medians['strict']:.1f}",
        flush=True,
    )


def _prompt(pair: Pair, seed: int, n: int) -> list[int]:
    ids = pair.target.model.tokenize(WORDS[seed * 150 :], add_special=True, parse_special=False)
    return ids[:n]


def _write(
    pair: Pair, k: int, prompt: list[int], n: int, strict: Strict | None, speeds: list[float], stats: RunStats
) -> list[int]:
    run, text = RunStats(), []
    for round_ in generate(
        pair.target.session,
        pair.decoding.drafter if k else NoDrafter(),
        FixedLength(k, give_up_after=10**9),
        pair.rule,
        prompt,
        max_tokens=n,
        ends=lambda _: False,
        clock=time.perf_counter,
        strict=strict,
    ):
        run.add(round_)
        stats.add(round_)
        text += round_.tokens
    speeds.append(run.tokens_per_second or 0.0)
    return text


if __name__ == "__main__":
    main()
