"""Options that belong together, declared once: frozen dataclasses whose fields are typer's options."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def takes_groups(command: Callable[..., T]) -> Callable[..., T]:
    """A command that typer sees with the fields of its groups as options, and that is called with the groups.

    A group is a keyword-only parameter whose type is a dataclass; its fields are `Annotated[..., typer.Option(...)]`
    with a default. Raises ValueError, at import, where two groups have an option of the same name.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if _is_group(hint)}

    @functools.wraps(command)
    def with_options(**given: Any) -> T:
        values = {
            name: group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        return command(**given, **values)

    own = inspect.signature(command)
    options = [option for parameter in own.parameters.values() for option in _options(parameter, hints)]
    vars(with_options)["__signature__"] = own.replace(parameters=options)  # what typer reads
    return with_options


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _options(parameter: inspect.Parameter, hints: dict[str, Any]) -> Iterator[inspect.Parameter]:
    """The parameter itself, or one for each field of its group."""
    hint = hints[parameter.name]
    if not _is_group(hint):
        yield parameter.replace(annotation=hint)
        return
    types = get_type_hints(hint, include_extras=True)
    for field in dataclasses.fields(hint):
        yield inspect.Parameter(field.name, parameter.kind, default=field.default, annotation=types[field.name])
