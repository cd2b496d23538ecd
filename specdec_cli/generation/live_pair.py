"""An open pair that changes between the answers of a chat. The target's weights stay where they are."""

from contextlib import ExitStack
from dataclasses import replace

from specdec_cli.decode.types import Grammar
from specdec_cli.drafters import sources
from specdec_cli.errors import UsageError
from specdec_cli.generation.grammar import open_grammar
from specdec_cli.generation.pair import (
    OpenHead,
    OpenModel,
    Pair,
    check_request,
    crossing_of,
    decoding_for,
    learned_of,
    open_draft,
    open_heads,
    why_held_back,
)
from specdec_cli.generation.rules import make_strict, rule_with
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.session import LlamaSession
from specdec_cli.planning.drafting import n_branches
from specdec_cli.planning.plan import Plan, Say, make_plan
from specdec_cli.planning.request import PairRequest
from specdec_cli.planning.trials import try_files
from specdec_cli.settings import AUTO, ContextSettings
from specdec_cli.structured.compiler import checking


class LivePair:
    """A pair and the request that it was opened with. `say` takes notes; `stack` closes what is opened here.

    `pair` and `request` are those of the next answer.
    """

    def __init__(self, pair: Pair, request: PairRequest, *, say: Say, abort: AbortFlag, stack: ExitStack) -> None:
        self.pair = pair
        self.request = request
        self._say = say
        self._abort = abort
        self._stack = stack.enter_context(ExitStack())
        self._has_mtp = "mtp" in sources(request.drafting.drafter)
        stack.callback(self._close, None)

    def change(self, request: PairRequest) -> None:
        """From the next answer on, decode as this request says.

        Only what has to be is opened anew: a draft of another file, the target's context where it has too little room.
        What both sessions have evaluated stays otherwise. Raises what `open_pair` raises; then all is as before.
        """
        check_request(request)
        before, pair, plan = self.pair, self.pair, None
        grammar, drafting = self._grammar(request), request.drafting
        n_shared = pair.rule.law.n_shared
        with ExitStack() as opened:
            if self._needs_plan(request):
                pair, plan = self._replanned(request, opened)
                n_shared = plan.n_shared
            rule = rule_with(grammar, request, pair.target.model, n_shared, pair.target.context.max_rows)
            if plan is not None:
                pair = replace(pair, crossing=crossing_of(plan, rule, pair.target, pair.draft))
            k = AUTO if drafting.auto else drafting.k
            decoding = decoding_for(pair, drafting.drafter, k, rule, drafting.p_min)
            source = request.sampling.grammar
            self.pair = replace(
                pair,
                decoding=replace(decoding, strict=make_strict(request, rule)),
                grammar=source.kind if source is not None else None,
            )
            self.request = request
            self._stack.push(opened.pop_all())
        self._close(before)

    def _grammar(self, request: PairRequest) -> Grammar | None:
        """The one that is open, if it is to stay; else another one. Raises UsageError."""
        source = request.sampling.grammar
        if source == self.request.sampling.grammar:
            return self.pair.rule.law.grammar
        if source is None:
            return None
        with checking(source, self._abort) as check:
            check.finish()
        return open_grammar(source, self.pair.target.model, self._say, self._stack)

    def _needs_plan(self, request: PairRequest) -> bool:
        """Whether something may have to be opened, or measured."""
        now, then, context = self.request.drafting, request.drafting, self.pair.target.context
        return (
            (now.drafter, now.draft, now.head, now.strict) != (then.drafter, then.draft, then.head, then.strict)
            or then.k >= context.max_rows
            or n_branches(then) > context.branches
            or (then.auto and self.pair.learned is None)
            or (request.sampling.grammar is not None and self.request.sampling.grammar is None)
        )

    def _replanned(self, request: PairRequest, opened: ExitStack) -> tuple[Pair, Plan]:
        """The pair with what the request needs."""
        drafting = request.drafting
        if "mtp" in sources(drafting.drafter) and not self._has_mtp:
            raise UsageError(
                "The target was loaded without its MTP layers.", hint="Leave, and start again with --draft mtp."
            )
        try_files(request, self._abort)
        plan = make_plan(request, self._say)
        target = self._target(plan, opened)
        plan = replace(plan, target_context=target.context)
        draft: OpenModel | OpenHead | None = self._kept_draft(plan, target)
        is_kept = draft is not None and draft is self.pair.draft
        if draft is None:
            draft = open_draft(plan, target, self._abort, opened)
            if plan.tokenizers is not None:
                self._say(plan.tokenizers)
        pair = replace(
            self.pair,
            target=target,
            draft=draft,
            tokenizers=plan.tokenizers,
            heads=open_heads(drafting.head, target, plan.n_shared) if drafting.head is not None else None,
            held_back=why_held_back(drafting, target, draft, self._say),
            learned=self.pair.learned if is_kept and drafting.head == self.request.drafting.head else None,
        )
        return self._measured(pair, plan, request, opened), plan

    def _target(self, plan: Plan, opened: ExitStack) -> OpenModel:
        """In the context that it has, if that is wide enough. A head reads along with one context only."""
        now = self.pair.target
        has_head = plan.head is not None or isinstance(self.pair.draft, OpenHead)
        if not has_head and _has_room(now.context, plan.target_context):
            return now
        session = opened.enter_context(LlamaSession(now.model, plan.target_context, abort=self._abort))
        return replace(now, session=session, context=plan.target_context)

    def _kept_draft(self, plan: Plan, target: OpenModel) -> OpenModel | None:
        """The draft model that is open, if it is the one that is wanted."""
        now = self.pair.draft
        if not isinstance(now, OpenModel) or plan.draft is None or plan.head is not None:
            return None
        is_same = now.model.path == plan.draft.path and target.context.n_ctx == self.pair.target.context.n_ctx
        return now if is_same and _has_room(now.context, plan.draft_context) else None

    def _measured(self, pair: Pair, plan: Plan, request: PairRequest, opened: ExitStack) -> Pair:
        """With what is known of passes, where lengths are chosen by that."""
        if not request.drafting.auto or pair.held_back is not None or pair.learned is not None:
            return pair
        sessions = [one.session for one in (pair.target, pair.draft) if isinstance(one, OpenModel)]
        counts = [session.evaluation.tokens for session in sessions]
        pair = replace(pair, learned=opened.enter_context(learned_of(pair, plan, request.drafting.head)))
        for session, count in zip(sessions, counts, strict=True):
            if session.evaluation.tokens != count:  # what was read to measure is no prompt
                session.forget()
        return pair

    def _close(self, pair: Pair | None) -> None:
        """What that pair had and this one has not; without one all but the target's weights."""
        now = self.pair if pair is not None else None
        pair = pair or self.pair
        draft, target = pair.draft, pair.target
        if draft is not None and (now is None or draft is not now.draft):
            draft.session.close()
            if draft.model is not target.model:
                draft.model.close()
        if now is None or target.session is not now.target.session:
            target.session.close()


def _has_room(context: ContextSettings, wanted: ContextSettings) -> bool:
    """Whether a context that is open does for what is wanted."""
    same = replace(wanted, max_rows=context.max_rows, max_back=context.max_back, branches=context.branches)
    return same == context and (
        wanted.max_rows <= context.max_rows and wanted.n_back <= context.n_back and wanted.branches <= context.branches
    )
