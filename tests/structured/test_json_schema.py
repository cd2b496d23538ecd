"""Which JSON Schemas are kept, and which are refused in words: by texts drawn at random and `jsonschema`."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from specdec_cli.decode.tokens import Tokens
from specdec_cli.errors import UsageError
from specdec_cli.structured.compiler import check, translated
from specdec_cli.structured.masks import TokenMasks
from specdec_cli.structured.source import GrammarSource
from specdec_cli.structured.tokenizer import END_OF_BYTES, byte_tokenizer
from tests.random_texts import Texts

N_TEXTS = 12

A: dict[str, Any] = {"type": "string", "maxLength": 3}

KEPT: dict[str, Any] = {
    "emoji": {"const": "👍"},
    "escapes": {"enum": ["a\\b", "t\tx", "n\nl", 'q"q', "'"]},
    "allOf of a $ref": {
        "$defs": {"A": A},
        "type": "object",
        "properties": {"x": {"allOf": [{"$ref": "#/$defs/A"}]}},
        "required": ["x"],
    },
    "allOf with maxLength": {"allOf": [{"type": "string"}, {"maxLength": 3}]},
    "allOf with enum": {"allOf": [{"type": "string"}, {"enum": ["a", "b", 1]}]},
    "allOf beside properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "allOf": [{"properties": {"b": {"type": "null"}}, "required": ["a", "b"]}],
    },
    "anyOf beside properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "additionalProperties": False,
    },
    "required, no property": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["z"]},
    "object or null": {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "string or null": {"type": ["string", "null"], "maxLength": 2},
    "minItems without items": {"type": "array", "minItems": 3},
    "$ref with siblings": {"$defs": {"A": {"type": "integer"}}, "$ref": "#/$defs/A", "minimum": 5},
    "pattern with maxLength": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
    "$ref to a minimum": {
        "$defs": {"A": {"type": "integer", "minimum": 5}},
        "type": "array",
        "items": {"$ref": "#/$defs/A"},
        "minItems": 1,
    },
    "two anchored branches": {"type": "string", "pattern": "^foo$|^bar$"},
    "one anchor a branch": {"type": "string", "pattern": "^a|b$"},
    "a lazy quantifier": {"type": "string", "pattern": "^a+?$"},
    "a nameless property": {"type": "object", "properties": {"": {"type": "integer"}}, "required": [""]},
    "a definition named space": {"$defs": {"space": {"type": "integer"}}, "$ref": "#/$defs/space"},
    "$defs beside definitions": {
        "$defs": {"A": {"type": "integer"}},
        "definitions": {"A": {"type": "string"}},
        "type": "array",
        "prefixItems": [{"$ref": "#/$defs/A"}, {"$ref": "#/definitions/A"}],
        "minItems": 2,
    },
    "a tree": {
        "type": "object",
        "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    },
    "a reference out of the keywords": {
        "$ref": "#/components/schemas/Id",
        "components": {"schemas": {"Id": {"type": "string", "pattern": r"^\d{3}$"}}},
    },
    "a long string": {"type": "string", "maxLength": 50000},
    "many items": {"type": "array", "items": {"type": "null"}, "maxItems": 3000},
    "many repeats": {"type": "string", "pattern": "^a{0,5000}$"},
    "no items": {"type": "array", "items": False},
    "a range": {"type": "integer", "minimum": 3, "maximum": 17, "multipleOf": 5},
    "a range of fractions": {"type": "number", "exclusiveMinimum": 0.5, "maximum": 2},
    "digits": {"type": "string", "pattern": r"^\d+$"},
    "words": {"type": "string", "pattern": r"^\w+ \W\s\S\D$"},
    "a bracket after a class": {"type": "string", "pattern": "^[a]]$"},
    "no POSIX class": {"type": "string", "pattern": "^[[:alpha:]]+$"},
    "no set within a set": {"type": "string", "pattern": "^[[ab]c]$"},
    "no intersection": {"type": "string", "pattern": "^[a-z&&b]+$"},
    "a negated class": {"type": "string", "pattern": r"^[^\W\d_][^\s\S]?$"},
    "a full stop": {"type": "string", "pattern": "^.{2}$"},
    "an e-mail address": {"type": "string", "pattern": r"^[\w.]+@[\w-]+\.[a-z]{2,}$"},
    "braces": {"type": "string", "pattern": r"^{\u0041\x42\/}$"},
    "more properties": {
        "type": "object",
        "properties": {"foo": {}, "bar": {}},
        "required": ["foo"],
        "additionalProperties": {"type": "integer"},
    },
    "names by pattern": {
        "type": "object",
        "patternProperties": {r"^a\d$": {"type": "integer"}},
        "additionalProperties": False,
        "minProperties": 1,
    },
    "a date": {"type": "string", "format": "date", "pattern": "^2"},
    "names are no keywords": {"type": "object", "properties": {"not": {"type": "string"}, "$ref": {"const": 3}}},
    "anything": True,
    "a property of any value": {"type": "object", "properties": {"a": True}, "required": ["a"]},
    "a property of no value": {"type": "object", "properties": {"a": False}},
    "values are no schemas": {"enum": [{"pattern": "[[:alpha:]]", "$ref": "nowhere"}]},
}


@pytest.mark.parametrize("name", KEPT)
def test_a_schema_is_kept(name: str) -> None:
    texts = Texts(json.dumps(KEPT[name]))
    assert texts.refusal == ""
    drawn = [text for seed in range(N_TEXTS) if (text := texts.draw(seed)) is not None]
    assert drawn
    for text in drawn:
        Draft202012Validator(KEPT[name]).validate(json.loads(text.decode()))


REFUSED = {
    '{"enum": []}': "anyOf is empty",
    '{"oneOf": [{"type": "integer"}, {"type": "number"}]}': "oneOf",
    '{"$ref": "#"}': "no text can match",
    '{"type": "string", "pattern": "^(a$"}': "not closed",
    '{"type": "string", "pattern": "a{,3}"}': "{0,n}",
    '{"type": "string", "pattern": "(?i)a"}': "flags",
    '{"type": "string", "pattern": "a(?=b)"}': "look-around",
    '{"type": "string", "pattern": "\\\\bfoo"}': "word boundaries",
    '{"type": "string", "pattern": "(a)\\\\1"}': r"\1 is not supported",
    '{"type": "string", "pattern": "^\\\\p{digit}$"}': r"\p is not supported",
    '{"type": "string", "pattern": "[]a]"}': "[]",
    '{"type": "string", "pattern": "[b-a]"}': "out of order",
    '{"type": "string", "pattern": "*"}': "nothing to repeat before",
    '{"type": "array", "uniqueItems": true}': "uniqueItems",
    '{"not": {"type": "null"}}': "not",
    '{"type": "object", "minProperties": 2}': "minProperties",
    '{"type": "integer", "multipleOf": 10000019}': "multipleOf",
    '{"type": "string", "format": "nope"}': "nope",
    '{"$ref": "http://example.org/a.json"}': "points outside the schema",
    '{"$ref": "#/$defs/A"}': "points to nothing",
    '{"$ref": "#/const", "const": {"type": "null"}}': "does not point to a schema",
    '{"$defs": {"A": {"$id": "x"}}}': "$id",
    '{"x-guidance": {"lenient": true}, "not": {}}': "x-guidance",
    '{"type": "string", "type": "null"}': "duplicate key",
    '{"const": NaN}': "NaN",
    '{"const": 9007199254740993}': "const is not supported here: a number",
    '{"enum": [1, [{"a": -9007199254740993}]]}': "enum is not supported here: a number",
    '{"type": "integer", "minimum": 9007199254740993}': "minimum is not supported here: a number",
    '{"type": "integer", "exclusiveMaximum": 1e17}': "exclusiveMaximum is not supported here: a number",
    '{"type": "integer", "multipleOf": 1e300}': "multipleOf is not supported here: a number",
    '{"enum": ["a", "\\u0001"]}': "enum is not supported here: a string holds a control character",
    '{"const": "\\ud800"}': "surrogate",
    '{"items": 3}': "#/items: a schema must be an object, not 3",
    "[1]": "a schema must be an object, true or false",
    "false": "false allows no value",
    '{"name": "never", "schema": false}': "false allows no value",
    "{": "it is not JSON",
    '{"items":' * 5000 + "{}" + "}" * 5000: "nested deeper",
}


@pytest.mark.parametrize("schema", REFUSED, ids=lambda schema: schema[:60])
def test_what_cannot_be_kept_is_refused_by_name(schema: str) -> None:
    try:
        refusal = Texts(schema).refusal
    except UsageError as error:
        refusal = str(error)
    assert REFUSED[schema] in refusal


@pytest.mark.parametrize(
    ("schema", "refusal"),
    [
        ({"uniqueItems": True}, "keyword not supported: uniqueItems"),
        ({"properties": {"a/b": {"uniqueItems": True}}}, "#/properties/a~1b: keyword not supported: uniqueItems"),
        ({"items": {"allOf": [{}, {"not": {}, "if": {}}]}}, "#/items/allOf/1: keywords not supported: if, not"),
        ({"properties": {"a": {"not": {}}, "b": {"not": {}}}}, "keyword not supported: not"),
        ({"$defs": {"A": {"format": "nope"}}, "$ref": "#/$defs/A"}, "#/$defs/A: unknown format nope"),
        ({"items": {"type": "text"}}, "#/items: unknown type text"),
        ({"items": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "#/items: oneOf is not supported where"),
        ({"properties": {"a": {"pattern": "\\b"}}}, "#/properties/a: pattern '\\\\b': word boundaries"),
        ({"items": [{}, {"const": 2**60}]}, "#/items/1: const is not supported here"),
        ({"here": {"there": {"$anchor": "x"}}, "$ref": "#/here/there"}, "#/here/there: keyword not supported: $anchor"),
    ],
    ids=str,
)
def test_a_refusal_names_the_part_of_the_schema(schema: Any, refusal: str) -> None:
    """By a JSON pointer, unless it is the root, or several parts may be meant."""
    with pytest.raises(UsageError, match=re.escape(f"Unsupported or invalid JSON schema: {refusal}")):
        check(GrammarSource("json-schema", json.dumps(schema)))


@pytest.mark.parametrize(
    "text",
    [
        '\ufeff{"type": "integer", "maximum": 3, "minimum": 3}',
        '{"name": "three", "strict": true, "schema": {"const": 3}}',
        '{"type": "json_schema", "json_schema": {"name": "three", "schema": {"const": 3}}}',
    ],
    ids=["a byte order mark", "OpenAI's wrapper", "OpenAI's response_format"],
)
def test_wrapped_schemas_are_unwrapped(text: str) -> None:
    assert Texts(text).draw(0) == b"3"


def keeps(schema: str, text: str) -> bool:
    """Whether the grammar of a schema allows all of a text."""
    masks = TokenMasks(byte_tokenizer(), translated(GrammarSource("json-schema", schema)), frozenset({END_OF_BYTES}))
    said = [*text.encode(), END_OF_BYTES]
    return all(token in masks.all_allowed(Tokens(said[:i]), 0) for i, token in enumerate(said))


def test_no_name_is_written_in_two_ways() -> None:
    """JSON readers keep the last of two properties of one name, whose value the schema knows nothing about."""
    schema = '{"type": "object", "properties": {"age": {"type": "integer"}, "\\n": {"const": 1}}}'
    assert keeps(schema, '{"age": 3, "x": "y"}')
    assert keeps(schema, '{"\\n": 1}')
    for text in (r'{"age": 3, "\u0061ge": "x"}', r'{"\u0061ge": "x"}', r'{"\u000a": 2}', r'{"\u000A": 2}'):
        assert not keeps(schema, text)


def test_a_string_may_hold_what_has_an_escape_or_needs_none() -> None:
    every = [chr(i) for i in (*range(32, 127), 0x80, 0xE9, 0x2028, 0xFFFD, 0x1F600, 0x10FFFF)]
    for character in [*every, *"\b\f\n\r\t"]:
        assert keeps('{"type": "string"}', json.dumps(character, ensure_ascii=False)), repr(character)


def test_json_is_written_as_models_read_it() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"enum": [[2, 3]]}}, "required": ["a", "b"]}
    assert Texts(json.dumps({**schema, "additionalProperties": False})).draw(0) == b'{"a": 1, "b": [2, 3]}'


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (
            "lark",
            "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(20000)) + 'r20000: "a"',
            "crashes llguidance",
        ),
        ("regex", "[^\\s\\S]", "no text can match"),
        ("regex", "a(?=b)", "look-around"),
        ("lark", 'start: %json {"not": {}}', "%json"),
        ("lark", "start: start", "no text can match"),
        ("gbnf", " \n", "empty"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_an_error_in_words(kind: Any, text: str, reason: str) -> None:
    """Also one over which llguidance ends its process."""
    with pytest.raises(UsageError, match=reason):
        check(GrammarSource(kind, text))


def test_the_current_folder_lends_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("numpy", "llguidance", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(0)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no text can match"):
        check(GrammarSource("lark", "start: start"))


def say_nothing(_grammar: str) -> str:
    os._exit(0)


def test_a_child_that_says_nothing_has_accepted_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_cli.structured.compiler.reason_against", say_nothing)
    with pytest.raises(UsageError, match="crashes llguidance"):
        check(GrammarSource("json-schema", "{}"))


def test_a_refusal_holds_any_character_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    with pytest.raises(UsageError, match="日本"):
        check(GrammarSource("json-schema", '{"type": "string", "format": "日本"}'))


def test_an_accepted_grammar_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    check(GrammarSource("regex", "a"))
    for _ in range(2):
        with pytest.raises(UsageError, match="no text"):
            check(GrammarSource("regex", "[^\\s\\S]"))
    monkeypatch.setattr("specdec_cli.structured.compiler.Child", None)  # there is none any more
    check(GrammarSource("regex", "a"))
    with pytest.raises(TypeError):
        check(GrammarSource("regex", "b"))
    monkeypatch.setattr("specdec_cli.structured.compiler.version", lambda _: "another")
    with pytest.raises(TypeError):
        check(GrammarSource("regex", "a"))


def test_compiling_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_cli.structured.compiler.PATIENCE_SECONDS", 0.01)
    with pytest.raises(UsageError, match="compiling it takes"):
        check(GrammarSource("regex", "a"))
