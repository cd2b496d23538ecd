"""Messages to token ids with the model's own chat template, extended turn by turn."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from specdec_cli.errors import UsageError
from specdec_cli.generation.template_process import TemplateProcess, shared, unusable

Message = Mapping[str, Any]
"""`role` and `content` are text; a template may look at more, such as `tool_calls`."""
Say = Callable[[str], None]


def ignore(_note: str) -> None:
    """For those who show no notes."""


THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates turn thinking on or off: Qwen3's name, and DeepSeek's and Granite's."""


class Encoder(Protocol):
    """Text to ids, such that only the template's own text names control tokens."""

    def mark(self, content: str, *, is_reply: bool) -> str:
        """`content` with marks in whatever would name a control token; most contents have none."""

    def whole(self, marked: str) -> list[int]:
        """Ids of a text from its beginning; may add BOS."""

    def rest(self, marked: str) -> list[int]:
        """Ids of a text that follows another one; adds none."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """The text of a conversation, and the roles of those messages whose content is not in it."""

    text: str
    lost: frozenset[str] = frozenset()
    loses_question: bool = False


class _TemplateError(UsageError):
    """The template itself failed: other messages may suit it."""


class ChatTemplate:
    """A Jinja chat template as stored in a GGUF file. It comes from the internet and runs in a process of its own.

    Raises UsageError for one that does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_text: str,
        eos_text: str,
        now: Callable[[], datetime],
        options: Mapping[str, Any],
        process: TemplateProcess = shared,
    ) -> None:
        self._source = source
        self._process = process
        self._now = now
        self._variables = {"bos_token": bos_text, "eos_token": eos_text, **options}
        self._names = frozenset(self._ask({})["names"])

    @property
    def can_switch_thinking(self) -> bool:
        """Whether the template looks at a variable that turns thinking on or off."""
        return not self._names.isdisjoint(THINKING_SWITCHES)

    def reads(self, name: str) -> bool:
        """Whether the template looks at a variable of this name."""
        return name in self._names

    @property
    def own_text(self) -> str:
        """Source and an example: every marker of the template stands here, also those that it puts together."""
        example = [_stand_in(i, {"role": role}) for i, role in enumerate(("system", "user", "assistant", "user"))]
        try:
            return self._source + self.render(example, add_generation_prompt=True).text
        except UsageError:
            return self._source

    def given(self, variables: Mapping[str, Any]) -> "ChatTemplate":
        """The same template with further variables, such as `tools`."""
        other = copy(self)
        other._variables = {**self._variables, **variables}
        return other

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> Rendering:
        """The text of a conversation.

        A template that refuses a system message gets it inside the first user message. One that leaves out a message
        is given contents as lists of parts, as templates of models with images want them. Raises UsageError where the
        template cannot render these messages, or leaves out the last one, which is what the user asks.
        """
        found: list[Rendering] = []
        failures: list[UsageError] = []
        for as_parts in (False, True):
            try:
                found.append(self._with_system(messages, as_parts, add_generation_prompt))
            except _TemplateError as error:
                failures.append(error)
            if found and not found[-1].lost:
                return found[-1]
        if not found:
            raise failures[0]
        best = min(found, key=lambda one: (one.loses_question, len(one.lost)))
        if best.loses_question:
            raise unusable("it drops the user's message")
        return best

    def _with_system(self, messages: Sequence[Message], as_parts: bool, add_generation_prompt: bool) -> Rendering:
        try:
            return self._rendering(messages, as_parts, add_generation_prompt)
        except _TemplateError:
            if not messages or messages[0]["role"] != "system":
                raise
        return self._rendering(_without_system(messages), as_parts, add_generation_prompt)

    def _rendering(self, messages: Sequence[Message], as_parts: bool, add_generation_prompt: bool) -> Rendering:
        """What is left out is found by rendering other words in the same places."""
        text = self._text(messages, as_parts, add_generation_prompt)
        stand_ins = [_stand_in(i, message) for i, message in enumerate(messages)]
        try:
            example = self._text(stand_ins, as_parts, add_generation_prompt).casefold()
        except _TemplateError:  # it wants contents of some form, and these messages have it
            return Rendering(text)
        lost = [one["role"] for one in stand_ins if not _is_in(example, one["content"])]
        last = stand_ins[-1] if stand_ins else _stand_in(0, {"role": ""})
        return Rendering(text, frozenset(lost), last["role"] == "user" and not _is_in(example, last["content"]))

    def _text(self, messages: Sequence[Message], as_parts: bool, add_generation_prompt: bool) -> str:
        given = [_as_parts(message) for message in messages] if as_parts else list(messages)
        return str(self._ask({"messages": given, "add_generation_prompt": add_generation_prompt})["text"])

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        about = {"source": self._source, "now": self._now().isoformat(), "variables": self._variables}
        answer = self._process.ask({**about, **request})
        if "error" in answer:
            raise unusable(answer["error"], _TemplateError)
        return answer


@dataclass(frozen=True, slots=True)
class Point:
    """A conversation at one moment, to come back to."""

    messages: tuple[Message, ...]
    text: str
    ids: list[int]
    system: str | None
    own: "Point | None" = None
    """Where a draft with a format of its own is."""


