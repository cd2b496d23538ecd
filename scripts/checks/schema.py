"""JSON by a schema: the same tokens with drafts as without, valid, and how many tokens a pass.

    python -m scripts.checks.schema TARGET DRAFT [-n 200] [-k 1,4,8]

Every generation has a seed and one of four temperatures. It is written by plain decoding, then by each drafter for
each k, with and without drafts by the grammar itself. Use a target whose numbers do not depend on the width of a pass
(Q8_0, Q4_0); others can differ at near ties.
"""

import argparse
import json
import time
from contextlib import ExitStack
from pathlib import Path

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import Drafter
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.drafter import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.generation.grammar import open_grammar
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.settings import LONGEST_FORCED, ContextSettings, ModelSettings
from specdec_cli.structured.source import GrammarSource
from tests.structured.test_json_drafts import PERSON, assert_person

PROMPT = "A person as JSON, with name, age, tags and home:\n"
TEMPERATURES = (0.0, 0.5, 0.8, 1.0)


class Bed:
    """Both models, opened once, and the grammar."""

    def __init__(self, stack: ExitStack, target: Path, draft: Path) -> None:
        models = [stack.enter_context(LlamaModel(ModelSettings(path))) for path in (target, draft)]
        settings = ContextSettings(n_ctx=512, threads=1, max_rows=LONGEST_FORCED + 1)
        self.model = models[0]
        self.target, self.draft = (stack.enter_context(LlamaSession(model, settings)) for model in models)
        self.grammar = open_grammar(GrammarSource("json-schema", json.dumps(PERSON)), self.model, print, stack)
        self.prompt = self.model.tokenize(PROMPT, add_special=True, parse_special=False)

    def rule(self, seed: int, most_forced: int) -> SharedNoise:
        params = SamplingParams(temperature=TEMPERATURES[seed % len(TEMPERATURES)])
        law = Law(params, n_shared=self.model.n_vocab, grammar=self.grammar, most_forced=most_forced)
        return SharedNoise(law, seed=seed)

    def write(self, seed: int, drafter: str, k: int, most_forced: int, stats: RunStats) -> list[int]:
        rule, ends = self.rule(seed, most_forced), self.model.end_tokens
        drafters: dict[str, Drafter] = {
            "model": ModelDrafter(self.draft, rule, ends),
            "ngram": NgramDrafter(),
            "none": NoDrafter(),
        }
        text: list[int] = []
        for round_ in generate(
            self.target,
            drafters[drafter],
            FixedLength(k, give_up_after=10**9),
            rule,
            self.prompt,
            max_tokens=200,
            ends=lambda token: token in ends,
            clock=time.perf_counter,
        ):
            stats.add(round_)
            text += round_.tokens
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("-k", default="1,4,8")
    options = parser.parse_args()
    ways = [("none", 0), *((drafter, int(k)) for drafter in ("ngram", "model") for k in options.k.split(","))]
    with ExitStack() as stack:
        bed = Bed(stack, options.target, options.draft)
        plain = [bed.write(seed, "none", 0, 0, RunStats()) for seed in range(options.n)]
        n_invalid = sum(not _is_valid(bed.model, text) for text in plain)
        print(f"{options.n} texts of {sum(map(len, plain)) / options.n:.0f} tokens, {n_invalid} not valid")
        print("drafter    k  tokens per pass: alone  with the grammar's drafts  texts that differ")
        for drafter, k in ways:
            found = []
            n_different = 0
            for most_forced in (0, LONGEST_FORCED):
                stats = RunStats()
                written = [bed.write(seed, drafter, k, most_forced, stats) for seed in range(options.n)]
                n_different += sum(one != other for one, other in zip(written, plain, strict=True))
                found.append(stats.tokens_per_pass or 0.0)
            print(f"{drafter:8} {k:3}  {found[0]:22.2f}  {found[1]:25.2f}  {n_different:17}", flush=True)


def _is_valid(model: LlamaModel, tokens: list[int]) -> bool:
    try:
        assert_person(b"".join(map(model.token_bytes, tokens)).decode())
    except (AssertionError, ValueError):
        return False
    return True


if __name__ == "__main__":
    main()
