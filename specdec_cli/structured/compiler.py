"""From what the user gave to a grammar of llguidance's, tried in a process of its own.

llguidance bounds what a grammar may cost, but some still end the process (a chain of 20,000 rules) or take minutes.
So every grammar is compiled elsewhere first, where a death is an error in words and time runs out. What went well is
remembered.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.metadata import version

from llguidance import LLMatcher

from specdec_cli import __version__
from specdec_cli.child_process import PATIENCE_SECONDS, Child, ChildDied, StopFlag
from specdec_cli.decode.tokens import Tokens
from specdec_cli.errors import NothingAllowed, UsageError
from specdec_cli.marks import is_marked, mark
from specdec_cli.structured.json_schema import checked_schema
from specdec_cli.structured.masks import TokenMasks, parser_limits
from specdec_cli.structured.refusals import in_words
from specdec_cli.structured.source import NAMES, GrammarSource
from specdec_cli.structured.tokenizer import END_OF_BYTES, byte_tokenizer

LONGEST = 1_000_000
"""Characters of a grammar."""
_MARKS = "compiled"
_MAX_REMEMBERED = 2000
_LONGEST_REASON = 300


class GrammarCheck:
    """A grammar that is being compiled elsewhere; `finish` waits for the verdict."""

    def __init__(self, source: GrammarSource, key: str, child: Child[str] | None) -> None:
        self._source, self._key, self._child = source, key, child

    def finish(self) -> None:
        """Raises UsageError for a grammar that cannot be kept, Interrupted."""
        child, self._child = self._child, None
        if child is None:
            return
        try:
            reason = child.result()
        except ChildDied as died:
            if died.was_too_slow:
                reason = f"compiling it takes more than {PATIENCE_SECONDS:.0f} seconds"
            else:
                reason = "it crashes llguidance: it is nested too deeply, or too large"
        if reason:
            is_schema = self._source.kind == "json-schema"
            raise _refusal(self._source, in_words(checked_schema(self._source.text), reason) if is_schema else reason)
        mark(_MARKS, [self._key], most=_MAX_REMEMBERED)


@contextmanager
def checking(source: GrammarSource, stop: StopFlag | None = None) -> Iterator[GrammarCheck]:
    """Begin to check whether a grammar can be kept; the process of it ends with the context.

    What shows at once is refused at once. Raises UsageError.
    """
    if not source.text.strip():
        raise _refusal(source, "it is empty")
    if len(source.text) > LONGEST:
        raise _refusal(source, f"it is longer than {LONGEST:,} characters")
    grammar = "" if source.kind == "gbnf" else translated(source)
    key = _key(grammar)
    if source.kind == "gbnf" or is_marked(_MARKS, key):
        yield GrammarCheck(source, key, None)
        return
    with Child(partial(reason_against, grammar), patience=PATIENCE_SECONDS, stop=stop) as child:
        yield GrammarCheck(source, key, child)


def check(source: GrammarSource) -> None:
    """Refuse what cannot be kept. Raises UsageError."""
    with checking(source) as begun:
        begun.finish()


def _key(grammar: str) -> str:
    """Of a grammar and the programs that read it."""
    facts = [grammar, __version__, version("llguidance")]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


@lru_cache(maxsize=1)
def translated(source: GrammarSource) -> str:
    """llguidance's form of a schema, a regular expression or a Lark grammar. Raises UsageError."""
    if source.kind == "regex":
        return LLMatcher.grammar_from_regex(source.text)
    if source.kind == "lark":
        if "%json" in source.text:
            raise _refusal(source, "%json would bypass the checks of --json-schema")
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
                # With \u a name could be written in two ways, and be counted as two names.
                "json_allowed_escapes": 'nrbtf\\"',
            },
        )
    except ValueError as error:  # SchemaError, and what llguidance's reader of JSON says
        raise _refusal(source, str(error)) from error


def _refusal(source: GrammarSource, reason: str) -> UsageError:
    reason = " ".join(reason.split()).rstrip(".")[:_LONGEST_REASON]
    name = NAMES[source.kind]
    return UsageError(f"Unsupported or invalid {name}: {reason}.", hint=f"Change the {name}, or omit it.")


def reason_against(grammar: str) -> str:
    """Why a grammar in llguidance's form cannot be used, empty if it can.

    Warnings count: what llguidance only warns of it does not keep.
    """
    is_bad, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=parser_limits())
    if is_bad or messages:
        return messages[0]
    try:
        masks = TokenMasks(byte_tokenizer(), grammar, frozenset({END_OF_BYTES}))
        masks.all_allowed(Tokens(), 0)
    except NothingAllowed:
        return "no text can match it"
    return ""
