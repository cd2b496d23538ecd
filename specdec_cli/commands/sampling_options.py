"""Sampling and grammar options, shared by commands."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specdec_cli.commands.options import in_panel, quoted, whole_number
from specdec_cli.errors import UsageError
from specdec_cli.outputs import ByOption
from specdec_cli.structured.source import GrammarSource
from specdec_cli.untrusted_files import read_file, reason

if TYPE_CHECKING:
    from specdec_cli.decode.sampling import SamplingParams
    from specdec_cli.planning.request import Sampling

_sampling = in_panel("Sampling (defaults from llama.cpp, or from the preset)")
_more = in_panel("More samplers (off by default)")
_structured = in_panel("Structured output (choose one)")

_LARGEST_BIAS = 1e30
"""Logits are float32; sums with it must not be infinite."""

TempOpt = Annotated[float | None, _sampling(help="Temperature; 0 is greedy (default: 0.8).")]
"""Beside the group: some commands take several."""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """All but the temperature. None: as the preset has it, or else llama.cpp."""

    top_k: Annotated[int | None, _sampling(help="Keep the k most likely tokens (default: 40); 0 is off.")] = None
    top_p: Annotated[
        float | None,
        _sampling(help="Keep the most likely tokens up to a total probability of p (default: 0.95); 1 is off."),
    ] = None
    min_p: Annotated[
        float | None,
        _sampling(help="Drop tokens below this fraction of the top probability (default: 0.05); 0 is off."),
    ] = None
    seed: Annotated[
        int | None,
        _sampling(
            min=0,
            max=2**64 - 1,
            help="Random seed: same seed, same text, with any drafter (default: random; 1 in bench, audit and draft).",
        ),
    ] = None
    logit_bias: Annotated[
        list[str] | None, _more(help="Add to a token's logit: ID+BIAS or ID-BIAS, such as 15043-1; repeatable.")
    ] = None
    ban: Annotated[list[int] | None, _more("--ban", min=0, help="Never generate this token id; repeatable.")] = None
    ignore_eos: Annotated[bool, _more("--ignore-eos", help="Never generate an end token.")] = False
    repeat_penalty: Annotated[
        float | None, _more(help="Penalize tokens that occur in the recent text (default: 1, off).")
    ] = None
    frequency_penalty: Annotated[
        float | None, _more(help="Subtract this from a token's logit per occurrence (default: 0).")
    ] = None
    presence_penalty: Annotated[
        float | None, _more(help="Subtract this from the logit of a token that has occurred (default: 0).")
    ] = None
    repeat_last_n: Annotated[int | None, _more(help="Number of tokens that penalties look back (default: 64).")] = None
    dry_multiplier: Annotated[
        float | None, _more(help="DRY: penalty strength against repeated sequences (default: 0).")
    ] = None
    dry_base: Annotated[float | None, _more(help="DRY: growth per repeated token (default: 1.75).")] = None
    dry_allowed_length: Annotated[int | None, _more(help="DRY: sequences up to this length are free (default: 2).")] = (
        None
    )
    dry_last_n: Annotated[
        int | None, _more("--dry-penalty-last-n", help="DRY: number of tokens to look back (default: 64).")
    ] = None
    dry_breaker: Annotated[
        list[str] | None,
        _more(
            "--dry-sequence-breaker",
            help='DRY: text that ends a sequence; repeatable (default: newline : " *). none for no breakers.',
        ),
    ] = None
    top_n_sigma: Annotated[
        float | None, _more(help="Keep logits within n standard deviations of the highest (default: 0).")
    ] = None
    typical: Annotated[
        float | None, _more(help="Locally typical sampling with total probability p (default: 1, off).")
    ] = None

    def over(self, base: "SamplingParams", temperature: float | None = None) -> "SamplingParams":
        """The samplers: what was given over `base`."""
        given = {
            "temperature": temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "typical": self.typical,
            "top_n_sigma": self.top_n_sigma,
            "repeat_penalty": self.repeat_penalty,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "repeat_last_n": self.repeat_last_n,
            "dry_multiplier": self.dry_multiplier,
            "dry_base": self.dry_base,
            "dry_allowed_length": self.dry_allowed_length,
            "dry_last_n": self.dry_last_n,
        }
        return replace(base, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def asked(self, params: "SamplingParams", *, seed: int, grammar: GrammarSource | None = None) -> "Sampling":
        """With these samplers; `seed` is for who gives none. Raises UsageError."""
        from specdec_cli.planning.request import Sampling

        sampling = Sampling(
            params,
            seed=seed if self.seed is None else self.seed,
            ignore_end=self.ignore_eos,
            banned=tuple(self.ban or ()),
            bias=_biases(self.logit_bias or ()),
            grammar=grammar,
        )
        return sampling if self.dry_breaker is None else replace(sampling, dry_breakers=_breakers(self.dry_breaker))


@dataclass(frozen=True, slots=True)
class GrammarOptions:
    """What the text has to keep to: one of these."""

    json_schema: Annotated[
        Path | None, _structured(help="Generate JSON that is valid against the JSON Schema in this file.")
    ] = None
    regex: Annotated[str | None, _structured(help="Generate text that this regular expression matches in full.")] = None
    lark: Annotated[Path | None, _structured(help="Follow the Lark grammar in this file (llguidance's dialect).")] = (
        None
    )
    grammar: Annotated[Path | None, _structured(help="Follow the GBNF grammar in this file.")] = None

    @property
    def reads(self) -> ByOption:
        return {"--json-schema": self.json_schema, "--lark": self.lark, "--grammar": self.grammar}

    def source(self) -> GrammarSource | None:
        """What the text is to keep to, if anything. Raises UsageError."""
        given = [one for one in (self.json_schema, self.regex, self.lark, self.grammar) if one is not None]
        if len(given) > 1:
            raise UsageError(
                "Only one grammar can be used at a time.",
                hint="Give one of --json-schema, --regex, --lark and --grammar.",
            )
        if self.json_schema is not None:
            return GrammarSource("json-schema", _read(self.json_schema, "--json-schema"))
        if self.regex is not None:
            return GrammarSource("regex", self.regex)
        if self.lark is not None:
            return GrammarSource("lark", _read(self.lark, "--lark"))
        return GrammarSource("gbnf", _read(self.grammar, "--grammar")) if self.grammar is not None else None


def _biases(texts: Sequence[str]) -> tuple[tuple[int, float], ...]:
    """(token, bias) of each text such as 15043-1. Raises UsageError."""
    return tuple(_bias(text) for text in texts)


def _bias(text: str) -> tuple[int, float]:
    found = re.fullmatch(r"(\d+)([+-]\d*\.?\d+)", text, re.ASCII)
    token = whole_number(found[1]) if found else None
    if found and token is not None and abs(float(found[2])) <= _LARGEST_BIAS:
        return token, float(found[2])
    raise UsageError(
        f"Invalid --logit-bias: {quoted(text)}.", hint="Give ID+BIAS or ID-BIAS. To forbid a token, use --ban ID."
    )


def _breakers(texts: Sequence[str]) -> tuple[str, ...]:
    """With newlines and the like spelt as escapes."""
    if list(texts) == ["none"]:
        return ()
    return tuple(text.replace("\\n", "\n").replace("\\t", "\t") for text in texts)


def _read(path: Path, option: str) -> str:
    try:
        return read_file(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is not UTF-8"
        is_schema = str(path).lstrip().startswith("{")
        hint = f"{option} takes the name of a file: write the text into one." if is_schema else "Check the file."
        raise UsageError(f"Cannot read {path} ({option}): {why}.", hint=hint) from error