class Conversation:
    """Ids of a growing conversation, such that what was evaluated stays a prefix.

    A reply's ids are kept as generated: encoding its text again could give others. Where the template rewrites history
    (Qwen3 drops earlier thoughts), the whole is encoded anew instead, and the sessions reuse whatever prefix is left.
    `say` takes a note, once, of messages that the template leaves out.
    """

    def __init__(self, template: ChatTemplate, encoder: Encoder, *, system: str | None, say: Say = ignore) -> None:
        self._template = template
        self._encoder = encoder
        self._say = say
        self._system = system
        self._messages: list[Message] = [self._message("system", system)] if system else []
        self._text = ""
        self._ids: list[int] = []
        self._question: Message = {}
        self._asked: tuple[str, list[int]] = ("", [])
        self._told: frozenset[str] = frozenset()

    def ask(self, content: str) -> list[int]:
        """The ids of the whole conversation up to the point where the model answers `content`.

        The question belongs to the conversation only once it is `answered`.
        """
        self._question = self._message("user", content)
        rendering = self._template.render([*self._messages, self._question], add_generation_prompt=True)
        self._tell(rendering.lost)
        text = rendering.text
        if self._text and text.startswith(self._text):
            ids = self._ids + self._encoder.rest(text[len(self._text) :])
        else:
            ids = self._encoder.whole(text)
        self._asked = text, ids
        return ids

    def answered(self, ids: Sequence[int] | None, text: str) -> None:
        """Take question and reply into the conversation; `ids` without the token that ended it.

        None instead of ids means that they do not spell `text`: the next turn encodes all anew.
        """
        asked_text, asked_ids = self._asked
        reply = self._message("assistant", text)
        self._messages += [self._question, reply]
        self._text = asked_text + reply["content"] if ids is not None else ""
        self._ids = [*asked_ids, *(ids or ())]

    @property
    def point(self) -> Point:
        """Where the conversation is."""
        return Point(tuple(self._messages), self._text, self._ids, self._system)

    def return_to(self, point: Point) -> None:
        """Take back what was said since, but not a change of the system message.

        What a session has evaluated up to there is still a prefix.
        """
        system, self._system = self._system, point.system
        self._messages, self._text, self._ids = list(point.messages), point.text, point.ids
        self.set_system(system)

    @property
    def system(self) -> str | None:
        """The system message."""
        return self._system

    def set_system(self, system: str | None) -> None:
        """Replace the system message. What was said stays, and is encoded anew."""
        if system == self._system:
            return
        self._system = system
        rest = [m for m in self._messages if m["role"] != "system"]
        self._messages = [*([self._message("system", system)] if system else []), *rest]
        self._text, self._ids = "", []

    def forget(self) -> None:
        """Begin anew, keeping the system message."""
        self._messages = [m for m in self._messages if m["role"] == "system"]
        self._text, self._ids = "", []

    def _message(self, role: str, content: str) -> Message:
        return {"role": role, "content": self._encoder.mark(content, is_reply=role == "assistant")}

    def _tell(self, lost: frozenset[str]) -> None:
        if "system" in lost - self._told:
            self._say("The model's chat template has no system role: the system message is dropped.")
        if lost - self._told - {"system"}:
            self._say("The model's chat template drops earlier turns: the model does not see them.")
        self._told |= lost


class TwoFormats(Conversation):
    """A conversation that a draft with another vocabulary reads in its own chat format, `own`: `tell` is handed the
    prompt and how the draft has it. A draft whose template cannot write these messages reads the target's text."""

    def __init__(
        self,
        template: ChatTemplate,
        encoder: Encoder,
        own: Conversation,
        tell: Callable[[Sequence[int], Sequence[int]], None],
        *,
        system: str | None,
        say: Say = ignore,
    ) -> None:
        super().__init__(template, encoder, system=system, say=say)
        self._own = own
        self._tell_draft = tell

    def ask(self, content: str) -> list[int]:
        ids = super().ask(content)
        with suppress(UsageError):
            self._tell_draft(ids, self._own.ask(content))
        return ids

    def answered(self, ids: Sequence[int] | None, text: str) -> None:
        super().answered(ids, text)
        self._own.answered(None, text)

    @property
    def point(self) -> Point:
        return replace(super().point, own=self._own.point)

    def return_to(self, point: Point) -> None:
        super().return_to(point)
        if point.own is not None:
            self._own.return_to(point.own)

    def set_system(self, system: str | None) -> None:
        super().set_system(system)
        self._own.set_system(system)

    def forget(self) -> None:
        super().forget()
        self._own.forget()


def _without_system(messages: Sequence[Message]) -> list[Message]:
    system, *rest = messages
    if not rest:
        return []
    first = {**rest[0], "content": f"{system['content']}\n\n{rest[0]['content']}"}
    return [first, *rest[1:]]


def _stand_in(place: int, message: Message) -> Message:
    return {**message, "content": f"standin{place}x"}


def _is_in(example: str, stand_in: str) -> bool:
    """Whether it was written, and not as a list that the template took for a text."""
    (part,) = _parts(stand_in)
    return stand_in in example and str(part) not in example and json.dumps(part) not in example


def _as_parts(message: Message) -> dict[str, Any]:
    return {**message, "content": _parts(message["content"])}


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]
