"""Opens target and draft as planned, and generates with them."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from specdec_cli.decode.coupled import Rule
from specdec_cli.decode.draft_length import GIVE_UP_AFTER, DraftLength, FixedLength
from specdec_cli.decode.engine import generate
from specdec_cli.decode.plain_pace import PlainChecks
from specdec_cli.decode.strict import Strict
from specdec_cli.decode.types import Drafter, Round
from specdec_cli.drafters import DrafterParts, kinds, make_drafter, sources
from specdec_cli.drafters.cross.drafter import Crossing, hands_over_text, shares_too_little
from specdec_cli.drafters.cross.reader import TextReader
from specdec_cli.drafters.lookahead import LookaheadDrafter
from specdec_cli.drafters.medusa.heads import Heads, TargetShape, read_heads
from specdec_cli.drafters.mixed import Turns
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.store import NgramStore, StoreFile, fingerprint
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import NoGpu, UsageError
from specdec_cli.generation.encode import more_ids
from specdec_cli.generation.prompts import Follower, prediction_text
from specdec_cli.generation.rules import check_rule, make_rule, make_strict
from specdec_cli.lengths.auto import AutoLength
from specdec_cli.lengths.learned import Learned, LearnedKey, learning
from specdec_cli.lengths.rewind_cost import CERTAIN, rewind_cost
from specdec_cli.llama import amx
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.devices import add_rpc_server, gpu_devices
from specdec_cli.llama.head import LlamaHead
from specdec_cli.llama.head_kinds import open_head
from specdec_cli.llama.model import LlamaModel
from specdec_cli.llama.session import LlamaSession
from specdec_cli.llama.weights import output_matrix
from specdec_cli.models.memory import ModelFacts
from specdec_cli.planning.plan import Plan, Say, make_plan
from specdec_cli.planning.profile import key_for, named
from specdec_cli.planning.request import Drafting, PairRequest, Placement
from specdec_cli.planning.trials import try_context, try_files
from specdec_cli.settings import AUTO, LONGEST_AUTO, ContextSettings, Length, ModelSettings
from specdec_cli.structured.compiler import checking
from specdec_cli.structured.source import Kind


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
class Decoding:
    """One way to decode with an open pair. Its parts learn from text to text."""

    drafter: Drafter
    length: DraftLength
    rule: Rule
    strict: Strict | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Everything that generating needs. `decoding` is what was asked for.

    `tokenizers` is the check's verdict, None without a draft; `heads` are Medusa's for the target; `held_back` says why
    these models' memories forbid drafting; texts that `store` is told to keep are saved when the pair is closed;
    `predicted` is what the answer is said to repeat, `crossing` translates for a draft with another vocabulary.
    `learned` is known of the pair where draft lengths are chosen by cost. With `trust`, further contexts need no trial.
    `grammar` says in which language a grammar was given, if one was.
    """

    target: OpenModel
    draft: OpenModel | OpenHead | None
    decoding: Decoding
    end_tokens: frozenset[int]
    tokenizers: str | None
    heads: Heads | None = None
    held_back: str | None = None
    store: NgramStore | None = None
    predicted: tuple[int, ...] = ()
    crossing: Crossing | None = None
    learned: Learned | None = None
    trust: bool = False
    grammar: Kind | None = None

    @property
    def follower(self) -> Follower | None:
        """A draft with another vocabulary, which reads conversations in its own format."""
        if self.crossing is None or self.draft is None:
            return None
        return Follower(self.draft.model, self.crossing.reader.tell)

    @property
    def rule(self) -> Rule:
        return self.decoding.rule

    @property
    def auto(self) -> AutoLength | None:
        """Chooses draft lengths by cost, where that was asked for and something is drafted."""
        return self.decoding.length if isinstance(self.decoding.length, AutoLength) else None

    def rounds(
        self,
        prompt: Sequence[int],
        decoding: Decoding | None = None,
        *,
        max_tokens: int | None,
        clock: Callable[[], float],
        ends: Callable[[int], bool] | None = None,
        n_logprobs: int | None = None,
        checks: PlainChecks | None = None,
    ) -> Iterator[Round]:
        """Answer a prompt, as asked when the pair was opened or by another `decoding`: the engine's rounds.

        `ends` says whether the text ends with a token; without it, end tokens do. `checks` says which rounds go without
        a draft, where that leaves the text the same.
        """
        way = decoding or self.decoding
        return generate(
            self.target.session,
            way.drafter,
            way.length,
            way.rule,
            prompt,
            max_tokens=max_tokens,
            ends=ends or self.end_tokens.__contains__,
            clock=clock,
            n_logprobs=n_logprobs,
            strict=way.strict,
            checks=checks if way.rule.keeps_text else None,
        )


