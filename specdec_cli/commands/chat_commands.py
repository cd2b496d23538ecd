"""Commands of a chat: what a line that begins with a slash does."""

import difflib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.commands.chat import Chat
from specdec_cli.commands.chat_changes import drafter, length, set_value, setting_names, show
from specdec_cli.commands.chat_files import load, replay, save
from specdec_cli.commands.completion import any_files, drafts
from specdec_cli.commands.help import columns, entry, folded
from specdec_cli.commands.options import say
from specdec_cli.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.untrusted_files import read_file, reason

_LARGEST_FILE = 64 << 20
_LARGEST_SEED = 2**64
_MORE_HELP = (
    '""" begins and ends a text of several lines; Alt-Enter begins another line.',
    "// begins a text with a slash. Tab completes, Ctrl-R searches, Ctrl-X Ctrl-E opens an editor.",
    "Ctrl-C stops an answer or clears the line, Ctrl-D leaves, Ctrl-Z stops the chat until fg.",
)

Do = Callable[[Chat, str], bool | None]
"""Does a command, given what follows its name; False ends the chat."""


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """One command: what may follow it, what it does in a line, and who completes what follows."""

    takes: str
    help: str
    do: Do
    complete: Callable[[str], Sequence[str]] | None = None


def obey(chat: Chat, name: str, rest: str) -> bool:
    """Do a command and say whether the chat goes on. A command that fails does not end it."""
    command = COMMANDS.get(_OTHER_NAMES.get(name, name))
    if command is None:
        near = difflib.get_close_matches(name, [*COMMANDS, *_OTHER_NAMES], n=1)
        meant = f"Did you mean {near[0]}?" if near else "/help lists the commands."
        say(f"Unknown command {name}. {meant} // begins a text with a slash.")
        return True
    if rest and not command.takes:
        say(f"{name} takes nothing after it.")
        return True
    try:
        return command.do(chat, rest) is not False
    except SpecdecError as error:
        if isinstance(error, Interrupted):
            raise
        say(f"{error} {error.hint or ''}".rstrip())
        return True


def complete(before: str) -> Sequence[str]:
    """Candidates for the last word of a line: commands, or what may follow one."""
    name, blank, rest = before.partition(" ")
    if not blank:
        return [one for one in COMMANDS if one.startswith(name)] if name.startswith("/") else []
    command = COMMANDS.get(_OTHER_NAMES.get(name, name))
    if command is None or command.complete is None or " " in rest:
        return []
    return command.complete(rest)


def _help(_chat: Chat, _rest: str) -> None:
    width = columns()
    for name, command in COMMANDS.items():
        for line in entry(f"{name} {command.takes}".rstrip(), command.help, width):
            say(line)
    for text in _MORE_HELP:
        for line in folded(text, width, "", "  "):
            say(line)


def _clear(chat: Chat, _rest: str) -> None:
    chat.forget()
    say("Started a new chat.")


def _undo(chat: Chat, _rest: str) -> None:
    turn = chat.take_back()
    say("There is nothing to take back." if turn is None else f"Took back: {_in_a_line(turn.question)}")


def _retry(chat: Chat, _rest: str) -> None:
    """With another seed: the same one would give the same text."""
    after = chat.talk.point
    turn = chat.take_back()
    if turn is None:
        say("There is nothing to answer again.")
        return
    if chat.live.request.sampling.params.is_greedy:
        say("At temperature 0 the answer stays the same.")
    attached, chat.attached = chat.attached, []
    try:
        if not chat.ask(turn.question, seed=(turn.seed + 1) % _LARGEST_SEED):
            chat.put_back(turn, after)
    finally:
        chat.attached = attached


def _system(chat: Chat, rest: str) -> None:
    if rest:
        chat.talk.set_system(None if rest == "none" else rest)
    say("No system message." if chat.talk.system is None else f"System message: {chat.talk.system}")


def _file(chat: Chat, rest: str) -> None:
    """Attach a text, or ask about it at once."""
    name, question = _first_word(rest)
    if not name:
        raise UsageError("/file needs a file.", hint="Give its name, then a question if you like.")
    path = Path(os.path.expanduser(name))
    try:
        text = read_file(path, _LARGEST_FILE).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}).", hint="Convert it first.") from error
    except (OSError, ValueError) as error:
        why = reason(error)
        raise UsageError(f"Cannot read {path}: {why}.", hint="Check the name.") from error
    if not text.strip():
        raise UsageError(f"{path} is empty.", hint="Check the name.")
    chat.attached.append(text)
    if question:
        chat.ask(question)
    else:
        say(f"{path.name} ({len(text):,} characters) goes with your next question.")


def _save(chat: Chat, rest: str) -> None:
    file = _path(rest, "/save")
    save(chat, file)
    say(f"Saved {len(chat.turns)} turns in {file}.")


def _load(chat: Chat, rest: str) -> None:
    say(f"Loaded {load(chat, _path(rest, '/load'))} turns.")


def _replay(chat: Chat, rest: str) -> None:
    replay(chat, _path(rest, "/replay"))


def _path(rest: str, command: str) -> Path:
    name, more = _first_word(rest)
    if not name or more:
        raise UsageError(f"{command} needs one file.", hint="Give its name, in quotes if it has blanks.")
    return Path(os.path.expanduser(name))


def _stats(chat: Chat, _rest: str) -> None:
    from specdec_cli.ui.summary import summary

    answer = chat.turns[-1].answer if chat.turns else None
    if answer is None:
        say("There is no answer yet.")
        return
    for line in summary(answer.stats, answer.finish):
        say(line)


def _bye(_chat: Chat, _rest: str) -> bool:
    return False


def _first_word(text: str) -> tuple[str, str]:
    """The first word, which may stand in quotes, and the rest."""
    found = re.match(r"""(?:"([^"]*)"|'([^']*)'|(\S*))\s*""", text)
    first = next((part for part in found.groups() if part is not None), "") if found else ""
    return first, text[found.end() :] if found else ""


def _in_a_line(text: str, longest: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


COMMANDS = {
    "/help": ChatCommand("", "Show this list.", _help),
    "/retry": ChatCommand("", "Answer the last question again, with another seed.", _retry),
    "/undo": ChatCommand("", "Take back the last question and its answer.", _undo),
    "/clear": ChatCommand("", "Start a new chat; the system message stays.", _clear),
    "/system": ChatCommand("[TEXT]", "Show or set the system message; none removes it.", _system),
    "/set": ChatCommand("NAME VALUE", "Change a setting, such as temperature, seed or n.", set_value, setting_names),
    "/show": ChatCommand("[NAME|all]", "Show the model, the drafter and the settings.", show, setting_names),
    "/draft": ChatCommand("[NAME|FILE]", "Change who drafts; default is the model's own draft.", drafter, drafts),
    "/k": ChatCommand("[N|auto]", "Change the length of drafts.", length),
    "/file": ChatCommand("PATH [QUESTION]", "Ask about a text file, now or with the next question.", _file, any_files),
    "/save": ChatCommand("FILE", "Save the chat with its settings and seeds.", _save, any_files),
    "/load": ChatCommand("FILE", "Go on with a saved chat.", _load, any_files),
    "/replay": ChatCommand("FILE", "Answer a saved chat's questions again, and compare.", _replay, any_files),
    "/stats": ChatCommand("", "Show the figures of the last answer.", _stats),
    "/bye": ChatCommand("", "Leave.", _bye),
}
_OTHER_NAMES = {"/new": "/clear", "/exit": "/bye", "/quit": "/bye", "/?": "/help"}
