"""From what the user gave to a grammar of llguidance's, tried in a process of its own.

llguidance bounds what a grammar may cost, but some still end the process (a chain of 20,000 rules) or take minutes.
So every grammar is compiled elsewhere first, where a death is an error in words and time runs out.
"""

import json
import subprocess
import sys
from collections.abc import Mapping

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from specdec_cli.errors import DecodeFailed, UsageError
from specdec_cli.structured.json_schema import SchemaError, checked_schema
from specdec_cli.structured.masks import TokenMasks
from specdec_cli.structured.source import GrammarSource, Kind

PATIENCE_SECONDS = 10.0
LONGEST = 1_000_000
"""Characters of a grammar."""
_LONGEST_REASON = 300
_NAMES: Mapping[Kind, str] = {
    "gbnf": "grammar",
    "json-schema": "JSON schema",
    "regex": "regular expression",
    "lark": "Lark grammar",
}
_JSON_OPTIONS = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "lenient": False,
    "coerce_one_of": False,
}
"""White space as in most JSON that models have read, and nowhere else: so much of the text is certain."""


def compiled(source: GrammarSource) -> str:
    """llguidance's form of a schema, a regular expression or a Lark grammar. Raises UsageError."""
    if len(source.text) > LONGEST:
        raise _refusal(source, f"it is longer than {LONGEST:,} characters")
    if source.kind == "json-schema":
        try:
            schema = json.dumps(checked_schema(source.text))
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_OPTIONS)
        except ValueError as error:  # SchemaError, and what llguidance's reader of JSON says
            raise _refusal(source, str(error)) from error
    elif source.kind == "regex":
        grammar = LLMatcher.grammar_from_regex(source.text)
    else:
        if "%json" in source.text:
            raise _refusal(source, "%json is read without the checks of --json-schema, which does what it is for")
        grammar = LLMatcher.grammar_from_lark(source.text)
    if reason := _tried_apart(grammar):
        raise _refusal(source, reason)
    return grammar


def parser_limits() -> LLParserLimits:
    """llguidance's own, with errors that do not quote the parser's state."""
    return LLParserLimits(verbose_errors=False)


def _refusal(source: GrammarSource, reason: str) -> UsageError:
    reason = " ".join(reason.split()).rstrip(".")[:_LONGEST_REASON]
    name = _NAMES[source.kind]
    return UsageError(f"The {name} cannot be kept: {reason}.", hint=f"Change the {name}, or leave it out.")


def _tried_apart(grammar: str) -> str:
    """Why the grammar cannot be used, empty if it can."""
    command = [sys.executable, "-m", "specdec_cli.structured.compiler"]
    try:
        done = subprocess.run(
            command, input=grammar.encode(), capture_output=True, timeout=PATIENCE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it takes more than {PATIENCE_SECONDS:.0f} seconds to compile"
    if done.returncode != 0:
        return "llguidance dies of it: it is nested too deeply, or too large"
    return done.stdout.decode()


def _tried(grammar: str) -> str:
    """The same, here. Warnings count: what llguidance only warns of it does not keep."""
    is_bad, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=parser_limits())
    if is_bad or messages:
        return messages[0]
    try:
        masks = TokenMasks(_byte_tokenizer(), grammar, frozenset({_END}), parser_limits())
        masks.all_allowed([])
    except DecodeFailed:
        return "no text at all keeps to it"
    return ""


_END = 256


class _Bytes:
    """A vocabulary with a token for every byte, and an end."""

    eos_token_id, bos_token_id = _END, None
    tokens = (*(bytes([byte]) for byte in range(_END)), b"<end>")
    special_token_ids = (_END,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()))


if __name__ == "__main__":
    print(_tried(sys.stdin.buffer.read().decode()), end="")
