"""From what the user gave to a grammar of llguidance's, tried in a process of its own.

llguidance bounds what a grammar may cost, but some still end the process (a chain of 20,000 rules) or take minutes.
So every grammar is compiled elsewhere first, where a death is an error in words and time runs out.
"""

import json
import subprocess
import sys
from collections.abc import Mapping

from llguidance import LLMatcher

from specdec_cli.errors import DecodeFailed, UsageError
from specdec_cli.structured.json_schema import checked_schema
from specdec_cli.structured.masks import TokenMasks, parser_limits
from specdec_cli.structured.source import GrammarSource, Kind
from specdec_cli.structured.tokenizer import END_OF_BYTES, byte_tokenizer

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


def check(source: GrammarSource) -> None:
    """Refuse what cannot be kept. Raises UsageError."""
    if not source.text.strip():
        raise _refusal(source, "it is empty")
    if len(source.text) > LONGEST:
        raise _refusal(source, f"it is longer than {LONGEST:,} characters")
    if source.kind != "gbnf" and (reason := _tried_apart(translated(source))):
        raise _refusal(source, reason)


def translated(source: GrammarSource) -> str:
    """llguidance's form of a schema, a regular expression or a Lark grammar. Raises UsageError."""
    if source.kind == "regex":
        return LLMatcher.grammar_from_regex(source.text)
    if source.kind == "lark":
        if "%json" in source.text:
            raise _refusal(source, "%json would be read without the checks of --json-schema")
        return LLMatcher.grammar_from_lark(source.text)
    try:
        schema = json.dumps(checked_schema(source.text))
        # White space as in most JSON that models have read, and nowhere else: so much of the text is certain.
        return LLMatcher.grammar_from_json_schema(
            schema,
            overrides={
                "item_separator": ", ",
                "key_separator": ": ",
                "whitespace_flexible": False,
                "lenient": False,
                "coerce_one_of": False,
            },
        )
    except ValueError as error:  # SchemaError, and what llguidance's reader of JSON says
        raise _refusal(source, str(error)) from error


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


def reason_against(grammar: str) -> str:
    """The same, in this process. Warnings count: what llguidance only warns of it does not keep."""
    is_bad, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=parser_limits())
    if is_bad or messages:
        return messages[0]
    try:
        masks = TokenMasks(byte_tokenizer(), grammar, frozenset({END_OF_BYTES}))
        masks.all_allowed([])
    except DecodeFailed:
        return "no text at all keeps to it"
    return ""


if __name__ == "__main__":
    print(reason_against(sys.stdin.buffer.read().decode()), end="")
