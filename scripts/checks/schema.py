"""JSON by a schema, with and without drafts: the same tokens for every k, and valid JSON.

    python -m scripts.checks.schema TARGET DRAFT [-n 200] [-k 1,2,4,8]

Every generation has a seed and one of four temperatures. Use a target whose numbers do not depend on the
width of a pass (Q8_0, Q4_0); others can differ at near ties.
"""

import argparse
import json
import time
from pathlib import Path

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import RunStats
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.generation.pair import Pair, open_pair
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.grammar import LlamaGrammar, gbnf_of_schema
from specdec_cli.planning.plan import PairRequest
from tests.llama.test_grammar import PERSON, assert_person

PROMPT = "A person as JSON, with name, age, tags and home:\n"
TEMPERATURES = (0.0, 0.5, 0.8, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("-k", default="1,2,4,8")
    options = parser.parse_args()
    ks = [int(k) for k in options.k.split(",")]
    gbnf, different, invalid, tokens = gbnf_of_schema(json.dumps(PERSON)), 0, 0, 0
    stats, began = RunStats(), time.perf_counter()
    request = PairRequest(options.target, options.draft, "model", max(ks), seed=0, n_ctx=512, force=True)
    with (
        open_pair(request, say=lambda _: None, abort=AbortFlag()) as pair,
        LlamaGrammar(pair.target.model, gbnf) as grammar,
    ):
        for seed in range(options.n):
            params = SamplingParams(temperature=TEMPERATURES[seed % 4])
            rule = SharedNoise(Law(params, n_shared=pair.rule.law.n_shared, grammar=grammar), seed=seed)
            plain = _write(pair, rule, 0, RunStats())
            tokens += len(plain)
            invalid += not _is_valid(b"".join(map(pair.target.model.token_bytes, plain)).decode("utf-8", "replace"))
            different += sum(_write(pair, rule, k, stats) != plain for k in ks)
    print(
        f"{options.n} generations of {tokens / options.n:.0f} tokens: {invalid} not valid; of {options.n * len(ks)} "
        f"with drafts (k {options.k}) {different} differ from plain decoding; acceptance {stats.acceptance:.2f}; "
        f"{time.perf_counter() - began:.0f} s"
    )


def _write(pair: Pair, rule: SharedNoise, k: int, stats: RunStats) -> list[int]:
    ids = pair.target.model.tokenize(PROMPT, add_special=True, parse_special=False)
    assert pair.draft is not None
    rounds = generate(
        pair.target.session,
        ModelDrafter(pair.draft.session, rule, pair.end_tokens) if k else NoDrafter(),
        FixedLength(k, give_up_after=10**9),
        rule,
        ids,
        max_tokens=200,
        ends=lambda token: token in pair.end_tokens,
        clock=time.perf_counter,
    )
    text: list[int] = []
    for round_ in rounds:
        stats.add(round_)
        text += round_.tokens
    return text


def _is_valid(text: str) -> bool:
    try:
        assert_person(text)
    except (AssertionError, ValueError):
        return False
    return True


if __name__ == "__main__":
    main()
