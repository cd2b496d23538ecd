"""Opening a target and its draft as planned: sessions, the rule, the drafter."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace

from specdec_cli.auto_length import AutoLength
from specdec_cli.drafters import COPYING, DrafterParts, make_drafter, sources
from specdec_cli.drafters.mixed import Turns
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import NoGpu, UsageError
from specdec_cli.learned import Learned, LearnedKey, learning
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.devices import add_rpc_server, gpu_devices
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.memory import ModelFacts
from specdec_cli.ngram_store import NgramStore, StoreFile, fingerprint
from specdec_cli.plan import PairRequest, Plan, Say, make_plan
from specdec_cli.profile import key_for
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
    """Everything that generating needs. `tokenizers` is the check's verdict, None without a draft; texts that `store`
    is told to keep are saved when the pair is closed. `learned` is known of the pair where draft lengths are chosen
    by cost, and `auto` chooses them for `drafter`.
    """

    target: OpenModel
    draft: OpenModel | None
    drafter: Drafter
    rule: Rule
    end_tokens: frozenset[int]
    tokenizers: str | None
    strict: Strict | None = None
    store: NgramStore | None = None
    learned: Learned | None = None
    auto: AutoLength | None = None


@contextmanager
def open_pair(request: PairRequest, *, say: Say, abort: AbortFlag) -> Iterator[Pair]:
    """Open what was asked for and close it again, draft first. `say` takes notes for the user.

    Raises ModelError, OutOfMemory, VocabularyMismatch, NoGpu, UsageError, Interrupted.
    """
    check_rule(request)
    if request.ngram_store is not None and not COPYING.intersection(sources(request.drafter)):
        raise UsageError("--ngram-store is for drafts that are copied.", hint="Add --draft ngram, or leave it out.")
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
        strict, store = make_strict(request, rule), _open_store(request, target.model, say, stack)
        opened = Pair(target, draft, NoDrafter(), rule, end_tokens, plan.tokenizers, strict, store)
        if request.auto and not isinstance(drafter_for(opened, request.drafter, rule, request.p_min), NoDrafter):
            opened = replace(opened, learned=stack.enter_context(_learned(opened, plan, request.k)))
        auto = auto_length(opened, request.drafter, request.k)
        yield replace(opened, drafter=drafter_for(opened, request.drafter, rule, request.p_min, auto), auto=auto)


def _learned(pair: Pair, plan: Plan, longest: int) -> AbstractContextManager[Learned]:
    """Kept by files and devices, and by how both models are opened."""
    key = LearnedKey(
        key_for(plan.target.path, plan.draft.path if plan.draft is not None else None),
        (plan.target, plan.draft),
        (plan.target_context, plan.draft_context),
    )
    draft = pair.draft.session if pair.draft is not None else None
    return learning(
        key, pair.target.session, draft, draft_name=ModelDrafter.name, longest=longest, clock=time.perf_counter
    )


def auto_length(pair: Pair, drafter: str, longest: int) -> AutoLength | None:
    """Lengths by cost for a drafter of this name; None where nothing was learned of the pair."""
    if pair.learned is None:
        return None
    return AutoLength(pair.learned, longest=longest, sources=sources(drafter))


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


def _open_store(request: PairRequest, model: LlamaModel, say: Say, stack: ExitStack) -> NgramStore | None:
    if request.ngram_store is None:
        return None
    file = StoreFile(request.ngram_store, fingerprint(model), say)
    store = file.load()
    stack.callback(file.save, store)
    return store


def drafter_for(pair: Pair, name: str, rule: Rule, p_min: float, turns: Turns | None = None) -> Drafter:
    """The drafter of this name for an open pair; none, with the reason, where memory cannot be taken back.

    Raises UsageError for one that needs a draft model where there is none.
    """
    draft = pair.draft
    for which, opened in (("target", pair.target), ("draft", draft)):
        if opened is not None and not opened.session.can_rewind and name != "none":
            return NoDrafter(f"the {which}'s memory cannot be taken back (a recurrent or hybrid model)")
    session = draft.session if draft is not None else None
    return make_drafter(name, DrafterParts(rule, pair.end_tokens, p_min, session, turns, pair.store))
