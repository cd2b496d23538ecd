"""Fields of requests: what they set, what is ignored, and what is refused."""

import json
from typing import Any

import pytest

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.errors import UsageError
from specdec_cli.planning.request import Sampling
from specdec_cli.serve.api_error import ApiError
from specdec_cli.serve.protocol import ChatRequest, Defaults, chat_request, completion_request
from specdec_cli.structured.source import GrammarSource

DEFAULTS = Defaults(Sampling(SamplingParams(temperature=0.6, top_k=20), seed=5), max_tokens=99)
MESSAGES = [{"role": "user", "content": "a"}]


def chat(**fields: Any) -> ChatRequest:
    return chat_request({"messages": MESSAGES, **fields}, DEFAULTS)


def test_what_is_left_out_is_as_on_the_command_line() -> None:
    wanted = chat().wanted
    assert wanted.sampling == DEFAULTS.sampling
    assert (wanted.max_tokens, wanted.n, wanted.n_logprobs, wanted.stop_strings) == (99, 1, None, ())
    assert (wanted.stream, wanted.include_usage) == (False, False)
    assert (
        chat(**dict.fromkeys(("temperature", "stop", "seed", "n", "tools", "stream_options", "logit_bias"))) == chat()
    )


def test_unknown_fields_are_ignored() -> None:
    assert chat(user="me", metadata={"a": 1}, store=True, cache_prompt=False, no_such_field=[1]) == chat()


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"temperature": 0}, "temperature", 0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"top_k": -1}, "top_k", 0),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"typical_p": 0.9}, "typical", 0.9),
        ({"top_n_sigma": -1}, "top_n_sigma", 0),
        ({"repeat_penalty": 1.1}, "repeat_penalty", 1.1),
        ({"repetition_penalty": 1.2}, "repeat_penalty", 1.2),
        ({"presence_penalty": 1}, "presence_penalty", 1),
        ({"frequency_penalty": -1.5}, "frequency_penalty", -1.5),
        ({"repeat_last_n": 7.0}, "repeat_last_n", 7),
        ({"dry_penalty_last_n": -1}, "dry_last_n", 2**31 - 1),
    ],
)
def test_samplers(fields: dict[str, Any], name: str, value: float) -> None:
    params = chat(**fields).wanted.sampling.params
    assert getattr(params, name) == value
    assert params.top_k == (value if name == "top_k" else 20)


def test_limits_stops_seeds_and_biases() -> None:
    assert chat(max_tokens=3).wanted.max_tokens == 3
    assert chat(max_tokens=3, max_completion_tokens=4).wanted.max_tokens == 4
    assert chat(max_tokens=-1).wanted.max_tokens is None
    assert chat(stop="x").wanted.stop_strings == ("x",)
    assert chat(stop=["x", "", "y"]).wanted.stop_strings == ("x", "y")
    assert chat(seed=-2).wanted.sampling.seed == 2**64 - 2
    assert chat_request({"messages": MESSAGES, "seed": -1}, Defaults(new_seed=lambda: 8)).wanted.sampling.seed == 8
    sampling = chat(logit_bias={"7": -3, "9": 100}).wanted.sampling
    assert dict(sampling.bias) == {7: -3.0, 9: 100.0}
    sampling = chat(logit_bias=[[7, 1.5], ["8", False]]).wanted.sampling
    assert (dict(sampling.bias), sampling.banned) == ({7: 1.5}, (8,))
    assert chat(logprobs=True).wanted.n_logprobs == 0
    assert chat(logprobs=True, top_logprobs=4).wanted.n_logprobs == 4


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "kind", "holds"),
    [
        ({"response_format": {"type": "json_object"}}, "json-schema", {"type": "object"}),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json-schema", SCHEMA),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "json-schema",
            SCHEMA,
        ),
        ({"json_schema": SCHEMA}, "json-schema", SCHEMA),
    ],
)
def test_structured_output(fields: dict[str, Any], kind: str, holds: Any) -> None:
    grammar = chat(**fields).wanted.sampling.grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.text)) == (kind, holds)


def test_gbnf_and_plain_text() -> None:
    assert chat(grammar='root ::= "a"').wanted.sampling.grammar == GrammarSource("gbnf", 'root ::= "a"')
    assert chat(grammar="", response_format={"type": "text"}).wanted.sampling.grammar is None


@pytest.mark.parametrize(
    "fields",
    [
        {"mirostat": 2},
        {"xtc_probability": 0.1},
        {"best_of": 2},
        {"functions": [{}]},
        {"chat_template": "x"},
        {"samplers": ["top_k"]},
        {"lora": [{"id": 0}]},
        {"min_tokens": 3},
        {"modalities": ["audio"]},
        {"temperature": "1"},
        {"temperature": True},
        {"top_k": 1.5},
        {"n": 0},
        {"n": 1000},
        {"stream": "yes"},
        {"stop": 3},
        {"stop": [1]},
        {"seed": 2**70},
        {"logit_bias": {"a": 1}},
        {"logit_bias": {"1": "x"}},
        {"logit_bias": 4},
        {"top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 21},
        {"response_format": {"type": "xml"}},
        {"response_format": "json"},
        {"response_format": {"type": "json_object"}, "grammar": "root ::= x"},
        {"prediction": {"type": "content"}},
        {"prediction": "a"},
        {"messages": []},
        {"messages": "hi"},
        {"stream_options": []},
        {"chat_template_kwargs": []},
        {"tool_choice": "required"},
        {"tools": [{}]},
    ],
)
def test_what_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert refused.value.status == 400
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert refused.value.headers == {"x-should-retry": "false"}


def test_what_turns_an_unsupported_field_off_is_allowed() -> None:
    off = {"mirostat": 0, "xtc_probability": 0.0, "best_of": 1, "functions": [], "suffix": "", "modalities": ["text"]}
    assert chat(**off) == chat()


def test_samplers_out_of_range_are_refused_by_the_samplers() -> None:
    with pytest.raises(UsageError):
        chat(temperature=-1)


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_prompts_of_completions(prompt: Any, found: Any) -> None:
    assert completion_request({"prompt": prompt}, DEFAULTS, 10).prompts == found


@pytest.mark.parametrize("prompt", [None, 3, [], [[]], [1, "a"], [1, 10], [-1], [True], [["a"]], {"a": 1}])
def test_prompts_that_are_none(prompt: Any) -> None:
    with pytest.raises(ApiError):
        completion_request({"prompt": prompt}, DEFAULTS, 10)


@pytest.mark.parametrize("body", [None, 3, "a", []])
def test_bodies_that_are_no_objects(body: Any) -> None:
    with pytest.raises(ApiError):
        completion_request(body, DEFAULTS, 10)
