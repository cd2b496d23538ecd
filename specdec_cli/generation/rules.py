"""Builds the verification rule of a run, and refuses options that exclude each other."""

from collections.abc import Mapping
from contextlib import ExitStack

from specdec_cli.decode.coupled import Rule, SharedNoise
from specdec_cli.decode.penalties import NO_BREAKERS, Breakers, breakers_from
from specdec_cli.decode.rejection import BlockRejection, TokenRejection
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.strict import Strict
from specdec_cli.decode.types import Grammar
from specdec_cli.drafters import kinds
from specdec_cli.errors import UsageError
from specdec_cli.generation.grammar import open_grammar
from specdec_cli.llama.model import LlamaModel
from specdec_cli.planning.plan import Say
from specdec_cli.planning.request import PairRequest, Sampling

RULES: Mapping[str, type[SharedNoise] | type[TokenRejection] | type[BlockRejection]] = {
    rule.name: rule for rule in (SharedNoise, TokenRejection, BlockRejection)
}


def check_rule(request: PairRequest) -> None:
    """Refuse what could not be kept, before any weights are read. Raises UsageError."""
    drafting, sampling = request.drafting, request.sampling
    if drafting.verify not in RULES:
        raise UsageError(f"Invalid --verify: {drafting.verify!r}.", hint=f"Use one of {', '.join(RULES)}.")
    if drafting.strict and not RULES[drafting.verify].keeps_text:
        raise UsageError(
            f"--strict keeps the text of plain decoding, and --verify {drafting.verify} does not.",
            hint="Leave out one of the two.",
        )
    if drafting.strict and any(kind.has_trees for kind in kinds(drafting.drafter)):
        raise UsageError(
            "--strict keeps passes narrow, and --draft lookahead makes every pass wide.",
            hint="Leave out one of the two.",
        )
    if sampling.grammar is not None and sampling.ignore_end:
        raise UsageError("A grammar needs the end token, which --ignore-eos forbids.", hint="Leave out one of the two.")


def make_rule(
    request: PairRequest, model: LlamaModel, n_shared: int, max_rows: int, say: Say, stack: ExitStack
) -> Rule:
    """The rule of a run with this target, whose passes give `max_rows` rows; `stack` closes its grammar. Raises
    UsageError."""
    source = request.sampling.grammar
    grammar = open_grammar(source, model, say, stack) if source is not None else None
    return rule_with(grammar, request, model, n_shared, max_rows)


def rule_with(grammar: Grammar | None, request: PairRequest, model: LlamaModel, n_shared: int, max_rows: int) -> Rule:
    """The same with a grammar that is open already. Raises UsageError."""
    sampling = request.sampling
    for token in (*sampling.banned, *(token for token, _ in sampling.bias)):
        if not 0 <= token < model.n_vocab:
            raise UsageError(f"Invalid token id: {token}.", hint=f"This model has token ids 0 to {model.n_vocab - 1}.")
    ends = model.end_tokens if sampling.ignore_end else ()
    law = Law(
        sampling.params,
        n_shared=n_shared,
        banned=(*model.suppressed_tokens, *sampling.banned, *ends),
        bias=dict(sampling.bias),
        breakers=_breakers(sampling, model) if sampling.params.has_dry else NO_BREAKERS,
        grammar=grammar,
        most_forced=max_rows - 1,
    )
    return RULES[request.drafting.verify](law, seed=sampling.seed)


def make_strict(request: PairRequest, rule: Rule) -> Strict | None:
    """What --strict adds to the rule; None without it, and where nothing is drafted."""
    drafting = request.drafting
    drafts = (drafting.drafter != "none" and drafting.k > 0) or request.sampling.grammar is not None
    return Strict(rule) if drafting.strict and drafts and isinstance(rule, SharedNoise) else None


def _breakers(sampling: Sampling, model: LlamaModel) -> Breakers:
    return breakers_from(
        sampling.dry_breakers,
        model.all_bytes(marked=True),
        lambda text: model.tokenize(text, add_special=False, parse_special=False),
    )
