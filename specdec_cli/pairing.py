"""Opening a target and its draft as planned: sessions, the rule, the drafter."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from specdec_cli.drafters import DRAFTERS, DrafterParts
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import NoGpu
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.devices import add_rpc_server, gpu_devices
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.llama.weights import output_matrix
from specdec_cli.medusa_heads import Heads, TargetShape, read_heads
from specdec_cli.memory import ModelFacts
from specdec_cli.plan import PairRequest, Say, make_plan
from specdec_cli.rules import check_rule, make_rule, make_strict
from specdec_cli.settings import ContextSettings, ModelSettings
from specdec_cli.strict import Strict
from specdec_cli.types import Drafter
from specdec_cli.verify import Rule


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A loaded model with its one session."""

    model: LlamaModel
    session: LlamaSession
    facts: ModelFacts
    context: ContextSettings


@dataclass(frozen=True, slots=True)
class Pair:
    """Everything that generating needs. `tokenizers` is the check's verdict, None without a draft; `heads` are Medusa's
    for the target."""

    target: OpenModel
    draft: OpenModel | None
    drafter: Drafter
    rule: Rule
    end_tokens: frozenset[int]
    tokenizers: str | None
    strict: Strict | None = None
    heads: Heads | None = None


@contextmanager
def open_pair(request: PairRequest, *, say: Say, abort: AbortFlag) -> Iterator[Pair]:
    """Open what was asked for and close it again, draft first. `say` takes notes for the user.

    Raises ModelError, OutOfMemory, VocabularyMismatch, NoGpu, UsageError, Interrupted.
    """
    check_rule(request)
    for endpoint in request.rpc:
        add_rpc_server(endpoint)
    plan = make_plan(request, say)
    with ExitStack() as stack:
        target = _open(plan.target, plan.target_facts, plan.target_context, abort, stack)
        draft = None
        if plan.draft is not None and plan.draft_facts is not None:
            draft = _open(plan.draft, plan.draft_facts, plan.draft_context, abort, stack)
        _check_offload(request, target, say)
        rule = make_rule(request, target.model, plan.n_shared, stack)
        end_tokens = target.model.end_tokens
        strict = make_strict(request, rule)
        heads = _heads(request.head, target, plan.n_shared) if request.head is not None else None
        opened = Pair(target, draft, NoDrafter(), rule, end_tokens, plan.tokenizers, strict, heads)
        yield replace(opened, drafter=drafter_for(opened, request.drafter, rule, request.p_min))


def _check_offload(request: PairRequest, target: OpenModel, say: Say) -> None:
    """What llama.cpp really did, not what it was asked for."""
    if target.model.layers_on_gpu[0] > 0:
        return
    if request.require_gpu:
        raise NoGpu("No layer of the target went to a GPU.", hint="Give --ngl a number, or free GPU memory.")
    if request.gpu_layers not in ("auto", "0") and gpu_devices() and not request.devices:
        say("No layer of the target went to a GPU, although --ngl asked for it.")


def _open(
    settings: ModelSettings, facts: ModelFacts, context: ContextSettings, abort: AbortFlag, stack: ExitStack
) -> OpenModel:
    model = stack.enter_context(LlamaModel(settings, abort=abort))
    session = stack.enter_context(LlamaSession(model, context, abort=abort))
    return OpenModel(model, session, facts, context)


def _heads(path: Path, target: OpenModel, n_shared: int) -> Heads:
    shape = TargetShape(target.session.n_embd, n_shared, target.session.n_vocab)
    return read_heads(path, shape, lambda: output_matrix(target.model.path))


def drafter_for(pair: Pair, name: str, rule: Rule, p_min: float) -> Drafter:
    """The drafter of this name for an open pair; none, with the reason, where memory cannot be taken back.

    Raises UsageError for one that needs a draft model, or heads, where there is none.
    """
    draft = pair.draft
    for which, opened in (("target", pair.target), ("draft", draft)):
        if opened is not None and not opened.session.can_rewind and name != "none":
            return NoDrafter(f"the {which}'s memory cannot be taken back (a recurrent or hybrid model)")
    session, target = draft.session if draft is not None else None, pair.target.session
    target.keep_hidden = name == "medusa"
    return DRAFTERS[name](DrafterParts(rule, pair.end_tokens, p_min, session, target, pair.heads))
