"""Options about the law of the text: the rarer samplers, grammars, and the rule of verification."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from specdec_cli.commands.options import in_panel
from specdec_cli.errors import UsageError
from specdec_cli.structured.source import GrammarSource

_more = in_panel("More samplers (off unless given), in llama.cpp's order")
_rule = in_panel("Rule")

LogitBiasOpt = Annotated[
    list[str] | None, _more(help="Add to a token's logit: ID+BIAS or ID-BIAS, such as 15043-1; may be repeated.")
]
BanOpt = Annotated[list[int] | None, _more("--ban", min=0, help="Never write this token id; may be repeated.")]
IgnoreEosOpt = Annotated[bool, _more("--ignore-eos", help="Never write an end token.")]
RepeatPenaltyOpt = Annotated[float | None, _more(help="Divide logits of tokens said before (1).")]
FrequencyPenaltyOpt = Annotated[float | None, _more(help="Take off this for each time said before (0).")]
PresencePenaltyOpt = Annotated[float | None, _more(help="Take off this if said before (0).")]
RepeatLastNOpt = Annotated[int | None, _more(help="Tokens that the penalties look back on (64).")]
DryMultiplierOpt = Annotated[float | None, _more(help="DRY: strength against repeated passages (0).")]
DryBaseOpt = Annotated[float | None, _more(help="DRY: growth with a passage's length (1.75).")]
DryAllowedLengthOpt = Annotated[int | None, _more(help="DRY: passages this long cost nothing yet (2).")]
DryLastNOpt = Annotated[int | None, _more("--dry-penalty-last-n", help="DRY: tokens to look back on (64).")]
DryBreakerOpt = Annotated[
    list[str] | None,
    _more("--dry-sequence-breaker", help='DRY: ends a passage; may be repeated (newline : " *); none for no breakers.'),
]
TopNSigmaOpt = Annotated[float | None, _more(help="Keep logits within n deviations of the highest (0).")]
TypicalOpt = Annotated[float | None, _more(help="Keep the tokens of most typical surprise that make up p (1).")]
_structured = in_panel("Structured output (one of them)")

JsonSchemaOpt = Annotated[Path | None, _structured(help="Write JSON that is valid by the JSON Schema in this file.")]
RegexOpt = Annotated[str | None, _structured(help="Write a text that this regular expression matches as a whole.")]
LarkOpt = Annotated[Path | None, _structured(help="Keep to the Lark grammar in this file (llguidance's dialect).")]
GrammarOpt = Annotated[Path | None, _structured(help="Keep to the GBNF grammar in this file.")]
LogprobsOpt = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Log-probabilities of each token and of the N likeliest, in --json or --jsonl.",
        rich_help_panel="Output",
    ),
]
VerifyOpt = Annotated[
    Literal["coupled", "rejection", "block"],
    _rule(help="coupled: the text of plain decoding. rejection, block: its distribution, more accepted at times."),
]
StrictOpt = Annotated[
    bool,
    _rule(
        "--strict", help="Draft only as long as passes give the numbers of single tokens; else decide near ties alone."
    ),
]


def biases(texts: Sequence[str]) -> tuple[tuple[int, float], ...]:
    """(token, bias) of each text such as 15043-1. Raises UsageError."""
    return tuple(_bias(text) for text in texts)


def _bias(text: str) -> tuple[int, float]:
    if found := re.fullmatch(r"(\d+)([+-]\d*\.?\d+)", text):
        return int(found[1]), float(found[2])
    raise UsageError(f"--logit-bias cannot be {text!r}.", hint="Give ID+BIAS or ID-BIAS; --ban ID forbids a token.")


def breakers(texts: Sequence[str] | None) -> dict[str, Any]:
    """The field of a request if breakers were given, newlines and the like spelt as escapes."""
    if texts is None:
        return {}
    if list(texts) == ["none"]:
        return {"dry_breakers": ()}
    return {"dry_breakers": tuple(text.replace("\\n", "\n").replace("\\t", "\t") for text in texts)}


def grammar_source(
    *, json_schema: Path | None, regex: str | None, lark: Path | None, grammar: Path | None
) -> GrammarSource | None:
    """What the text is to keep to, if anything. Raises UsageError."""
    given = [option for option in (json_schema, regex, lark, grammar) if option is not None]
    if len(given) > 1:
        raise UsageError(
            "A text keeps to one grammar, and more were given.",
            hint="Leave out all but one of --json-schema, --regex, --lark and --grammar.",
        )
    if json_schema is not None:
        return GrammarSource("json-schema", _read(json_schema, "--json-schema"))
    if regex is not None:
        return GrammarSource("regex", regex)
    if lark is not None:
        return GrammarSource("lark", _read(lark, "--lark"))
    return GrammarSource("gbnf", _read(grammar, "--grammar")) if grammar is not None else None


def _read(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{option}: {path} cannot be read: {reason}.", hint="Check the file.") from error
