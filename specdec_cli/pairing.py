"""Opening a target and its draft as planned: sessions, the rule, the drafter."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from specdec_cli.drafters import DRAFTERS, DrafterParts
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import NoGpu
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.devices import add_rpc_server, gpu_devices
from specdec_cli.llama.head import LlamaHead
from specdec_cli.llama.head_kinds import open_head
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.memory import ModelFacts
from specdec_cli.plan import PairRequest, Plan, Say, make_plan
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
class OpenHead:
    """A trained head in place of a draft model. The model is the target's where the head is in its file."""

    model: LlamaModel
    session: LlamaHead
    facts: ModelFacts
    context: ContextSettings


@dataclass(frozen=True, slots=True)
class Pair:
    """Everything that generating needs. `tokenizers` is the check's verdict, None without a draft."""

    target: OpenModel
    draft: OpenModel | OpenHead | None
    drafter: Drafter
    rule: Rule
    end_tokens: frozenset[int]
    tokenizers: str | None
    strict: Strict | None = None


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
        draft = _open_draft(plan, target, abort, stack)
        _check_offload(request, target, say)
        rule = make_rule(request, target.model, plan.n_shared, stack)
        end_tokens = target.model.end_tokens
        opened = Pair(target, draft, NoDrafter(), rule, end_tokens, plan.tokenizers, make_strict(request, rule))
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


def _open_draft(plan: Plan, target: OpenModel, abort: AbortFlag, stack: ExitStack) -> OpenModel | OpenHead | None:
    if plan.draft is None or plan.draft_facts is None:
        return None
    if plan.head is None:
        return _open(plan.draft, plan.draft_facts, plan.draft_context, abort, stack)
    if not target.session.can_rewind:  # nothing will be drafted, so nobody is to read hidden states either
        return None
    model = target.model if plan.head.is_own else stack.enter_context(LlamaModel(plan.draft, abort=abort))
    head = stack.enter_context(open_head(model, plan.head, target.session, plan.draft_context, abort))
    return OpenHead(model, head, plan.draft_facts, plan.draft_context)


def drafter_for(pair: Pair, name: str, rule: Rule, p_min: float) -> Drafter:
    """The drafter of this name for an open pair; none, with the reason, where memory cannot be taken back.

    Raises UsageError for one that needs a draft model where there is none.
    """
    draft = pair.draft
    for which, opened in (("target", pair.target), ("draft", draft)):
        if opened is not None and not opened.session.can_rewind and name != "none":
            return NoDrafter(f"the {which}'s memory cannot be taken back (a recurrent or hybrid model)")
    session = draft.session if draft is not None else None
    head = session if isinstance(session, LlamaHead) else None
    if name == "model" and head is not None:
        name = head.name
    return DRAFTERS[name](DrafterParts(rule, pair.end_tokens, p_min, session, head))
