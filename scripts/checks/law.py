"""The law of the text over many tokens: a chain of known probabilities, written through llama.cpp by every rule.

    python -m scripts.checks.law [-n 1000000] [--rule coupled,rejection,block] [-k 4]

The target is a planted model (tests/planted.py): a Markov chain of five words whose every transition is
written down. Prints the chi-square test of all transitions against the target's chain, and what the same
test says of the draft's chain and of a temperature that is 1 % off.
"""

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import RunStats
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.generation.rules import RULES
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.settings import ContextSettings, ModelSettings
from tests.planted import Chain, disturbed, random_chain, write_planted

N_VOCAB, PROMPT, TEXT = 8, 5, 1000
UNCUT = SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=1_000_000)
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--rule", default=",".join(RULES))
    options = parser.parse_args()
    p = random_chain(N_VOCAB, 11, sharpness=2.0)
    q = disturbed(p, 0.7, 12)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        target = _open(stack, write_planted(folder / "p.gguf", p), options.k + 1)
        draft = _open(stack, write_planted(folder / "q.gguf", q), 1)
        for rule in options.rule.split(","):
            began = time.perf_counter()
            counts, run = _write(target, draft, rule, options.k, options.n)
            print(
                f"{rule}: {counts.sum():,} tokens in {time.perf_counter() - began:.0f} s, "
                f"acceptance {run.acceptance:.4f}, {run.tokens_per_pass:.3f} tokens per pass; "
                f"chance of such counts: target's law {_chance(counts, p):.3f}, "
                f"draft's law {_chance(counts, q):.1e}, temperature 1 % off {_chance(counts, _tempered(p, 0.99)):.1e}",
                flush=True,
            )


def _open(stack: ExitStack, path: Path, max_rows: int) -> LlamaSession:
    model = stack.enter_context(LlamaModel(ModelSettings(path)))
    return stack.enter_context(LlamaSession(model, ContextSettings(n_ctx=TEXT + 8, threads=1, max_rows=max_rows)))


def _write(
    target: LlamaSession, draft: LlamaSession, name: str, k: int, n_tokens: int
) -> tuple[NDArray[np.int64], RunStats]:
    """Transitions [V, V] of as many texts as give `n_tokens`, each with a seed of its own."""
    counts, run = np.zeros((N_VOCAB, N_VOCAB), np.int64), RunStats()
    for seed in range(-(-n_tokens // TEXT)):
        rule = RULES[name](Law(UNCUT, n_shared=N_VOCAB), seed=seed)
        text = [PROMPT]
        for round_ in generate(
            target,
            ModelDrafter(draft, rule, frozenset()),
            FixedLength(k, give_up_after=10**9),
            rule,
            [PROMPT],
            max_tokens=TEXT,
            ends=lambda _: False,
            clock=time.perf_counter,
        ):
            run.add(round_)
            text += round_.tokens
        np.add.at(counts, (text[:-1], text[1:]), 1)
    return counts, run


def _tempered(chain: Chain, temperature: float) -> Chain:
    weights = chain ** (1 / temperature)
    return weights / weights.sum(axis=1, keepdims=True)


def _chance(counts: NDArray[np.int64], chain: Chain) -> float:
    """Of counts at least this far from the chain, over all rows."""
    expected = counts.sum(axis=1, keepdims=True) * chain
    possible = expected > 0
    if counts[~possible].any():
        return 0.0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = int(possible.sum() - (counts.sum(axis=1) > 0).sum())
    return float(stats.chi2.sf(statistic, freedom))


if __name__ == "__main__":
    main()
