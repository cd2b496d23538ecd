"""Tools: what a required call must look like, and calls that are found in a text."""

import json
from typing import Any

import jsonschema
import pytest

from specdec_cli.serve.api_error import ApiError
from specdec_cli.serve.fields import Fields
from specdec_cli.serve.tools import Call, Tools, read_tools
from specdec_cli.structured.compiler import check

WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"City": {"enum": ["Rome", "Oslo"]}},
    },
}
CLOCK = {"name": "clock"}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": CLOCK}]
ROME = '{"name": "weather", "arguments": {"city": "Rome"}}'


def tools(**fields: Any) -> Tools:
    return read_tools(Fields({"tools": TOOLS, **fields}))


def test_who_may_be_called() -> None:
    assert tools().names == tools(tool_choice="auto").names == {"weather", "clock"}
    assert tools(tool_choice="auto").grammar is None
    assert (tools(tool_choice="none").told, tools(tool_choice="none").names) == ((), frozenset())
    named = tools(tool_choice={"type": "function", "function": {"name": "clock"}})
    assert named.names == {"clock"}
    assert len(named.told) == 2


def test_the_grammar_of_a_required_call() -> None:
    required = tools(tool_choice="required").grammar
    named = tools(tool_choice={"type": "function", "function": {"name": "clock"}}).grammar
    assert required is not None
    assert named is not None
    for grammar, right, wrong in (
        (
            required,
            [json.loads(ROME), {"name": "clock", "arguments": {}}],
            [{"name": "weather", "arguments": {"city": "Bonn"}}],
        ),
        (named, [{"name": "clock", "arguments": {"a": 1}}], [json.loads(ROME), {"name": "clock"}]),
    ):
        schema = json.loads(grammar.text)
        for one in right:
            jsonschema.validate(one, schema)
        for one in wrong:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(one, schema)
        check(grammar)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"<tool_call>\n{ROME}\n</tool_call>", "", 1),
        (f"Let me see.\n<tool_call>{ROME}</tool_call>\n<tool_call>{ROME}</tool_call>", "Let me see.", 2),
        (f"[TOOL_CALLS] [{ROME}, {ROME}]", "", 2),
        (f"[{ROME}]", "", 1),
        ('{"name": "weather", "parameters": {"city": "Rome"}}', "", 1),
        ('<|python_tag|>{"name": "weather", "parameters": {"city": "Rome"}}', "", 1),
        (f"<think>{{hm}}</think>\n\n{ROME}", "<think>{hm}</think>", 1),
        ("It is sunny.", None, 0),
        ('{"name": "launch", "arguments": {}}', None, 0),
        ("<tool_call>no JSON</tool_call>", None, 0),
        (f"<tool_call>{ROME}</tool_call><tool_call>x</tool_call>", None, 0),
        (f"He wrote {ROME} there", None, 0),
        ("[" * 100_000, None, 0),
        ("[]", None, 0),
        ("", None, 0),
    ],
)
def test_calls_in_a_text(text: str, content: str | None, calls: int) -> None:
    found = tools().split(text)
    assert found == (text if content is None else content, [Call("weather", '{"city": "Rome"}')] * calls)


def test_what_is_streamed_is_never_part_of_a_call() -> None:
    """However the text is cut, what was sent is a beginning of the content."""
    for text in (f"See.\n<tool_call>{ROME}</tool_call>", f" {ROME}", f"[TOOL_CALLS][{ROME}]", "Ab <tool", "a [b] {c}"):
        content, _ = tools().split(text)
        for n in range(len(text) + 1):
            assert content.startswith(text[: tools().safe(text[:n])].rstrip())
    assert tools().safe("It is <b>") == 9
    assert tools(tool_choice="none").safe('{"a') == 3
    assert tools(tool_choice="required").safe("abc") == 0


def test_a_required_call_is_found_behind_a_thought() -> None:
    required = tools(tool_choice="required")
    assert required.split(ROME) == ("", [Call("weather", '{"city": "Rome"}')])
    assert required.split(f"<think>a</think>{ROME}") == ("<think>a</think>", [Call("weather", '{"city": "Rome"}')])
    assert required.split(ROME[:-3]) == (ROME[:-3], [])


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": {}},
        {"tools": [3]},
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function", "function": {"name": ""}}]},
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": [1]}}]},
        {"tool_choice": "some"},
        {"tool_choice": {"type": "function"}},
        {"tool_choice": {"type": "function", "function": {"name": "launch"}}},
        {"tool_choice": {"type": "allowed_tools"}},
    ],
)
def test_what_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        tools(**fields)
