"""Saved chats: JSON with every question, answer, setting and seed, so that a chat goes on as it would have."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_cli.commands.chat import Chat, Turn
from specdec_cli.commands.chat_options import RunOptions, settings
from specdec_cli.commands.options import say
from specdec_cli.errors import UsageError
from specdec_cli.outputs import check_outputs, write_output
from specdec_cli.untrusted_files import read_json, reason

if TYPE_CHECKING:
    from specdec_cli.generation.pair import Pair

_KIND = "specdec chat 1"
_LARGEST = 64 << 20


def save(chat: Chat, file: Path) -> None:
    """Write the chat to a file. Raises UsageError, also for a file that is there and no chat."""
    check_outputs({"/save": file}, {})
    if file.exists():
        _read(file)
    write_output(file, json.dumps(_document(chat), ensure_ascii=False, indent=1) + "\n")


def load(chat: Chat, file: Path, *, keep_given: bool = False) -> int:
    """Go on with a saved chat; the number of its turns. With `keep_given`, options of the command line are kept.

    Its ids are those that the model wrote, if the tokenizer is the same, so that the chat goes on exactly as it would
    have. Raises UsageError; then all is as before.
    """
    document = _read(file)
    options = _with_settings(chat.options, document["settings"], keep_given=keep_given)
    before = chat.talk.point, list(chat.turns), chat.talk.system
    has_ids = document["tokenizer"] == _tokenizer(chat.live.pair)
    n_vocab = chat.live.pair.target.model.n_vocab
    try:
        chat.forget()
        for turn in document["turns"]:
            chat.turns.append(_said(chat, turn, n_vocab if has_ids else 0))
        chat.talk.set_system(document["system"])
        if not chat.change(options):
            raise UsageError("The chat was not loaded.", hint="Load it again.")
    except BaseException as error:
        point, chat.turns, system = before
        chat.talk.return_to(point)
        chat.talk.set_system(system)
        if isinstance(error, (KeyError, TypeError, ValueError, AttributeError)):
            raise _unusable(file, "it is damaged") from error
        raise
    if chat.options.text.think is not None:
        chat.tell_anew()
    if not has_ids and chat.turns:
        say("It was saved with another tokenizer: its answers are encoded anew.")
    return len(chat.turns)


def _document(chat: Chat) -> dict[str, Any]:
    from specdec_cli.generation.json_document import plain, versions

    pair = chat.live.pair
    turns = [
        {
            "question": turn.question,
            "answer": turn.text,
            "ids": turn.ids,
            "finish_reason": turn.finish,
            "system": turn.system,
            "settings": turn.values,
        }
        for turn in chat.turns
    ]
    document: dict[str, Any] = plain(
        {
            "kind": _KIND,
            "model": chat.options.model,
            "target": pair.target.model.path.name,
            "tokenizer": _tokenizer(pair),
            "system": chat.talk.system,
            "settings": chat.values(),
            "turns": turns,
            "versions": versions(),
        }
    )
    return document


def _tokenizer(pair: "Pair") -> str:
    from specdec_cli.drafters.ngram.store import fingerprint

    return fingerprint(pair.target.model)


def _read(file: Path) -> dict[str, Any]:
    try:
        document = read_json(file, _LARGEST)
    except (OSError, ValueError) as error:
        raise _unusable(file, reason(error)) from error
    if not isinstance(document, dict) or document.get("kind") != _KIND:
        raise _unusable(file, "it is not a saved chat")
    wanted: dict[str, tuple[type, ...]] = {
        "turns": (list,),
        "settings": (dict,),
        "tokenizer": (str,),
        "system": (str, type(None)),
    }
    if not all(isinstance(document.get(name), kinds) for name, kinds in wanted.items()):
        raise _unusable(file, "it is damaged")
    return document


def _unusable(file: Path, why: str) -> UsageError:
    return UsageError(f"{file} cannot be used: {why}.", hint="Give a file that /save has written, or a new one.")


def _with_settings(options: RunOptions, saved: dict[str, Any], *, keep_given: bool) -> RunOptions:
    for name, value in saved.items():
        one = settings().get(name)
        if one is None:
            say(f"The setting {name!r} is unknown here and left out.")
            continue
        given = options.temp if not one.group else getattr(getattr(options, one.group), one.field)
        if not (keep_given and given != one.default):
            options = options.changed(one, one.checked(value))
    return options


def _said(chat: Chat, turn: dict[str, Any], n_vocab: int) -> Turn:
    """The conversation goes on by a turn. Its ids are below `n_vocab`, or they are encoded anew."""
    question, text, ids = turn["question"], turn["answer"], turn["ids"]
    if not isinstance(question, str) or not isinstance(text, str):
        raise TypeError(question)
    system = turn["system"]
    chat.talk.set_system(system if system is None else str(system))
    before = chat.talk.point
    chat.talk.ask(question)
    if ids is not None and not all(isinstance(token, int) and 0 <= token < n_vocab for token in ids):
        ids = None
    chat.talk.answered(ids, text)
    return Turn(question, text, ids, str(turn["finish_reason"]), chat.talk.system, dict(turn["settings"]), before)


def replay(chat: Chat, file: Path) -> None:
    """Answer every question of a saved chat again, with its settings and seed, and compare the texts."""
    document = _read(file)
    usual, n_same = chat.options, 0
    chat.forget()
    try:
        for turn in document["turns"]:
            options = _with_settings(usual, turn["settings"], keep_given=False)
            if turn["finish_reason"] == "interrupt" and turn["ids"] is not None:
                options = replace(options, text=replace(options.text, n=len(turn["ids"])))
            chat.talk.set_system(turn["system"])
            if not chat.change(options) or not chat.ask(turn["question"]):
                return
            n_same += chat.turns[-1].text == turn["answer"]
    except (KeyError, TypeError, AttributeError) as error:
        raise _unusable(file, "it is damaged") from error
    finally:
        chat.change(usual)
    say(f"Identical text in {n_same} of {len(document['turns'])} answers.")
