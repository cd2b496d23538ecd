"""Every command by its name. Its module is imported only when it is asked for: a start takes as long as its imports."""

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.main import get_command

from specdec_cli.commands.help import Command, Commands

_PLACES = {
    "run": "run:run",
    "serve": "serve:serve",
    "race": "race:race",
    "bench": "bench:bench",
    "audit": "audit:audit",
    "replay": "replay:replay",
    "check": "check:check",
    "doctor": "doctor:doctor",
    "pull": "pull:pull",
    "plan": "plan:plan",
    "export": "export:export",
    "draft": "draft:draft_app",
    "presets": "presets:presets_app",
    "list": "local_files:list_files",
    "rm": "local_files:rm",
    "verify-files": "local_files:verify_files",
}
"""Module of this room, and the function or the group in it."""


class AllCommands(Commands):
    """The commands of the table, and those that are registered besides."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Table(self.commands)

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(self.commands)


class _Table(MutableMapping[str, Any]):
    """Commands by name, made when they are looked up."""

    def __init__(self, others: MutableMapping[str, Any]) -> None:
        self._made = dict(others)
        self._names = list(dict.fromkeys([*_PLACES, *others]))

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(name)
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command
        self._names += [name] if name not in self._names else []

    def __delitem__(self, name: str) -> None:
        self._made.pop(name, None)
        self._names.remove(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _made(name: str) -> Any:
    """Raises KeyError for a name that is not in the table."""
    module, _, written = _PLACES[name].partition(":")
    found = getattr(import_module(f"specdec_cli.commands.{module}"), written)
    if isinstance(found, typer.Typer):
        command: Any = get_command(found)
    else:
        alone = typer.Typer(add_completion=False)
        alone.command(name, cls=Command)(found)
        command = get_command(alone)
    command.name = name
    return command
