"""JSON by a schema on a real model: valid, the same text with drafts and without, and more tokens a pass."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.decode.coupled import Rule, SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.rejection import BlockRejection, TokenRejection
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import FORCED, Drafter, Round
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.drafter import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.generation.grammar import open_grammar
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.settings import ContextSettings, ModelSettings
from specdec_cli.structured.source import GrammarSource

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
        "home": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 16},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["city", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}


def assert_person(text: str) -> None:
    person: dict[str, Any] = json.loads(text)
    assert list(person) == ["name", "age", "tags", "home"]
    assert isinstance(person["name"], str)
    assert len(person["name"]) <= 24
    assert type(person["age"]) is int
    assert 1 <= len(person["tags"]) <= 3
    assert set(person["tags"]) <= {"red", "green", "blue"}
    assert list(person["home"]) == ["city", "zip"]
    assert len(person["home"]["city"]) <= 16
    assert len(person["home"]["zip"]) == 5
    assert person["home"]["zip"].isdigit()


class Json:
    """SmolLM2 as target, with a weaker quantisation of itself as draft, writing persons."""

    def __init__(self, stack: ExitStack, target: Path, draft: Path) -> None:
        self.model, draft_model = (stack.enter_context(LlamaModel(ModelSettings(path))) for path in (target, draft))
        settings = ContextSettings(n_ctx=512, threads=1, max_rows=17)
        self.target, self.draft = (
            stack.enter_context(LlamaSession(model, settings)) for model in (self.model, draft_model)
        )
        self.grammar = open_grammar(GrammarSource("json-schema", json.dumps(PERSON)), self.model, lambda _: None, stack)
        self.end_tokens = self.model.end_tokens
        self.prompt = self.model.tokenize(
            "A person as JSON, with name, age, tags and home:\n", add_special=True, parse_special=False
        )

    def law(self, params: SamplingParams, *, most_forced: int = 0) -> Law:
        return Law(params, n_shared=self.model.n_vocab, grammar=self.grammar, most_forced=most_forced)

    def rounds(self, rule: Rule, k: int, drafter: str = "model") -> list[Round]:
        drafters: dict[str, Drafter] = {
            "model": ModelDrafter(self.draft, rule, self.end_tokens),
            "ngram": NgramDrafter(least_chance=0),
            "none": NoDrafter(),
        }
        return list(
            generate(
                self.target,
                drafters[drafter if k else "none"],
                FixedLength(k, give_up_after=10**9),
                rule,
                self.prompt,
                max_tokens=150,
                ends=lambda token: token in self.end_tokens,
                clock=time.perf_counter,
            )
        )

    def write(self, rule: Rule, k: int, drafter: str = "model") -> list[int]:
        return [token for round_ in self.rounds(rule, k, drafter) for token in round_.tokens]

    def text(self, tokens: Sequence[int]) -> str:
        return b"".join(self.model.token_bytes(token) for token in tokens).decode()


@pytest.fixture(scope="module")
def smollm2(smollm2_q8_0: Path, smollm2_q4_0: Path) -> Iterator[Json]:
    with ExitStack() as stack:
        yield Json(stack, smollm2_q8_0, smollm2_q4_0)


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_json_with_drafts_is_json_without(smollm2: Json, temperature: float) -> None:
    """More of them by scripts/checks/schema.py; every drafter on planted models in generation/test_matrix.py."""
    params = SamplingParams(temperature=temperature)
    plain = smollm2.write(SharedNoise(smollm2.law(params), seed=1), 0)
    assert_person(smollm2.text(plain))
    forced = SharedNoise(smollm2.law(params, most_forced=16), seed=1)
    for k, drafter in ((0, "none"), (1, "model"), (4, "model"), (8, "model"), (4, "ngram")):
        assert smollm2.write(forced, k, drafter) == plain


def test_what_the_schema_forces_takes_no_pass_of_its_own(smollm2: Json) -> None:
    """Keys, quotes, braces: at least two tokens a pass without any drafter, and not one of them wrong."""
    rounds = smollm2.rounds(SharedNoise(smollm2.law(SamplingParams(temperature=0), most_forced=16), seed=0), 0)
    forced = [r for r in rounds if r.source == FORCED]
    assert sum(len(r.drafted) for r in forced) == sum(r.n_accepted for r in forced)
    assert sum(len(r.tokens) for r in rounds) > 2 * len(rounds)


def test_before_and_behind_a_draft_comes_what_is_forced(smollm2: Json) -> None:
    """A draft of one token that ends a value has the quotation mark before it and the next key behind it."""
    rule = SharedNoise(smollm2.law(SamplingParams(temperature=0), most_forced=16), seed=0)
    drafted = [r for r in smollm2.rounds(rule, 1) if r.source != FORCED and len(r.drafted) > 1]
    assert all(r.n_drafted_by_source == 1 for r in drafted)
    assert all(r.k == len(r.drafted) <= 16 for r in drafted)
    assert any(r.n_forced_first for r in drafted)
    assert any(r.n_forced for r in drafted)
    assert all(r.n_accepted >= r.n_forced_first for r in drafted)
    assert any(r.n_accepted == len(r.drafted) for r in drafted)


def test_the_draft_goes_on_where_the_schema_leaves_a_choice(smollm2: Json) -> None:
    """In the same pass: fewer passes than with either of the two alone."""
    params = SamplingParams(temperature=0)
    alone = len(smollm2.rounds(SharedNoise(smollm2.law(params), seed=0), 4))
    forced = SharedNoise(smollm2.law(params, most_forced=16), seed=0)
    both = len(smollm2.rounds(forced, 4))
    assert both < alone
    assert both < len(smollm2.rounds(forced, 0))


@pytest.mark.parametrize("rule", [TokenRejection, BlockRejection])
def test_json_by_the_other_rules_is_json_too(smollm2: Json, rule: type[TokenRejection | BlockRejection]) -> None:
    law = smollm2.law(SamplingParams(temperature=1.0), most_forced=16)
    rounds = smollm2.rounds(rule(law, seed=3), 4)
    assert_person(smollm2.text([token for r in rounds for token in r.tokens]))
    assert all(r.n_accepted == len(r.drafted) for r in rounds if r.source == FORCED)
    assert any(r.n_forced_first for r in rounds)
    assert all(r.n_accepted >= r.n_forced_first for r in rounds)
