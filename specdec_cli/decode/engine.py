"""The loop: propose, score once, verify, emit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from specdec_cli.decode.coupled import Rule
from specdec_cli.decode.draft_length import DraftLength
from specdec_cli.decode.logprobs import logprobs
from specdec_cli.decode.plain_pace import PlainChecks
from specdec_cli.decode.sampler_chain import Law, certain
from specdec_cli.decode.strict import Strict
from specdec_cli.decode.tokens import Tokens
from specdec_cli.decode.types import (
    FORCED,
    AheadDrafter,
    BranchingTarget,
    Draft,
    Drafter,
    FinishReason,
    HiddenDrafter,
    HiddenTarget,
    Logits,
    Round,
    Target,
    to_the_end,
)
from specdec_cli.errors import NothingAllowed


def generate(
    target: Target,
    drafter: Drafter,
    length: DraftLength,
    rule: Rule,
    prompt: Sequence[int],
    *,
    max_tokens: int | None,
    ends: Callable[[int], bool],
    clock: Callable[[], float],
    n_logprobs: int | None = None,
    strict: Strict | None = None,
    checks: PlainChecks | None = None,
) -> Iterator[Round]:
    """Yield one Round per target pass until an end token, the limit or the end of the context.

    The last token is always pending: emitted, not yet evaluated. `ends` says whether a token ends the
    text; whoever finds another end in it (a stop string) asks for no more rounds. The first round only
    reads the prompt and emits one token, so that the time to first token is that of plain decoding.
    `prompt` holds at least one token and fewer than target.n_ctx. With `n_logprobs` rounds tell
    log-probabilities of their tokens and of that many alternatives; `strict` (of the same rule) keeps
    drafts to widths without noise, or settles near ties; `checks` says which rounds go without a draft, unknown to
    `length`.
    """
    if isinstance(drafter, HiddenDrafter) and drafter.wants_hidden and isinstance(target, HiddenTarget):
        target = _WithHidden(target)
    goes_ahead = isinstance(drafter, AheadDrafter) and drafter.needs_only_text
    is_unweighed = length.more is to_the_end and strict is None  # else each token of a pass has its price
    tokens = Tokens(prompt)
    rule.law.begin(tokens)
    length.begin(len(tokens))
    limit = target.n_ctx if max_tokens is None else min(target.n_ctx, len(tokens) + max_tokens)
    full: FinishReason = "context" if max_tokens is None or limit < len(tokens) + max_tokens else "length"
    off_reason: str | None = None
    is_first = True
    began = clock()
    while len(tokens) < limit:
        # The target adds a token of its own, so a draft may fill all but one of the places left.
        room = 0 if is_first else limit - len(tokens) - 1
        forced = rule.law.forced(tokens, room)
        is_check = checks is not None and not (is_first or forced) and checks.due()
        k = len(forced)
        if not (forced or is_first or is_check):
            k = length.next(len(tokens), room)
        elif forced and is_unweighed and goes_ahead and not ends(forced[-1]):
            k += length.next(len(tokens) + k, min(room, rule.law.most_forced) - k)
        if strict is not None and k > 0:
            k = strict.longest_draft(target, tokens, k)
        asked = clock()
        draft = _behind(forced[:k], _proposed(drafter, length, rule, tokens.then(forced), k - len(forced)))
        if draft.tokens and is_unweighed:
            draft = _with_forced(draft, rule.law, tokens, room)
            k = max(k, len(draft.tokens))
        drafted = clock()
        rows = rows_for(target, tokens.then(draft.tokens), draft)
        if strict is not None:
            rows = strict.settle(target, rows, draft, tokens)
        scored = clock()
        n_accepted, own = rule.verify(rows, draft, tokens)
        new, is_end = _up_to_end((*draft.tokens[:n_accepted], own), ends)
        tokens = tokens.grown(new)
        found = () if n_logprobs is None else logprobs(rows, new, n_logprobs, rule.law.n_shared)
        ended = clock()
        round_ = Round(
            drafted=draft.tokens,
            n_accepted=n_accepted,
            own=own,
            k=k,
            draft_seconds=drafted - asked if k > 0 else 0.0,
            verify_seconds=scored - drafted,
            seconds=ended - began,
            finish=full if len(tokens) >= limit else None,
            logprobs=found,
            source=draft.source,
            n_forced=draft.n_forced,
            n_forced_first=draft.n_forced_first,
            confidences=() if forced else tuple(length.confidences),
            n_beside=len(draft.beside.tokens) if draft.beside is not None else 0,
        )
        if is_end:
            round_ = round_.ending_after(len(new))
        if draft.source != FORCED and not is_check:
            length.observe(round_)
        if checks is not None and not is_first:
            checks.saw(round_)
        # A round without room for a draft asks nobody, but what is off stays off.
        off_reason = draft.off_reason or length.off_reason or off_reason
        if off_reason is not None:
            round_ = replace(round_, k=min(k, len(forced)), off_reason=off_reason)
        is_first = False
        began = ended
        yield round_
        if round_.finish:
            return


class _WithHidden:
    """A target whose every pass gives hidden states."""

    def __init__(self, target: HiddenTarget) -> None:
        self._target = target
        self.n_ctx = target.n_ctx
        self.n_vocab = target.n_vocab

    def score(self, tokens: Sequence[int], n_last: int) -> Logits:
        return self._target.score(tokens, n_last, hidden=True)


def rows_for(target: Target, text: Sequence[int], draft: Draft) -> Logits:
    """Rows for the draft at the end of `text`, [len(draft.tokens) + 1, n_vocab]; what it has beside is evaluated by a
    target that can."""
    n_last = len(draft.tokens) + 1
    if draft.beside is not None and isinstance(target, BranchingTarget):
        return target.score_beside(text, n_last, draft.beside)
    return target.score(text, n_last)


def _usable(draft: Draft, k: int, n_shared: int) -> Draft:
    """At most `k` tokens, up to the first id that not both models know: llama.cpp must see neither."""
    tokens = draft.tokens[:k]
    unknown = (i for i, token in enumerate(tokens) if not 0 <= token < n_shared)
    return _beginning(draft, next(unknown, len(tokens)))


def _proposed(drafter: Drafter, length: DraftLength, rule: Rule, tokens: Tokens, k: int) -> Draft:
    """What the drafter proposes, as far as it is worth verifying: at most `k` tokens."""
    if k <= 0:
        return Draft()
    draft = _usable(drafter.propose(tokens, k, length.more), k, rule.law.n_shared)
    return _beginning(draft, length.keep(draft)) if draft.tokens and rule.keeps_text else draft


def _behind(forced: tuple[int, ...], draft: Draft) -> Draft:
    """The draft behind what the grammar forces ahead of it. Branches would grow from another place."""
    if not forced:
        return draft
    if not draft.tokens:
        return Draft(forced, off_reason=draft.off_reason, source=FORCED)
    probs = None if draft.probs is None else (*map(certain, forced), *draft.probs)
    return replace(draft, tokens=(*forced, *draft.tokens), probs=probs, n_forced_first=len(forced), beside=None)


def _with_forced(draft: Draft, law: Law, tokens: Tokens, room: int) -> Draft:
    """The draft, and behind it what the grammar forces if all of it is right."""
    try:
        more = law.forced(tokens.then(draft.tokens), room - len(draft.tokens), n_drafted=len(draft.tokens))
    except NothingAllowed:  # who copies does not look at the grammar, and the draft is not right as a whole
        return draft
    if not more:
        return draft
    probs = None if draft.probs is None else (*draft.probs, *map(certain, more))
    return replace(draft, tokens=(*draft.tokens, *more), probs=probs, n_forced=len(more))


def _beginning(draft: Draft, n: int) -> Draft:
    """The draft's first `n` tokens."""
    if n == len(draft.tokens):
        return draft
    return replace(draft, tokens=draft.tokens[:n], probs=None if draft.probs is None else draft.probs[:n])


def _up_to_end(tokens: tuple[int, ...], ends: Callable[[int], bool]) -> tuple[tuple[int, ...], bool]:
    """The tokens up to and with the first that ends the text, and whether there is one."""
    for i, token in enumerate(tokens, 1):
        if ends(token):
            return tokens[:i], True
    return tokens, False