@contextmanager
def open_pair(request: PairRequest, *, say: Say, abort: AbortFlag) -> Iterator[Pair]:
    """Open what was asked for and close it again, draft first. `say` takes notes for the user.

    Raises ModelError, OutOfMemory, VocabularyMismatch, NoGpu, UsageError, Interrupted.
    """
    check_request(request)
    drafting, placement = request.drafting, request.placement
    predicted = prediction_text(drafting.predict) if drafting.predict is not None else ""
    for endpoint in placement.rpc:
        add_rpc_server(endpoint)
    with ExitStack() as stack:
        grammar = request.sampling.grammar
        grammar_check = stack.enter_context(checking(grammar, abort)) if grammar is not None else None
        try_files(request, abort)
        if amx.crashes():
            say(amx.CRASHES)
        plan = make_plan(request, say)
        target = open_model(plan.target, plan.target_facts, plan.target_context, abort, stack)
        draft = open_draft(plan, target, abort, stack)
        _check_offload(placement, target, say)
        if grammar_check is not None:
            grammar_check.finish()
        rule = make_rule(request, target.model, plan.n_shared, target.context.max_rows, say, stack)
        held_back = why_held_back(drafting, target, draft, say)
        opened = Pair(
            target,
            draft,
            plain_decoding(rule),
            target.model.end_tokens,
            plan.tokenizers,
            open_heads(drafting.head, target, plan.n_shared) if drafting.head is not None else None,
            held_back,
            _open_store(drafting.ngram_store, target.model, say, stack),
            tuple(more_ids(target.model, predicted, parse_special=False)) if predicted else (),
            crossing_of(plan, rule, target, draft),
            trust=placement.trust,
            grammar=grammar.kind if grammar is not None else None,
        )
        if drafting.auto and held_back is None:
            opened = replace(opened, learned=stack.enter_context(learned_of(opened, plan, drafting.head)))
            for one in (target, draft):  # what was read to measure is no prompt
                if isinstance(one, OpenModel):
                    one.session.forget()
        decoding = decoding_for(opened, drafting.drafter, AUTO if drafting.auto else drafting.k, rule, drafting.p_min)
        yield replace(opened, decoding=replace(decoding, strict=make_strict(request, rule)))


def crossing_of(plan: Plan, rule: Rule, target: OpenModel, draft: OpenModel | OpenHead | None) -> Crossing | None:
    """What a draft with another vocabulary needs. Raises UsageError for a rule that cannot be kept with it."""
    if plan.translation is None or draft is None:
        return None
    if not rule.keeps_text and shares_too_little(plan.translation):
        raise UsageError(
            f"--verify {rule.name} needs tokens that both models have, and these two share too few.",
            hint="Omit --verify: coupled takes any draft.",
        )
    bos = plan.translation.draft.bos
    first = [bos] if bos is not None and plan.translation.draft.add_bos else []
    reader = TextReader(draft.model, plan.translation.target_pieces, plan.translation.markers, first)
    return Crossing(plan.translation, target.model, reader, hands_over_text(plan.translation))


def check_request(request: PairRequest) -> None:
    """Refuse options that exclude each other, before any weights are read. Raises UsageError."""
    check_rule(request)
    drafting = request.drafting
    if drafting.ngram_store is not None and not any(kind.reads_store for kind in kinds(drafting.drafter)):
        raise UsageError(
            "--ngram-store needs n-gram lookup.",
            hint="Use --draft ngram, or omit -k and --no-ngram with a draft model.",
        )


def learned_of(pair: Pair, plan: Plan, heads: Path | None) -> AbstractContextManager[Learned]:
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


def plain_decoding(rule: Rule) -> Decoding:
    """Decoding without drafts."""
    return Decoding(NoDrafter(), FixedLength(0), rule)


def decoding_for(
    pair: Pair, drafter: str, k: Length, rule: Rule, p_min: float = 0.0, *, give_up_after: int = GIVE_UP_AFTER
) -> Decoding:
    """Drafts of `k` tokens by the drafter of this name, given up after so many in a row without an accepted token.

    Raises UsageError for a drafter that lacks something, ValueError for "auto" where the pair was opened without.
    """
    auto = _auto_length(pair, drafter) if k == AUTO and pair.held_back is None else None
    found = drafter_for(pair, drafter, rule, p_min, auto)
    if auto is not None and not isinstance(found, NoDrafter):
        return Decoding(found, auto, rule)
    return Decoding(found, FixedLength(LONGEST_AUTO if k == AUTO else k, give_up_after=give_up_after), rule)


def _auto_length(pair: Pair, drafter: str) -> AutoLength:
    """Lengths by cost for a drafter of this name."""
    if pair.learned is None:
        raise ValueError("the pair was opened without `auto`, so nothing is known that lengths could be chosen by")
    return AutoLength(pair.learned, longest=_longest_auto(pair), sources=sources(own_name(drafter, pair.draft)))


def _longest_auto(pair: Pair) -> int:
    return min(LONGEST_AUTO, pair.target.context.max_rows - 1)


