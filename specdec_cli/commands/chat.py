"""Interactive chat: input, answers, and Ctrl-C."""

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specdec_cli.commands.options import say
from specdec_cli.commands.questions import Questions
from specdec_cli.errors import UsageError

if TYPE_CHECKING:
    from specdec_cli.generation.chat import Conversation
    from specdec_cli.generation.writer import Writer
    from specdec_cli.llama.abort import AbortFlag

STOPPED_BY_CTRL_C = 130


def chat(writer: "Writer", talk: "Conversation | None", abort: "AbortFlag", questions: Questions) -> None:
    """Ask and answer until the input ends. Ctrl-C ends an answer, clears a line, or ends the chat."""
    if talk is None:
        raise UsageError(
            "This model has no chat template, so it cannot chat.",
            hint="Give a prompt to continue, or use another model.",
        )
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a byte that is no text must not end the chat
    say(
        "Chat: /new starts a new chat, Ctrl-C stops an answer or clears the line, "
        "Ctrl-D (or Ctrl-C on an empty line) quits."
    )
    while (text := questions.ask()) is not None:
        if text == "/new":
            talk.forget()
            say("Started a new chat.")
        elif re.fullmatch(r"/\w+", text):
            say(f"Unknown command {text}. The only command is /new.")
        elif text:
            _turn(writer, talk, text, abort)


def _turn(writer: "Writer", talk: "Conversation", text: str, abort: "AbortFlag") -> None:
    """One question and its answer; a question that cannot be asked does not end the chat."""
    abort.clear()
    try:
        with stoppable(abort):
            error = writer.reply_to(talk, text).answer.error
    except UsageError as unaskable:
        say(f"{unaskable} The message was not sent. /new starts a new chat.")
        return
    if error is not None and error.exit_code != STOPPED_BY_CTRL_C:
        raise error


@contextmanager
def stoppable(abort: "AbortFlag") -> Iterator[None]:
    """Ctrl-C sets the flag while this is open, and what is typed meanwhile is not shown."""
    from specdec_cli.signals import SignalWatch
    from specdec_cli.ui.terminal import quiet_keyboard

    with SignalWatch(abort.set), quiet_keyboard(sys.stdin):
        yield
