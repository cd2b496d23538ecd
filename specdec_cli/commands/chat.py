"""Interactive chat: questions, answers, and Ctrl-C."""

import io
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from specdec_cli.commands.chat_options import RunOptions, values
from specdec_cli.commands.options import loading, say
from specdec_cli.commands.questions import Question, Questions
from specdec_cli.commands.text_options import TextOptions
from specdec_cli.errors import Interrupted, UsageError
from specdec_cli.ui.plain_lines import Cleared

if TYPE_CHECKING:
    from specdec_cli.generation.answer import Answer
    from specdec_cli.generation.chat import Conversation, Point
    from specdec_cli.generation.live_pair import LivePair
    from specdec_cli.generation.pair import Pair
    from specdec_cli.generation.writer import Writer, Written
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.ui.waiting import Waiting

MakeWriter = Callable[["Pair", TextOptions, dict[str, Any]], "Writer"]
"""The writer of an answer with these settings, as documents and traces tell them."""

_PATIENCE = 1.0
"""Seconds that an answer has to end after Ctrl-C; another one then ends whatever hangs."""
_COMMAND = re.compile(r"/[\w?-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer.

    `ids` are the answer's without its end token, None if they do not spell it. `values` are the settings that it was
    drawn with, `before` is where the conversation was. `answer` is None for a turn of a saved chat.
    """

    question: str
    text: str
    ids: list[int] | None
    finish: str
    system: str | None
    values: dict[str, Any]
    before: "Point"
    answer: "Answer | None" = None

    @property
    def seed(self) -> int:
        return int(self.values["seed"])


@dataclass
class Chat:
    """A chat with an open pair. Commands (`chat_commands`) change it between the answers."""

    live: "LivePair"
    talk: "Conversation"
    options: RunOptions
    abort: "AbortFlag"
    make_writer: MakeWriter
    line: "Waiting"
    turns: list[Turn] = field(default_factory=list)
    attached: list[str] = field(default_factory=list)
    """Texts of files that go with the next question."""
    prompt_tokens: int = 0
    """Of the last answer."""

    def ask(self, question: str, *, seed: int | None = None) -> bool:
        """Answer a question and say whether it was. One that cannot be asked does not end the chat.

        `seed` is for this answer alone. Raises what ended the answer, if it was not Ctrl-C.
        """
        before, text = self.talk.point, "\n\n".join([question, *self.attached])
        try:
            with self.stoppable(), self._seeded(seed):
                values = self.values()
                written = self.make_writer(self.live.pair, self.options.text, self.settings()).reply_to(self.talk, text)
        except UsageError as unaskable:
            say(f"{unaskable} The message was not sent. /clear starts a new chat.")
            return False
        except (KeyboardInterrupt, Interrupted) as stop:
            self.unless_terminated(stop)
            self.talk.return_to(before)
            say("Stopped. The message was not sent.")
            return False
        self.attached.clear()
        self.prompt_tokens = written.prompt_tokens
        self.turns.append(self._turn(text, written, values, before))
        if written.answer.error is not None:
            self.unless_terminated(written.answer.error)
        return True

    def _turn(self, question: str, written: "Written", values: dict[str, Any], before: "Point") -> Turn:
        reply, answer = written.reply, written.answer
        ids = [token for token in reply.tokens if token not in self.live.pair.end_tokens]
        kept = None if reply.stopped_by_string else ids
        return Turn(question, reply.text, kept, answer.finish, self.talk.system, values, before, answer)

    def change(self, options: RunOptions) -> bool:
        """Go on with other options and say whether that was done. Raises SpecdecError; then all is as before."""
        try:
            with self.stoppable(), self.line:
                if options.files.paths != self.options.files.paths:
                    self.line.show(loading(options.files.draft, options.files.head))
                before = self.live.pair.crossing
                self.live.change(options.request())
        except (KeyboardInterrupt, Interrupted) as stop:
            self.unless_terminated(stop)
            say("Stopped. Nothing was changed.")
            return False
        self.options = options
        if self.live.pair.crossing is not before:
            self.tell_anew()
        return True

    def tell_anew(self) -> None:
        """The conversation so far in the formats that the models have now: another word on thinking, or another draft
        that reads a format of its own. Raises UsageError; then all is as before."""
        system, turns = self.talk.system, []
        talk = self.options.text.conversation(self.live.pair, system)
        if talk is None:
            return
        for turn in self.turns:
            talk.set_system(turn.system)
            turns.append(replace(turn, before=talk.point))
            talk.ask(turn.question)
            talk.answered(turn.ids, turn.text)
        talk.set_system(system)
        self.talk, self.turns = talk, turns

    def values(self) -> dict[str, Any]:
        """Every setting as it is in force."""
        return values(self.options, self.live.request)

    def settings(self) -> dict[str, Any]:
        """Everything that the answer depends on, as documents and traces tell it."""
        from specdec_cli.generation.json_document import plain

        settings: dict[str, Any] = plain(
            {**self.live.request.as_settings(), **self.options.text.settings(self.talk.system)}
        )
        return settings

    def take_back(self) -> Turn | None:
        """Take back the last question and its answer; None if there is none."""
        if not self.turns:
            return None
        turn = self.turns.pop()
        self.talk.return_to(turn.before)
        return turn

    def put_back(self, turn: Turn, after: "Point") -> None:
        """The last turn again, as it was."""
        self.talk.return_to(after)
        self.turns.append(turn)

    def forget(self) -> None:
        """Begin anew, keeping the system message."""
        self.talk.forget()
        self.turns.clear()
        self.attached.clear()

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Ctrl-C ends what is done meanwhile; pressed impatiently, it ends nothing else."""
        self.abort.clear()
        with stoppable(self.abort, patience=_PATIENCE):
            yield

    def unless_terminated(self, stop: BaseException) -> None:
        """Raise what ended something, unless that was Ctrl-C, which does not end a chat."""
        if not isinstance(stop, KeyboardInterrupt) and getattr(stop, "exit_code", None) != 128 + signal.SIGINT:
            raise stop

    @contextmanager
    def _seeded(self, seed: int | None) -> Iterator[None]:
        """Draw with this seed meanwhile."""
        asked = self.live.request
        if seed is None or seed == asked.sampling.seed:
            yield
            return
        self.live.change(replace(asked, sampling=replace(asked.sampling, seed=seed)))
        try:
            yield
        finally:
            self.live.change(asked)


def converse(chat: Chat, questions: Questions, obey: Callable[[Chat, str, str], bool]) -> None:
    """Ask and answer until the user leaves. `obey` does a command (its name, the rest) and says whether to go on.

    Ctrl-C ends an answer or clears a line. It never ends the chat: it may come just after the answer that it was
    meant for.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a byte that is no text must not end the chat
    say("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.")
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        while True:
            try:
                question = questions.ask()
            except Cleared as cleared:
                if cleared.was_empty:
                    say("Ctrl-D or /bye leaves.")
                continue
            if question is None or not _take(chat, question, obey):
                return
    finally:
        questions.close()
        signal.signal(signal.SIGINT, before)


def _take(chat: Chat, question: Question, obey: Callable[[Chat, str, str], bool]) -> bool:
    """Whether the chat goes on."""
    text = question.text
    if not text:
        return True
    command = _COMMAND.match(text)
    if not question.is_quoted:
        if text in _BARE_WORDS:
            return obey(chat, _BARE_WORDS[text], "")
        if command is not None and (command.end() == len(text) or text[command.end()].isspace()):
            return obey(chat, command[0], text[command.end() :].strip())
        if text.startswith("//"):
            text = text[1:]
    chat.ask(text)
    return True


_BARE_WORDS = {"exit": "/bye", "quit": "/bye", "?": "/help", "help": "/help"}
"""What users of other tools type, and the commands that they mean."""


@contextmanager
def stoppable(abort: "AbortFlag", *, patience: float = 0.0) -> Iterator[None]:
    """Ctrl-C sets the flag while this is open, and what is typed meanwhile is not shown. See SignalWatch."""
    from specdec_cli.signals import SignalWatch
    from specdec_cli.ui.terminal import quiet_keyboard

    with SignalWatch(abort.set, patience=patience), quiet_keyboard(sys.stdin):
        yield