@contextmanager
def reopened(
    pair: Pair,
    target: ContextSettings,
    draft: ContextSettings | None,
    *,
    abort: AbortFlag,
    repack: bool | None = None,
) -> Iterator[Pair]:
    """The same weights in contexts of their own, beside those that are open; the target's are loaded once more where
    they are to be reordered (`repack`) and were not, or the other way round.

    Raises UsageError, ModelError, OutOfMemory.
    """
    with ExitStack() as stack:

        def again(opened: OpenModel, context: ContextSettings, drafts_for: Path | None) -> OpenModel:
            if not pair.trust:
                try_context(opened.model.path, drafts_for, context, abort)
            session = stack.enter_context(LlamaSession(opened.model, context, abort=abort))
            return replace(opened, session=session, context=context)

        opened_target = pair.target
        settings = opened_target.model.settings
        if repack not in (None, settings.repack):
            model = stack.enter_context(LlamaModel(replace(settings, repack=repack), abort=abort))
            opened_target = replace(opened_target, model=model)
        both = again(opened_target, target, None), pair.draft
        if isinstance(pair.draft, OpenModel) and draft is not None:
            both = both[0], again(pair.draft, draft, pair.target.model.path)
        yield replace(pair, target=both[0], draft=both[1])


def _check_offload(placement: Placement, target: OpenModel, say: Say) -> None:
    """What llama.cpp really did, not what it was asked for."""
    if target.model.layers_on_gpu[0] > 0:
        return
    if placement.require_gpu:
        raise NoGpu("No layer of the target is on a GPU.", hint="Give --ngl a number, or free GPU memory.")
    if placement.gpu_layers not in ("auto", "0") and gpu_devices() and not placement.devices:
        say("No layer of the target is on a GPU, although --ngl asked for it.")


def open_model(
    settings: ModelSettings, facts: ModelFacts, context: ContextSettings, abort: AbortFlag, stack: ExitStack
) -> OpenModel:
    model = stack.enter_context(LlamaModel(settings, abort=abort))
    session = stack.enter_context(LlamaSession(model, context, abort=abort))
    return OpenModel(model, session, facts, context)


def open_heads(path: Path, target: OpenModel, n_shared: int) -> Heads:
    shape = TargetShape(target.session.n_embd, n_shared, target.session.n_vocab)
    return read_heads(path, shape, lambda: output_matrix(target.model.path))


def open_draft(plan: Plan, target: OpenModel, abort: AbortFlag, stack: ExitStack) -> OpenModel | OpenHead | None:
    if plan.draft is None or plan.draft_facts is None:
        return None
    if plan.head is None:
        return open_model(plan.draft, plan.draft_facts, plan.draft_context, abort, stack)
    if not target.session.can_rewind:  # nothing will be drafted, so nobody is to read hidden states either
        return None
    model = target.model if plan.head.is_own else stack.enter_context(LlamaModel(plan.draft, abort=abort))
    head = stack.enter_context(open_head(model, plan.head, target.session, plan.draft_context, abort))
    return OpenHead(model, head, plan.draft_facts, plan.draft_context)


def _open_store(path: Path | None, model: LlamaModel, say: Say, stack: ExitStack) -> NgramStore | None:
    if path is None:
        return None
    file = StoreFile(path, fingerprint(model), say, n_vocab=model.n_vocab)
    store = file.load()
    stack.callback(file.save, store)
    return store


def why_held_back(drafting: Drafting, target: OpenModel, draft: OpenModel | OpenHead | None, say: Say) -> str | None:
    """Why nothing can be drafted with these memories, None if something can; notes tell how recurrent ones go back."""
    if drafting.k == 0:
        return None
    for which, opened in (("target", target), ("draft", draft)):
        if opened is not None and not opened.session.can_rewind:
            return f"the {which} cannot undo tokens (a recurrent or hybrid model)"
    if drafting.several or drafting.drafter == NoDrafter.name:  # several are measured anyhow
        return None
    if isinstance(draft, OpenModel) and draft.session.rewind.name == "checkpoints":
        say("The draft has recurrent layers: rejected tokens are undone with checkpoints of their state.")
    return _costs_too_much(drafting, target, say)


def _costs_too_much(drafting: Drafting, target: OpenModel, say: Say) -> str | None:
    """Measured where a rejection costs a target something, that is, where it only goes back to checkpoints."""
    session = target.session
    if session.rewind.name == "snapshots":
        say("The target has recurrent layers: rejected tokens are undone with snapshots of their state.")
    if session.rewind.name != "checkpoints":
        return None
    cost = rewind_cost(session, drafting.k, time.perf_counter)
    if cost is not None and cost.speedup(CERTAIN) < 1:
        return f"undoing tokens costs this target more than drafts can save: {cost}"
    say(
        "The target has recurrent layers: a rejection restores a checkpoint of their state and evaluates the "
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
        return NoDrafter("lookahead does not work with recurrent and hybrid models")
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
        predicted=pair.predicted,
        crossing=pair.crossing,
    )
    return make_drafter(name, parts)


def own_name(name: str, draft: OpenModel | OpenHead | None) -> str:
    """A trained head in place of a draft model has a name of its own."""
    if not isinstance(draft, OpenHead):
        return name
    return "+".join(draft.session.name if source == ModelDrafter.name else source for source in sources(name))
