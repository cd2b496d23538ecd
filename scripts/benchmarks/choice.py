"""Time of one choice of the default rule on a row of random logits, without a model.

    python -m scripts.benchmarks.choice

Prints microseconds (median of 200) for vocabularies of 49,152 and 262,144 tokens: greedy, llama.cpp's
default cuts, and no cuts at all.
"""

import statistics
import time

import numpy as np

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams

SAMPLERS = (
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0),
)


def main() -> None:
    for n_vocab in (49_152, 262_144):
        row = (np.random.default_rng(0).normal(size=n_vocab) * 2.5).astype(np.float32)
        for sampler in SAMPLERS:
            rule = SharedNoise(Law(sampler, n_shared=n_vocab), seed=1)
            times = []
            for position in range(200):
                began = time.perf_counter()
                rule.choose(row, range(position))
                times.append(time.perf_counter() - began)
            print(f"{n_vocab:,} tokens, {sampler}: {statistics.median(times) * 1e6:.0f} microseconds")


if __name__ == "__main__":
    main()
