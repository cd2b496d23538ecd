"""Reads the prompt and turns it into token ids."""

import os
import select
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, TextIO

from specdec_cli.errors import UsageError
from specdec_cli.generation.chat import THINKING_SWITCHES, ChatTemplate, Conversation, Say, TwoFormats, ignore
from specdec_cli.generation.encode import ChatEncoder
from specdec_cli.llama.model import LlamaModel

_LARGEST_PROMPT = 64 << 20
_LARGEST_PREDICTION = 1 << 20
_WAIT_FOR_PIPE = 1.0
"""Seconds that a program at the other end of a pipe has to write something."""


@dataclass(frozen=True, slots=True)
class Follower:
    """A draft model with a vocabulary of its own; `tell` is handed a prompt and how the draft has it."""

    model: LlamaModel
    tell: Callable[[Sequence[int], Sequence[int]], None]


def prompt_text(prompt: str | None, file: Path | None, stdin: TextIO | None, say: Say = ignore) -> str | None:
    """The prompt: argument, file, or piped standard input; an argument is followed by what either brings.

    None means that a person sits at the terminal: chat. `stdin` is None in a process without one.
    Raises UsageError for what cannot be read, and when there is nothing to read.
    """
    if prompt is not None:
        prompt = argument_text(prompt, "The prompt")
    if file is not None:
        text = _from_stdin(stdin) if str(file) == "-" else _decode(_read_file(file), str(file))
        if prompt is not None and not text.strip():
            raise UsageError(
                f"{'Standard input' if str(file) == '-' else file} is empty.",
                hint="Check -f, or omit it.",
            )
        prompt = text if prompt is None else f"{prompt}\n\n{text}"
    elif prompt is not None:
        text = _from_stdin(stdin) if brings_text(stdin, say) else ""
        prompt = f"{prompt}\n\n{text}" if text.strip() else prompt
    else:
        if stdin is not None and stdin.isatty():
            return None
        prompt = _from_stdin(stdin)
    if not prompt.strip():
        raise _empty()
    return prompt


def prediction_text(file: Path) -> str:
    """A text that the answer is said to repeat. Raises UsageError where the file is none."""
    text = _decode(_read_file(file, "--predict", _LARGEST_PREDICTION), str(file))
    if not text.strip():
        raise UsageError(f"{file} is empty.", hint="Check --predict, or omit it.")
    if "\0" in text:
        raise UsageError(f"{file} is not text (it has zero bytes).", hint="Give --predict a text file.")
    return text


def _from_stdin(stdin: TextIO | None) -> str:
    return "" if stdin is None else _decode(_bounded(stdin.buffer, "Standard input"), "Standard input")


def brings_text(stdin: TextIO | None, say: Say = ignore, seconds: float = _WAIT_FOR_PIPE) -> bool:
    """Whether something stands on standard input, or comes within so many seconds.

    A terminal and a device (/dev/null) bring nothing. A file brings all of it. A pipe may belong to a program that
    writes, or to a scheduler or ssh that keeps it open and never does: only waiting tells, and -f - waits for ever.
    """
    try:
        handle = -1 if stdin is None else stdin.fileno()
        mode = os.fstat(handle).st_mode
    except (OSError, ValueError):  # there is none, or it is closed
        return False
    if stat.S_ISREG(mode):
        return True
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    found = poll.poll(1000 * seconds)
    if not found:
        say(f"Nothing came through the pipe within {seconds:g} s, so it is left out; -f - waits for it.")
    return any(event & select.POLLIN for _, event in found)


def argument_text(text: str, name: str) -> str:
    """An argument as UTF-8 has it, also where the locale could not read it. Raises UsageError."""
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that Python hid in surrogates
        return _decode(os.fsencode(text), name)
    return text


def conversation(
    model: LlamaModel,
    *,
    system: str | None,
    thinking: bool | None,
    now: Callable[[], datetime],
    say: Say = ignore,
    follower: Follower | None = None,
) -> Conversation | None:
    """A conversation in the model's own format; None when its file has no chat template. `say` takes notes.

    A `follower` is a draft with another vocabulary, which reads it in its own format if it has one.
    """
    template = _template(model, thinking, now)
    if template is None:
        return None
    if thinking is not None and not template.can_switch_thinking:
        say(f"The model's chat template cannot switch thinking: --{'think' if thinking else 'no-think'} does nothing.")
    encoder = ChatEncoder(model, lambda: template.own_text)
    own = _follower_conversation(follower, system, thinking, now) if follower is not None else None
    if follower is None or own is None:
        return Conversation(template, encoder, system=system, say=say)
    return TwoFormats(template, encoder, own, follower.tell, system=system, say=say)


def _follower_conversation(
    follower: Follower, system: str | None, thinking: bool | None, now: Callable[[], datetime]
) -> Conversation | None:
    """In the draft's format; None without one that can be used, which is no reason not to draft."""
    with suppress(UsageError):
        own = _template(follower.model, thinking, now)
        if own is not None:
            return Conversation(own, ChatEncoder(follower.model, lambda: own.own_text), system=system)
    return None


def _template(model: LlamaModel, thinking: bool | None, now: Callable[[], datetime]) -> ChatTemplate | None:
    source = model.chat_template
    if source is None:
        return None
    options = {} if thinking is None else dict.fromkeys(THINKING_SWITCHES, thinking)
    return ChatTemplate(source, bos_text=model.bos_text, eos_text=model.eos_text, now=now, options=options)


def check_prompt(ids: list[int], n_ctx: int) -> list[int]:
    """Settle what llama.cpp would abort on: nothing to evaluate, or no room for an answer. Raises UsageError."""
    if not ids:
        raise _empty()
    if len(ids) >= n_ctx:
        raise UsageError(
            f"The prompt has {len(ids)} tokens and the context {n_ctx}, which leaves no room for an answer.",
            hint="Use a larger --ctx or a shorter prompt.",
        )
    return ids


def _empty() -> UsageError:
    return UsageError("The prompt is empty.", hint="Give some text, or pipe it in.")


def _read_file(file: Path, option: str = "-f", most_bytes: int = _LARGEST_PROMPT) -> bytes:
    try:
        with file.open("rb") as opened:  # a FIFO as well, such as a shell's <(...)
            return _bounded(opened, str(file), most_bytes)
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.", hint=f"Check the path of {option}.") from error


def _bounded(file: BinaryIO, name: str, most_bytes: int = _LARGEST_PROMPT) -> bytes:
    """What is left of a file, which may be /dev/zero. Raises UsageError where that is more than `most_bytes`."""
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise UsageError(f"{name} is larger than {most_bytes:,} bytes.", hint="Give a shorter text.")
    return data


def _decode(data: bytes, source: str) -> str:
    try:
        # Joined files bring more than one byte order mark.
        return data.decode("utf-8").lstrip("\ufeff")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{source} is not UTF-8 text (byte {error.start}).", hint="Convert it to UTF-8 first."
        ) from error
