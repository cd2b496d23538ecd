"""Where the prompt comes from, and which ids it becomes."""

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TextIO

from specdec_cli.errors import UsageError
from specdec_cli.generation.chat import THINKING_SWITCHES, ChatTemplate, Conversation, Say, ignore
from specdec_cli.generation.encode import ChatEncoder
from specdec_cli.llama.model import LlamaModel


def prompt_text(prompt: str | None, file: Path | None, stdin: TextIO | None) -> str | None:
    """The prompt: argument, file, or piped standard input; argument and file together are joined.

    None means that a person sits at the terminal: chat. `stdin` is None in a process without one.
    Raises UsageError for what cannot be read, and when there is nothing to read.
    """
    if prompt is not None:
        prompt = argument_text(prompt, "The prompt")
    if file is not None:
        text = _from_stdin(stdin) if str(file) == "-" else _decode(_read_file(file), str(file))
        if prompt is not None and not text.strip():
            raise UsageError(
                f"{'Standard input' if str(file) == '-' else file} is empty, so there is nothing to ask about.",
                hint="Check what -f names, or leave out -f.",
            )
        prompt = text if prompt is None else f"{prompt}\n\n{text}"
    elif prompt is None:
        if stdin is not None and stdin.isatty():
            return None
        prompt = _from_stdin(stdin)
    if not prompt.strip():
        raise _empty()
    return prompt


def _from_stdin(stdin: TextIO | None) -> str:
    return "" if stdin is None else _decode(stdin.buffer.read(), "Standard input")


def argument_text(text: str, name: str) -> str:
    """An argument as UTF-8 has it, also where the locale could not read it. Raises UsageError."""
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that Python hid in surrogates
        return _decode(os.fsencode(text), name)
    return text


def conversation(
    model: LlamaModel, *, system: str | None, thinking: bool | None, now: Callable[[], datetime], say: Say = ignore
) -> Conversation | None:
    """A conversation in the model's own format; None when its file has no chat template. `say` takes notes."""
    source = model.chat_template
    if source is None:
        return None
    options = {} if thinking is None else dict.fromkeys(THINKING_SWITCHES, thinking)
    template = ChatTemplate(source, bos_text=model.bos_text, eos_text=model.eos_text, now=now, options=options)
    if thinking is not None and not template.can_switch_thinking:
        say(f"The model's chat template cannot switch thinking: --{'think' if thinking else 'no-think'} does nothing.")
    return Conversation(template, ChatEncoder(model, lambda: template.own_text), system=system, say=say)


def check_prompt(ids: list[int], n_ctx: int) -> list[int]:
    """Settle what llama.cpp would abort on: nothing to evaluate, or no room for an answer. Raises UsageError."""
    if not ids:
        raise _empty()
    if len(ids) >= n_ctx:
        raise UsageError(
            f"The prompt has {len(ids)} tokens and the context holds {n_ctx}, so there is no room for an answer.",
            hint="Use a larger --ctx or a shorter prompt.",
        )
    return ids


def _empty() -> UsageError:
    return UsageError("The prompt is empty.", hint="Give some text, or pipe it in.")


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.", hint="Check the path of -f.") from error


def _decode(data: bytes, source: str) -> str:
    try:
        # Joined files bring more than one byte order mark.
        return data.decode("utf-8").lstrip("\ufeff")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{source} is not UTF-8 text (byte {error.start}).", hint="Convert it to UTF-8 first."
        ) from error
