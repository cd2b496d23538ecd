"""Messages to token ids: the model's own chat template, rendered once and extended turn by turn."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdec_cli.errors import UsageError

Message = Mapping[str, str]
Tokenize = Callable[[str], list[int]]

_GENERATION_MARK = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")
"""Marks that only a trainer needs; jinja2 alone does not know them."""
_NOT_USED = {"tools": None, "documents": None}
"""What templates ask for because transformers always passes it."""


class ChatTemplate:
    """A Jinja chat template as stored in a GGUF file. Sandboxed: templates come from the internet."""

    def __init__(
        self, source: str, *, bos_text: str, eos_text: str, now: Callable[[], datetime], options: Mapping[str, Any]
    ) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        environment.filters["tojson"] = _to_json
        self._known = {**_NOT_USED, "bos_token": bos_text, "eos_token": eos_text, **options}
        try:
            self._template = environment.from_string(_GENERATION_MARK.sub(_always, source))
        except Exception as error:  # templates are other people's code: odd ones fail in every way
            raise _unusable(error) from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The text of a conversation. A template that refuses a system message gets it inside the
        first user message. Raises UsageError when the template cannot render these messages."""
        try:
            return self._render(messages, add_generation_prompt)
        except UsageError:
            if not messages or messages[0]["role"] != "system":
                raise
        return self._render(_without_system(messages), add_generation_prompt)

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        try:
            return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **self._known)
        except Exception as error:  # a template is somebody else's program: it can fail in any way
            raise _unusable(error) from error


class Conversation:
    """Ids of a growing conversation, such that what was evaluated stays a prefix.

    `tokenize` turns text with markers into ids and adds none of its own; `tokenize_first` may add
    BOS. A reply's ids are kept as generated: encoding its text again could give others. Where the
    template rewrites history (Qwen3 drops earlier thoughts), the whole is encoded anew instead, and
    the sessions reuse whatever prefix is left.
    """

    def __init__(self, template: ChatTemplate, tokenize_first: Tokenize, tokenize: Tokenize, *, system: str | None):
        self._template = template
        self._tokenize_first = tokenize_first
        self._tokenize = tokenize
        self._messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self._text = ""
        self._ids: list[int] = []
        self._question: Message = {}
        self._asked: tuple[str, list[int]] = ("", [])

    def ask(self, content: str) -> list[int]:
        """The ids of the whole conversation up to the point where the model answers `content`.

        The question belongs to the conversation only once it is `answered`.
        """
        self._question = {"role": "user", "content": content}
        text = self._template.render([*self._messages, self._question], add_generation_prompt=True)
        if self._text and text.startswith(self._text):
            ids = self._ids + self._tokenize(text[len(self._text) :])
        else:
            ids = self._tokenize_first(text)
        self._asked = text, ids
        return ids

    def answered(self, ids: Sequence[int] | None, text: str) -> None:
        """Take question and reply into the conversation; `ids` without the token that ended it.

        None instead of ids means that they do not spell `text`: the next turn encodes all anew.
        """
        asked_text, asked_ids = self._asked
        self._messages += [self._question, {"role": "assistant", "content": text}]
        self._text = asked_text + text if ids is not None else ""
        self._ids = [*asked_ids, *(ids or ())]

    def forget(self) -> None:
        """Begin anew, keeping the system message."""
        self._messages = [m for m in self._messages if m["role"] == "system"]
        self._text, self._ids = "", []


def _without_system(messages: Sequence[Message]) -> list[Message]:
    system, *rest = messages
    if not rest:
        return []
    first = {**rest[0], "content": f"{system['content']}\n\n{rest[0]['content']}"}
    return [first, *rest[1:]]


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _always(mark: re.Match[str]) -> str:
    """A block that changes nothing in the place of a mark: the mark's own handling of white space stays."""
    return f"{mark[1]}{'endif' if mark[2] else 'if true'}{mark[3]}"


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: jinja2's own writes HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _unusable(error: Exception) -> UsageError:
    reason = getattr(error, "message", None) or str(error) or type(error).__name__
    return UsageError(
        f"The model's chat template cannot be used here: {reason}.",
        hint="Use --raw to give the prompt without a template.",
    )
