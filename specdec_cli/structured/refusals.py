"""What llguidance says of a schema, in words that name the part it is about."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from specdec_cli.structured.json_schema import Schema, located, parts, unsupported

_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*\])$")
_Reason = tuple[re.Pattern[str], str, Callable[[str, Schema], bool]]
_REASONS: tuple[_Reason, ...] = (
    (re.compile(r"Unknown format: (.*)$"), "unknown format {}", lambda said, part: part.get("format") == said),
    (re.compile(r"Invalid type: (.*)$"), "unknown type {}", lambda said, part: said in _listed(part.get("type"))),
    (
        re.compile(r"(oneOf) constraints"),
        "{} is not supported where several branches may fit",
        lambda _, part: "oneOf" in part,
    ),
)
"""What llguidance says, what to say, and which parts of a schema that can be about."""


def in_words(root: Schema, said: str) -> str:
    """`said` by llguidance of a schema that was checked; with a JSON pointer if only one part can be meant."""
    if found := _UNIMPLEMENTED.match(said):
        names = {str(name) for name in json.loads(found[1])}
        return _located(root, lambda part: part.keys() >= names, unsupported(names))
    for pattern, words, is_about in _REASONS:
        if found := pattern.match(said):
            return _located(root, partial(is_about, found[1]), words.format(found[1]))
    return said


def _located(root: Schema, is_about: Callable[[Schema], bool], reason: str) -> str:
    places = [where for where, part in _all_parts(root) if is_about(part)]
    return located(places[0] if len(places) == 1 else "#", reason)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _all_parts(root: Schema) -> Iterator[tuple[str, Schema]]:
    """All schemas in a schema, in the order of the document, with their JSON pointers."""
    waiting: list[tuple[str, Any]] = [("#", root)]
    while waiting:
        where, part = waiting.pop()
        if isinstance(part, dict):
            yield where, part
            waiting += [(f"{where}/{end}", inner) for end, inner in parts(part)][::-1]
