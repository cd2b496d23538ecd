"""Grammars on llama.cpp's sampler: states for any text asked about, and JSON with drafts as without."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from specdec_cli.decode.coupled import Rule, SharedNoise
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.rejection import BlockRejection
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.types import Drafter
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.drafter import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import DecodeFailed, UsageError
from specdec_cli.llama.grammar import LlamaGrammar, gbnf_of_schema
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.settings import ContextSettings, ModelSettings
from tests.planted import make_vocab, write_vocab_only

EOS = 2
EVERYTHING = np.arange(320)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """Words of one and two letters, each with a space before it."""
    path = write_vocab_only(tmp_path_factory.mktemp("vocab") / "v.gguf", make_vocab(320))
    with LlamaModel(ModelSettings(path), vocab_only=True) as opened:
        yield opened


def ids(model: LlamaModel, text: str) -> list[int]:
    return model.tokenize(text, add_special=False, parse_special=False)


def following(model: LlamaModel, grammar: LlamaGrammar, text: Sequence[int]) -> set[bytes]:
    """What may follow, without the tokens of single bytes."""
    allowed = EVERYTHING[grammar.allowed(text, EVERYTHING)]
    assert grammar.all_allowed(text).tolist() == allowed.tolist()
    return {model.marked_bytes(int(token)) for token in allowed if token == EOS or token > 259}


def test_what_may_follow_and_when_it_may_end(model: LlamaModel) -> None:
    with LlamaGrammar(model, 'root ::= " a" (" b" | " c")?') as grammar:
        assert following(model, grammar, []) == {b" a"}
        assert following(model, grammar, ids(model, "a")) == {b" b", b" c", b"</s>"}
        assert following(model, grammar, ids(model, "a b")) == {b"</s>"}


def test_after_the_end_everything_goes(model: LlamaModel) -> None:
    """The row behind an end token in a draft is asked about, and then thrown away."""
    with LlamaGrammar(model, 'root ::= " a"') as grammar:
        assert grammar.allowed([*ids(model, "a"), EOS], EVERYTHING).all()
        assert grammar.allowed([*ids(model, "a"), EOS, 270], EVERYTHING).all()


def test_a_text_outside_the_grammar_is_an_error_and_no_abort(model: LlamaModel) -> None:
    with LlamaGrammar(model, 'root ::= " a"+') as grammar:
        for text in (ids(model, "b"), [EOS], [*ids(model, "a"), 0]):
            with pytest.raises(DecodeFailed, match="grammar"):
                grammar.allowed(text, EVERYTHING)
        assert following(model, grammar, ids(model, "a")) == {b" a", b"</s>"}


def test_any_order_of_questions_gives_the_same_answers(model: LlamaModel) -> None:
    """Forward, back, beside, far back: as a grammar that never heard another text."""
    gbnf = 'root ::= (" a" " b"* | " c" " a" | " d")+'
    random = Random(3)
    texts = [[]]
    with LlamaGrammar(model, gbnf) as fresh:
        for _ in range(300):
            text = random.choice(texts[-20:])
            allowed = EVERYTHING[fresh.allowed(text, EVERYTHING)]
            texts.append([*text, int(random.choice([t for t in allowed if t > 259]))])
    random.shuffle(texts)
    with LlamaGrammar(model, gbnf) as used:
        for text in texts:
            with LlamaGrammar(model, gbnf) as fresh:
                assert following(model, used, text) == following(model, fresh, text)


def test_a_long_text_goes_back_to_its_beginning(model: LlamaModel) -> None:
    text = ids(model, "a " * 400)
    with LlamaGrammar(model, 'root ::= " a"{1,401}') as grammar:
        for n in (400, 3, 399, 0, 398):
            assert following(model, grammar, text[:n]) == ({b" a", b"</s>"} if n else {b" a"})


# --- schemas ----------------------------------------------------------------------------------------------

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
        "home": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 16},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["city", "zip"],
        },
    },
    "required": ["name", "age", "tags", "home"],
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


def test_strings_hold_no_control_characters(model: LlamaModel) -> None:
    """The converter of llama-cpp-python lets them in, and then the text is no JSON."""
    with LlamaGrammar(model, gbnf_of_schema('{"type": "string"}')) as grammar:
        allowed = grammar.allowed([3 + ord('"')], EVERYTHING)
    assert not allowed[3 : 3 + 32].any()
    assert allowed[3 + ord("a")]


@pytest.mark.parametrize("schema", ["[]", "nothing", '{"type": "many"}', '{"$ref": "#/definitions/none"}'])
def test_what_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(UsageError, match="JSON schema"):
        gbnf_of_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 0},
        {"properties": {"a": {"type": "array", "items": {"type": "number", "multipleOf": 2}}}},
        {"anyOf": [{"type": "string"}, {"not": {"type": "null"}}]},
        {"type": "string", "pattern": '^[^"]*$'},
    ],
    ids=str,
)
def test_what_a_grammar_cannot_keep_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        gbnf_of_schema(json.dumps(schema))


def test_names_of_properties_are_no_keywords() -> None:
    gbnf_of_schema(json.dumps({"properties": {"not": {"type": "string"}, "minimum": {"const": 3}}}))


class Json:
    """SmolLM2 as target, with a weaker quantisation of itself as draft, writing persons."""

    def __init__(self, stack: ExitStack, target: Path, draft: Path) -> None:
        self.model, draft_model = (stack.enter_context(LlamaModel(ModelSettings(path))) for path in (target, draft))
        settings = ContextSettings(n_ctx=512, threads=1, max_rows=9)
        self.target, self.draft = (
            stack.enter_context(LlamaSession(model, settings)) for model in (self.model, draft_model)
        )
        self.grammar = stack.enter_context(LlamaGrammar(self.model, gbnf_of_schema(json.dumps(PERSON))))
        self.end_tokens = self.model.end_tokens
        self.prompt = ids(self.model, "A person as JSON, with name, age, tags and home:\n")

    def law(self, params: SamplingParams) -> Law:
        return Law(params, n_shared=self.model.n_vocab, grammar=self.grammar)

    def write(self, rule: Rule, k: int, drafter: str = "model") -> list[int]:
        drafters: dict[str, Drafter] = {
            "model": ModelDrafter(self.draft, rule, self.end_tokens),
            "ngram": NgramDrafter(least_chance=0),
            "none": NoDrafter(),
        }
        rounds = generate(
            self.target,
            drafters[drafter if k else "none"],
            FixedLength(k, give_up_after=10**9),
            rule,
            self.prompt,
            max_tokens=150,
            ends=lambda token: token in self.end_tokens,
            clock=time.perf_counter,
        )
        return [token for round_ in rounds for token in round_.tokens]

    def text(self, tokens: Sequence[int]) -> str:
        return b"".join(self.model.token_bytes(token) for token in tokens).decode()


@pytest.fixture(scope="module")
def smollm2(smollm2_q8_0: Path, smollm2_q4_0: Path) -> Iterator[Json]:
    with ExitStack() as stack:
        yield Json(stack, smollm2_q8_0, smollm2_q4_0)


@pytest.mark.parametrize(
    ("params", "seed"),
    [(SamplingParams(temperature=0), 0), (SamplingParams(), 1), (SamplingParams(temperature=1.0), 2)],
    ids=["greedy", "0.8", "1.0"],
)
def test_json_with_drafts_is_json_without(smollm2: Json, params: SamplingParams, seed: int) -> None:
    """More of them, for every k, by scripts/checks/schema.py."""
    rule = SharedNoise(smollm2.law(params), seed=seed)
    plain = smollm2.write(rule, 0)
    assert_person(smollm2.text(plain))
    for k, drafter in ((4, "model"), (8, "model"), (5, "ngram")):
        assert smollm2.write(rule, k, drafter) == plain


def test_json_by_blocks_is_json_too(smollm2: Json) -> None:
    for seed in range(2):
        rule = BlockRejection(smollm2.law(SamplingParams(temperature=1.0)), seed=seed)
        assert_person(smollm2.text(smollm2.write(rule, 4)))
