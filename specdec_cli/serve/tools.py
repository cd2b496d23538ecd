"""Tools: a grammar where a call is required, and finding calls in a text where the model may choose. Pure functions."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec_cli.serve.api_error import ApiError, invalid, unsupported
from specdec_cli.serve.fields import Fields
from specdec_cli.structured.source import GrammarSource

_THOUGHT_ENDS = ("</think>", "</thinking>", "[/THINK]", "</seed:think>", "<|END_THINKING|>")
_OPENINGS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_HERMES = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function; `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request. `told` are the declarations that the template is given, `names` those that may be called;
    `grammar` is what the answer keeps to where a call is required."""

    told: Sequence[Mapping[str, Any]] = ()
    names: frozenset[str] = field(default_factory=frozenset)
    grammar: GrammarSource | None = None

    def split(self, text: str) -> tuple[str, list[Call]]:
        """The content and the calls of a whole answer."""
        if self.grammar is None:
            return calls_in(text, self.names)
        thought, answer = _after_thought(text)
        calls = _calls_from(answer, self.names)
        return (thought, calls) if calls else (text, [])

    def safe(self, text: str) -> int:
        """How many characters of a text that goes on are certainly content: nothing from where a call may begin."""
        if not self.names:
            return len(text)
        if self.grammar is not None:
            return 0
        if text.lstrip()[:1] in ("{", "[", ""):
            return 0
        starts = [at for opening in _OPENINGS if (at := text.find(opening)) >= 0]
        if starts:
            return min(starts)
        longest = max(
            (n for opening in _OPENINGS for n in range(1, len(opening)) if text.endswith(opening[:n])), default=0
        )
        return len(text) - longest


def read_tools(fields: Fields) -> Tools:
    """Raises ApiError (400)."""
    declared = [_function(tool) for tool in fields.items("tools") or ()]
    choice = fields.get("tool_choice")
    if not declared:
        if choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice needs tools.", param="tool_choice")
        return Tools()
    names = [str(function["name"]) for function in declared]
    if choice == "none":
        return Tools()
    told: Sequence[Mapping[str, Any]] = [{"type": "function", "function": function} for function in declared]
    if choice in (None, "auto"):
        return Tools(told, frozenset(names))
    if choice == "required":
        return Tools(told, frozenset(names), _call_grammar(declared))
    name = _named(choice)
    chosen = [function for function in declared if function["name"] == name]
    if not chosen:
        raise ApiError(400, "tool_choice names a function that is not among the tools.", param="tool_choice")
    return Tools(told, frozenset([str(name)]), _call_grammar(chosen))


def _named(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        raise unsupported("tool_choice of type allowed_tools")
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("function"), dict):
        return choice["function"].get("name")
    raise invalid("tool_choice", '"none", "auto", "required", or an object that names a function')


def _function(tool: Any) -> Mapping[str, Any]:
    if isinstance(tool, dict) and tool.get("type", "function") != "function":
        raise ApiError(400, f"Tools of type {str(tool.get('type'))[:40]!r} are not supported.", param="tools")
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise invalid("tools", "a list of functions, each with a name")
    if not isinstance(function.get("parameters") or {}, dict):
        raise invalid("tools", "a list of functions whose parameters are a JSON Schema")
    return function


def _call_grammar(functions: Sequence[Mapping[str, Any]]) -> GrammarSource:
    """{"name": ..., "arguments": {...}} of one of the functions."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"enum": [function["name"]]},
                "arguments": _rebased(
                    function.get("parameters") or {"type": "object"}, f"#/anyOf/{i}/properties/arguments"
                ),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for i, function in enumerate(functions)
    ]
    return GrammarSource("json-schema", json.dumps({"anyOf": calls}))


def _rebased(schema: Any, place: str) -> Any:
    """A schema that lies at `place` of another one: references into it lead there."""
    if isinstance(schema, list):
        return [_rebased(one, place) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _rebased(value, place) for key, value in schema.items() if key not in ("$schema", "$id")}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        found["$ref"] = place + reference[1:]
    return found


def calls_in(text: str, names: frozenset[str]) -> tuple[str, list[Call]]:
    """The content and the calls in a text, by the common forms: <tool_call> of Hermes and Qwen, Mistral's [TOOL_CALLS],
    and JSON alone as Llama 3 writes it. What names no known function, or is no JSON, stays text."""
    if not names:
        return text, []
    if "<tool_call>" in text:
        found = [_calls_from(body, names) for body in _HERMES.findall(text)]
        if found and all(found):
            return text[: text.index("<tool_call>")].rstrip(), [call for calls in found for call in calls]
    thought, answer = _after_thought(text)
    for opening in ("[TOOL_CALLS]", "<|python_tag|>"):
        before, mark, after = answer.partition(opening)
        if mark and (calls := _calls_from(after, names)):
            return (thought + before).rstrip(), calls
    calls = _calls_from(answer, names)
    return (thought.rstrip(), calls) if calls else (text, [])


def _after_thought(text: str) -> tuple[str, str]:
    ends = [at + len(mark) for mark in _THOUGHT_ENDS if (at := text.rfind(mark)) >= 0]
    return (text[: max(ends)], text[max(ends) :]) if ends else ("", text)


def _calls_from(text: str, names: frozenset[str]) -> list[Call]:
    """Of JSON: one call, or a list of them; empty for anything else."""
    try:
        found = json.loads(text.strip())
    except (ValueError, RecursionError):
        return []
    calls = [_call(one, names) for one in (found if isinstance(found, list) else [found])]
    known = [call for call in calls if call is not None]
    return known if len(known) == len(calls) else []


def _call(found: Any, names: frozenset[str]) -> Call | None:
    if not isinstance(found, dict) or found.get("name") not in names:
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        return Call(found["name"], arguments)
    return Call(found["name"], json.dumps(arguments, ensure_ascii=False))
