"""Commands of a chat that change how it goes on: settings, the drafter, the length of drafts."""

from collections.abc import Sequence
from typing import Any

from specdec_cli.commands.chat import Chat
from specdec_cli.commands.chat_options import setting_named, settings, usual
from specdec_cli.commands.options import say
from specdec_cli.errors import UsageError

_USUAL = ("temperature", "top-k", "top-p", "min-p", "seed", "n", "stop")


def set_value(chat: Chat, rest: str) -> None:
    """/set NAME VALUE."""
    name, _, text = rest.removeprefix("parameter ").partition(" ")  # as ollama has it
    if not name:
        say(f"/set NAME VALUE, or default as the value. Names: {', '.join(settings())}.")
        return
    if name in ("k", "draft", "system"):
        raise UsageError(f"/set does not know {name}.", hint=f"Use /{name}.")
    setting, text = setting_named(name), text.strip()
    if not text:
        raise UsageError(f"/set {setting.name} needs a value.", hint=f"It is {_told(chat.values()[setting.name])} now.")
    if chat.change(chat.options.changed(setting, setting.read(text))):
        if setting.field == "think":
            chat.tell_anew()
        _tell(setting.name, chat.values()[setting.name])


def show(chat: Chat, rest: str) -> None:
    """/show: what the next answer is made with; /show NAME one setting, /show all every one."""
    values = chat.values()
    if rest and rest != "all":
        name = setting_named(rest).name
        _tell(name, values[name])
        return
    pair = chat.live.pair
    say(f"model: {pair.target.model.path.name}, context {pair.target.session.n_ctx} tokens")
    _tell_drafter(chat)
    say(f"system message: {chat.talk.system if chat.talk.system is not None else 'none'}")
    for name, value in values.items():
        if rest or name in _USUAL or value != usual(settings()[name]):
            _tell(name, value)


def length(chat: Chat, rest: str) -> None:
    """/k N or auto."""
    if not rest or chat.change(chat.options.with_length(rest)):
        _tell_drafter(chat)


def drafter(chat: Chat, rest: str) -> None:
    """/draft NAME or a file; default is the model's own."""
    if not rest or chat.change(chat.options.with_draft(None if rest == "default" else rest)):
        _tell_drafter(chat)


def setting_names(incomplete: str) -> Sequence[str]:
    """Names that may follow /set and /show."""
    return [name for name in settings() if name.startswith(incomplete)]


def _tell_drafter(chat: Chat) -> None:
    pair, drafting = chat.live.pair, chat.live.request.drafting
    file = f" ({pair.draft.model.path.name})" if pair.draft is not None else ""
    length = f", k {'auto' if drafting.auto else drafting.k}" if drafting.drafter != "none" else ""
    say(f"drafter: {pair.decoding.drafter.name}{file}{length}")


def _tell(name: str, value: Any) -> None:
    say(f"{name}: {_told(value)}")


def _told(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value == []:
        return "not set"
    return " ".join(map(repr, value)) if isinstance(value, (list, tuple)) else str(value)
