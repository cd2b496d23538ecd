"""Lists of messages, as OpenAI's interface has them, to token ids: each list for itself, tools included."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.generation.chat import ChatTemplate
from specdec_cli.generation.encode import ChatEncoder
from specdec_cli.llama.model import LlamaModel

_ROLES = ("system", "user", "assistant", "tool")
_TOOLS_ARE = (
    "You can call these functions:\n{tools}\n"
    'To call one, answer with <tool_call>{{"name": ..., "arguments": {{...}}}}</tool_call> and nothing else.'
)
"""For templates that do not know of tools. The form is that of Hermes and Qwen."""


class ChatFormat:
    """The chat format of an open model. Raises UsageError where its file has no template, or one that does not compile.

    `now` is the clock of templates that write the date; `variables` are given to the template in every request.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        now: Callable[[], datetime] = datetime.now,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        source = model.chat_template
        if source is None:
            raise UsageError("This model has no chat template.", hint="Give a text to continue instead of messages.")
        template = ChatTemplate(
            source, bos_text=model.bos_text, eos_text=model.eos_text, now=now, options=variables or {}
        )
        self._template = template
        self._encoder = ChatEncoder(model, lambda: template.own_text)

    @property
    def knows_tools(self) -> bool:
        """Whether the template itself tells the model of tools."""
        return self._template.reads("tools")

    def ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The ids up to the point where the model answers. Control tokens come from the template alone.

        `tools` are OpenAI's declarations of functions. Raises UsageError for messages that cannot be read, and for
        those that the template refuses.
        """
        return self._encoder.whole(self._text(messages, tools, variables or {}, self._encoder.mark))

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The same as text. Raises what `ids` raises."""
        return self._text(messages, tools, variables or {}, lambda text, is_reply: text)  # noqa: ARG005

    def _text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        mark: Callable[..., str],
    ) -> str:
        found = [_message(message) for message in messages]
        if not found:
            raise UsageError("There are no messages.", hint="Give at least one, with role user.")
        if not self.knows_tools:
            found = _told_in_text(found, tools)
        elif tools:
            variables = {**variables, "tools": _marked(list(tools), mark, is_reply=False)}
        given = [
            {"role": one["role"], **_marked(_without_role(one), mark, is_reply=one["role"] == "assistant")}
            for one in found
        ]
        return self._template.given(variables).render(given, add_generation_prompt=True).text


def _without_role(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "role"}


def _marked(value: Any, mark: Callable[..., str], *, is_reply: bool) -> Any:
    """Every text inside, so that none of them names a control token."""
    if isinstance(value, str):
        return mark(value, is_reply=is_reply)
    if isinstance(value, Mapping):
        return {
            _marked(key, mark, is_reply=is_reply): _marked(one, mark, is_reply=is_reply) for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_marked(one, mark, is_reply=is_reply) for one in value]
    return value


def _message(message: Any) -> dict[str, Any]:
    """Checked, with its content as one text. Raises UsageError."""
    if not isinstance(message, Mapping):
        raise _unusable("A message must be an object with role and content.")
    role = message.get("role")
    role = "system" if role == "developer" else role
    if role not in _ROLES:
        raise _unusable(f"A message has the role {str(role)[:40]!r}.", hint=f"Use one of {', '.join(_ROLES)}.")
    found: dict[str, Any] = {"role": role, "content": _content(message.get("content"))}
    calls = message.get("tool_calls")
    if calls and role == "assistant":
        found["tool_calls"] = [_call(call) for call in _list(calls, "tool_calls")]
    elif message.get("content") is None:
        raise _unusable(f"A message of role {role} has no content.")
    for key in ("name", "tool_call_id", "reasoning_content"):
        if isinstance(message.get(key), str):
            found[key] = message[key]
    return found


def _content(content: Any) -> str:
    """Text, or the texts of a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in _list(content, "content"):
        if not isinstance(part, Mapping) or part.get("type") not in ("text", "input_text", "output_text", "refusal"):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise _unusable(f"A message has content of type {str(kind)[:40]!r}, and text only is supported.")
        text = part.get("refusal") if part["type"] == "refusal" else part.get("text")
        if not isinstance(text, str):
            raise _unusable("A text part of a message has no text.")
        texts.append(text)
    return "\n".join(texts)


def _call(call: Any) -> dict[str, Any]:
    """A call as templates want it: with arguments as an object, not as the text of one."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _unusable("A tool call needs a function with a name.")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # else it stays the text that a model once wrote
            arguments = json.loads(arguments) if arguments.strip() else {}
    found = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {"id": call["id"], **found} if isinstance(call.get("id"), str) else found


def _told_in_text(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For a template that does not know of tools: what they are, calls and results as ordinary messages."""
    found = [_as_text(message) for message in messages]
    if not tools:
        return found
    told = _TOOLS_ARE.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if found[0]["role"] == "system":
        return [{**found[0], "content": f"{found[0]['content']}\n\n{told}"}, *found[1:]]
    return [{"role": "system", "content": told}, *found]


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if "tool_calls" not in message:
        return message
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message["tool_calls"]]
    texts = [message["content"]] * bool(message["content"]) + [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    return {"role": "assistant", "content": "\n".join(texts)}


def _list(value: Any, name: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise _unusable(f"{name} of a message must be a list.")
    return value


def _unusable(what: str, *, hint: str = "Give messages in the form of OpenAI's chat completions.") -> UsageError:
    return UsageError(what, hint=hint)
