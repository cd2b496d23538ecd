"""Opening a target and its draft as planned: sessions, the rule, the drafter."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from specdec_cli.decode.coupled import Rule
from specdec_cli.decode.strict import Strict
from specdec_cli.decode.types import Drafter
from specdec_cli.drafters import COPYING, DrafterParts, make_drafter, sources
from specdec_cli.drafters.lookahead import LookaheadDrafter
from specdec_cli.drafters.medusa.heads import Heads, TargetShape, read_heads
from specdec_cli.drafters.mixed import Turns
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.store import NgramStore, StoreFile, fingerprint
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import NoGpu, UsageError
from specdec_cli.generation.rules import check_rule, make_rule, make_strict
from specdec_cli.lengths.auto import AutoLength
from specdec_cli.lengths.learned import Learned, LearnedKey, learning
from specdec_cli.lengths.profile import key_for, named
from specdec_cli.lengths.rewind_cost import CERTAIN, rewind_cost
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.devices import add_rpc_server, gpu_devices
from specdec_cli.llama.head import LlamaHead
from specdec_cli.llama.head_kinds import open_head
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.llama.weights import output_matrix
from specdec_cli.models.memory import ModelFacts
from specdec_cli.planning.plan import PairRequest, Plan, Say, make_plan
from specdec_cli.planning.trials import try_files
from specdec_cli.settings import LONGEST_AUTO, ContextSettings, ModelSettings


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
    """Everything that generating needs. `tokenizers` is the check's verdict, None without a draft; `heads` are Medusa's
    for the target; `held_back` says why these models' memories forbid drafting; texts that `store` is told to keep are
    saved when the pair is closed. `learned` is known of the pair where draft lengths are chosen by cost, and `auto`
    chooses them for `drafter`.
    """

    target: OpenModel
    draft: OpenModel | OpenHead | None
    drafter: Drafter
    rule: Rule
    end_tokens: frozenset[int]
    tokenizers: str | None
    strict: Strict | None = None
    heads: Heads | None = None
    held_back: str | None = None
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
        raise UsageError(
            "--ngram-store is for drafts that are copied.",
            hint="Add --draft ngram, or leave out -k and --no-ngram with a draft model.",
        )
    for endpoint in request.rpc:
        add_rpc_server(endpoint)
    try_files(request, abort)
    plan = make_plan(request, say)
    with ExitStack() as stack:
        target = _open(plan.target, plan.target_facts, plan.target_context, abort, stack)
        draft = _open_draft(plan, target, abort, stack)
        _check_offload(request, target, say)
        rule = make_rule(request, target.model, plan.n_shared, target.context.max_rows, say, stack)
        end_tokens = target.model.end_tokens
        held_back = _held_back(request, target, draft, say)
        strict, store = make_strict(request, rule), _open_store(request, target.model, say, stack)
        heads = _heads(request.head, target, plan.n_shared) if request.head is not None else None
        opened = Pair(target, draft, NoDrafter(), rule, end_tokens, plan.tokenizers, strict, heads, held_back, store)
        if request.auto and held_back is None:
            opened = replace(opened, learned=stack.enter_context(_learned(opened, plan, request.head)))
            for one in (target, draft):  # what was read to measure is no prompt
                if isinstance(one, OpenModel):
                    one.session.forget()
        auto = auto_length(opened, request.drafter)
        drafter = drafter_for(opened, request.drafter, rule, request.p_min, auto)
        yield replace(opened, drafter=drafter, auto=None if isinstance(drafter, NoDrafter) else auto)


def _learned(pair: Pair, plan: Plan, heads: Path | None) -> AbstractContextManager[Learned]:
    """Kept by files and devices, and by how both models are opened."""
    key = LearnedKey(
        key_for(plan.target.path, plan.draft.path if plan.draft is not None else None),
        named(heads) if heads is not None else None,
        (plan.target, plan.draft),
        (plan.target_context, plan.draft_context),
    )
    draft = pair.draft.session if isinstance(pair.draft, OpenModel) else None
    return learning(
        key,
        pair.target.session,
        draft,
        draft_name=ModelDrafter.name,
        longest=_longest_auto(pair),
        clock=time.perf_counter,
    )


def auto_length(pair: Pair, drafter: str) -> AutoLength | None:
    """Lengths by cost for a drafter of this name; None where nothing was learned of the pair."""
    if pair.learned is None:
        return None
    return AutoLength(pair.learned, longest=_longest_auto(pair), sources=sources(own_name(drafter, pair.draft)))


def _longest_auto(pair: Pair) -> int:
    return min(LONGEST_AUTO, pair.target.context.max_rows - 1)


@contextmanager
def reopened(pair: Pair, target: ContextSettings, draft: ContextSettings | None, *, abort: AbortFlag) -> Iterator[Pair]:
    """The same weights in contexts of their own, beside those that are open. Raises UsageError, OutOfMemory."""
    with ExitStack() as stack:

        def again(opened: OpenModel, context: ContextSettings) -> OpenModel:
            session = stack.enter_context(LlamaSession(opened.model, context, abort=abort))
            return replace(opened, session=session, context=context)

        both = again(pair.target, target), pair.draft
        if isinstance(pair.draft, OpenModel) and draft is not None:
            both = both[0], again(pair.draft, draft)
        yield replace(pair, target=both[0], draft=both[1])


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


def _open_store(request: PairRequest, model: LlamaModel, say: Say, stack: ExitStack) -> NgramStore | None:
    if request.ngram_store is None:
        return None
    file = StoreFile(request.ngram_store, fingerprint(model), say, n_vocab=model.n_vocab)
    store = file.load()
    stack.callback(file.save, store)
    return store


def _held_back(request: PairRequest, target: OpenModel, draft: OpenModel | OpenHead | None, say: Say) -> str | None:
    """Why nothing can be drafted with these memories, None if something can; notes tell how recurrent ones go back."""
    if request.k == 0:
        return None
    for which, opened in (("target", target), ("draft", draft)):
        if opened is not None and not opened.session.can_rewind:
            return f"the {which}'s memory cannot be taken back (a recurrent or hybrid model)"
    if request.drafter == "none":  # or several, which are measured anyhow
        return None
    if isinstance(draft, OpenModel) and draft.session.rewind.name == "checkpoints":
        say("The draft has recurrent layers: rejected tokens are taken back by checkpoints of their state.")
    return _costs_too_much(request, target, say)


def _costs_too_much(request: PairRequest, target: OpenModel, say: Say) -> str | None:
    """Measured where a rejection costs a target something, that is, where it only goes back to checkpoints."""
    session = target.session
    if session.rewind.name == "snapshots":
        say("The target has recurrent layers: rejected tokens are taken back by snapshots of their state.")
    if session.rewind.name != "checkpoints":
        return None
    cost = rewind_cost(session, request.k, time.perf_counter)
    if cost is not None and cost.speedup(CERTAIN) < 1:
        return f"going back to checkpoints costs this target more than drafts can save: {cost}"
    say(
        "The target has recurrent layers: after a rejection it goes back to a checkpoint of their state and evaluates "
        f"accepted tokens again{f' ({cost})' if cost is not None else ''}."
    )
    return None


def drafter_for(pair: Pair, name: str, rule: Rule, p_min: float, turns: Turns | None = None) -> Drafter:
    """The drafter of this name for an open pair; none, with the reason, where memories forbid it.

    Raises UsageError for one that needs a draft model, or heads, where there is none.
    """
    if pair.held_back is not None and name != NoDrafter.name:
        return NoDrafter(pair.held_back)
    name = own_name(name, pair.draft)
    session, target = pair.draft.session if pair.draft is not None else None, pair.target.session
    if LookaheadDrafter.name in sources(name) and not target.can_crop:
        return NoDrafter("lookahead needs a memory that several texts can share (this is a recurrent or hybrid model)")
    parts = DrafterParts(
        rule,
        pair.end_tokens,
        p_min,
        session if isinstance(session, LlamaSession) else None,
        target,
        head=session if isinstance(session, LlamaHead) else None,
        heads=pair.heads,
        turns=turns,
        store=pair.store,
    )
    return make_drafter(name, parts)


def own_name(name: str, draft: OpenModel | OpenHead | None) -> str:
    """A trained head in place of a draft model has a name of its own."""
    if not isinstance(draft, OpenHead):
        return name
    return "+".join(draft.session.name if source == ModelDrafter.name else source for source in sources(name))
