"""A JSON Schema as llguidance reads it, after what it would not keep has been refused by name.

llguidance refuses most of what it cannot keep. What is refused or rewritten here is the rest: patterns, whose syntax
it takes for Rust's; references that do not lead to a part of the schema; numbers that make automata too large;
properties that may be counted twice.
"""

import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from math import prod
from typing import Any
from urllib.parse import unquote

from specdec_cli.structured.patterns import PatternError, rust_pattern

Schema = dict[str, Any]

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_ONES = (
    *("items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_VALUES = ("const", "enum", "default", "examples")
"""Keywords that hold values, not schemas."""
_ELSEWHERE = ("$id", "id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor")
"""What makes a reference lead elsewhere than its pointer says."""
_OF_DRAFT_3 = ("divisibleBy", "disallow", "extends", "dependencies")
_LARGEST_FACTOR = 20_000
"""Product of all numbers of `multipleOf`: an automaton has as many states."""
_LARGEST_NUMBER = 2**53
"""Above it llguidance, like many readers of JSON, takes neighbouring whole numbers for the same."""
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum")
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Characters that JSON writes with \\u alone, which the compiler forbids."""
_DEEPEST = 100
_LONGEST_POINTER = 150


class SchemaError(ValueError):
    """Why a schema cannot be kept, as the end of a sentence."""


def checked_schema(text: str) -> Schema:
    """The schema in `text` (JSON, perhaps inside OpenAI's wrapper), ready for llguidance.

    Raises SchemaError, which begins with the JSON pointer of the part that cannot be kept, unless that is the root.
    """
    root = _unwrapped(_parsed(text))
    if root is False:
        raise SchemaError("false allows no value")
    if root is True:
        return {}
    if not isinstance(root, dict):
        raise SchemaError("a schema must be an object, true or false")
    if "x-guidance" in root:
        raise SchemaError("x-guidance would change its meaning")
    _Checked(root).check()
    return root


def _parsed(text: str) -> Any:
    try:
        found = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_object, parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError:
        raise SchemaError(f"it is nested deeper than {_DEEPEST}") from None
    except UnicodeEncodeError:
        raise SchemaError("it contains half a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise SchemaError(f"it is not JSON ({error})") from error


def _object(pairs: list[tuple[str, Any]]) -> Schema:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise SchemaError(f"duplicate key ({', '.join(sorted({key for key, _ in pairs}))[:100]})")
    return found


def _no_number(text: str) -> None:
    raise SchemaError(f"{text} is not valid JSON")


def _unwrapped(schema: Any) -> Any:
    """The schema inside OpenAI's `response_format`, or the part of it that names and holds it."""
    if isinstance(schema, dict) and schema.get("type") == "json_schema" and "json_schema" in schema:
        schema = schema["json_schema"]
    if isinstance(schema, dict) and "schema" in schema and schema.keys() <= {"name", "strict", "schema", "description"}:
        return schema["schema"]
    return schema


class _Checked:
    """Walks through a schema and all that it refers to; rewrites patterns in place."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._seen: set[int] = set()
        self._referred_to: list[tuple[str, Any]] = []
        self._factors: set[Decimal] = set()

    def check(self) -> None:
        self._walk("#", self._root, 0)
        while self._referred_to:
            self._walk(*self._referred_to.pop(), 0)
        self._check_factors()

    def _walk(self, where: str, schema: Any, depth: int) -> None:
        """Checks the part at the JSON pointer `where`, and all inside it."""
        if isinstance(schema, bool) or id(schema) in self._seen:
            return
        if depth > _DEEPEST:
            raise SchemaError(f"it is nested deeper than {_DEEPEST}")
        try:
            self._check_part(schema)
        except SchemaError as error:
            raise SchemaError(located(where, str(error))) from error
        self._seen.add(id(schema))
        for part, inner in parts(schema):
            self._walk(f"{where}/{part}", inner, depth + 1)

    def _check_part(self, schema: Any) -> None:
        if not isinstance(schema, dict):
            raise SchemaError(f"a schema must be an object, not {json.dumps(schema)[:100]}")
        self._check_keywords(schema)
        self._rewrite_patterns(schema)
        if "$ref" in schema:
            reference = str(schema["$ref"])
            self._referred_to.append((reference, self._target(reference)))

    def _check_keywords(self, schema: Schema) -> None:
        foreign = [key for key in _ELSEWHERE if key != "$id" or schema is not self._root]
        if unkept := [key for key in (*foreign, *_OF_DRAFT_3) if key in schema]:
            raise SchemaError(unsupported(unkept))
        if "draft-03" in str(schema.get("$schema", "")):
            raise SchemaError("draft 3 is not supported")
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]
        required = schema.get("required", [])
        least = schema.get("minProperties", 0)
        # Two properties of one name count as one, and only one more than the required ones has no namesake.
        if isinstance(least, int) and isinstance(required, list) and least > len(set(map(str, required))) + 1:
            raise SchemaError("minProperties is not supported, because a name may occur twice")
        for key in _NUMBERS:
            if reason := _unkept_value(schema.get(key)):
                raise SchemaError(f"{key} is not supported here: {reason}")
        factor = schema.get("multipleOf")
        if isinstance(factor, int | float) and factor > 0:
            self._factors.add(Decimal(str(factor)))

    def _check_factors(self) -> None:
        """By all factors at once: several may meet in one number."""
        scale = min((int(f.as_tuple().exponent) for f in self._factors), default=0)
        if prod(int(f.scaleb(-scale)) for f in self._factors) > _LARGEST_FACTOR:
            raise SchemaError(
                f"multipleOf is not supported where the product of all factors is above {_LARGEST_FACTOR:,}"
            )

    @staticmethod
    def _rewrite_patterns(schema: Schema) -> None:
        if isinstance(schema.get("pattern"), str):
            schema["pattern"] = _rewritten(schema["pattern"])
        by_pattern = schema.get("patternProperties")
        if isinstance(by_pattern, dict):
            schema["patternProperties"] = {_rewritten(key): inner for key, inner in by_pattern.items()}

    def _target(self, reference: str) -> Any:
        """The schema that a reference leads to, by a JSON pointer from the root."""
        where = reference.removeprefix(str(self._root.get("$id", "")).rstrip("#"))
        if where != "#" and not where.startswith("#/"):
            raise SchemaError(f"$ref: {reference[:100]} points outside the schema")
        found: Any = self._root
        is_schema: bool | None = True  # None: outside of all keywords, where anything may lie
        for part in (unquote(part).replace("~1", "/").replace("~0", "~") for part in where.split("/")[1:]):
            if is_schema and part in _VALUES:
                raise SchemaError(f"$ref: {reference[:100]} does not point to a schema")
            try:
                found = found[int(part)] if isinstance(found, list) else found[part]
            except (KeyError, IndexError, ValueError, TypeError):
                raise SchemaError(f"$ref: {reference[:100]} points to nothing") from None
            if is_schema and part not in (*_MAPS, *_LISTS, *_ONES):
                is_schema = None
            elif is_schema is not None:
                is_schema = not is_schema or (part in _ONES and isinstance(found, dict))
        return found


def parts(schema: Schema) -> Iterator[tuple[str, Any]]:
    """The schemas right inside a schema, each with what its JSON pointer has more than that of `schema`."""
    for key in _MAPS:
        if isinstance(schema.get(key), dict):
            for name, inner in schema[key].items():
                yield f"{key}/{name.replace('~', '~0').replace('/', '~1')}", inner
    for key in (*_LISTS, *_ONES):
        if isinstance(schema.get(key), list):
            yield from ((f"{key}/{i}", inner) for i, inner in enumerate(schema[key]))
        elif key in _ONES and key in schema:
            yield key, schema[key]


def unsupported(keywords: Iterable[str]) -> str:
    """That they are."""
    names = sorted(keywords)
    return f"keyword{'s' * (len(names) > 1)} not supported: {', '.join(names)}"


def located(where: str, reason: str) -> str:
    """The reason, with the JSON pointer of the part that it is about, unless that is the root."""
    return reason if where == "#" else f"{where[:_LONGEST_POINTER]}: {reason}"


def _unkept_value(value: Any) -> str:
    """Why a text that holds just this value cannot be told from others, or not be written; empty if it can."""
    if isinstance(value, list):
        return next(filter(None, map(_unkept_value, value)), "")
    if isinstance(value, dict):
        return _unkept_value([*value.keys(), *value.values()])
    if isinstance(value, str) and _UNWRITABLE.search(value):
        return "a string holds a control character"
    if isinstance(value, int | float) and abs(value) > _LARGEST_NUMBER:
        return f"a number is above {_LARGEST_NUMBER:,}"
    return ""


def _rewritten(pattern: str) -> str:
    try:
        return rust_pattern(pattern)
    except PatternError as error:
        raise SchemaError(f"pattern {pattern[:40]!r}: {error}") from error
