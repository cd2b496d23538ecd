"""From what the user asked for to the rule of a run, and what cannot be asked for together."""

from collections.abc import Mapping
from contextlib import ExitStack

from specdec_cli.decode.coupled import Rule, SharedNoise
from specdec_cli.decode.penalties import NO_BREAKERS, Breakers, breakers_from
from specdec_cli.decode.rejection import BlockRejection, TokenRejection
from specdec_cli.decode.sampler_chain import Law
from specdec_cli.decode.strict import Strict
from specdec_cli.drafters import sources
from specdec_cli.errors import UsageError
from specdec_cli.generation.grammar import open_grammar
from specdec_cli.llama.model import LlamaModel
from specdec_cli.planning.plan import PairRequest, Say
from specdec_cli.structured.compiler import check as check_grammar

RULES: Mapping[str, type[SharedNoise] | type[TokenRejection] | type[BlockRejection]] = {
    rule.name: rule for rule in (SharedNoise, TokenRejection, BlockRejection)
}


def check_rule(request: PairRequest) -> None:
    """Refuse what could not be kept, before any weights are read. Raises UsageError."""
    if request.verify not in RULES:
        raise UsageError(f"--verify cannot be {request.verify!r}.", hint=f"Use one of {', '.join(RULES)}.")
    if request.strict and not RULES[request.verify].keeps_text:
        raise UsageError(
            f"--strict makes the text that of plain decoding, which --verify {request.verify} does not keep.",
            hint="Leave out one of the two.",
        )
    if request.strict and "lookahead" in sources(request.drafter):
        raise UsageError(
            "--strict keeps passes narrow, and --draft lookahead makes every pass wide.",
            hint="Leave out one of the two.",
        )
    if request.grammar is not None and request.ignore_end:
        raise UsageError(
            "A grammar ends with an end token, which --ignore-eos forbids.", hint="Leave out one of the two."
        )
    if request.grammar is not None:
        check_grammar(request.grammar)


def make_rule(
    request: PairRequest, model: LlamaModel, n_shared: int, max_rows: int, say: Say, stack: ExitStack
) -> Rule:
    """The rule of a run with this target, whose passes give `max_rows` rows; `stack` closes its grammar. Raises
    UsageError."""
    for token in (*request.banned, *(token for token, _ in request.bias)):
        if not 0 <= token < model.n_vocab:
            raise UsageError(f"There is no token {token}.", hint=f"The model's tokens are 0 to {model.n_vocab - 1}.")
    grammar = open_grammar(request.grammar, model, say, stack) if request.grammar is not None else None
    ends = model.end_tokens if request.ignore_end else ()
    law = Law(
        request.sampling,
        n_shared=n_shared,
        banned=(*model.suppressed_tokens, *request.banned, *ends),
        bias=dict(request.bias),
        breakers=_breakers(request, model) if request.sampling.has_dry else NO_BREAKERS,
        grammar=grammar,
        most_forced=max_rows - 1,
    )
    return RULES[request.verify](law, seed=request.seed)


def make_strict(request: PairRequest, rule: Rule) -> Strict | None:
    drafts = (request.drafter != "none" and request.k > 0) or request.grammar is not None
    return Strict(rule) if request.strict and drafts and isinstance(rule, SharedNoise) else None


def _breakers(request: PairRequest, model: LlamaModel) -> Breakers:
    pieces = [model.marked_bytes(token) for token in range(model.n_vocab)]
    return breakers_from(
        request.dry_breakers, pieces, lambda text: model.tokenize(text, add_special=False, parse_special=False)
    )
