"""Answers with samplers, grammar and limits of their own, one after another, from one open pair."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Self

from specdec_cli.decode.coupled import Rule
from specdec_cli.decode.draft_length import FixedLength
from specdec_cli.decode.plain_pace import PlainChecks
from specdec_cli.decode.stats import Evaluation, RunStats
from specdec_cli.decode.text_stream import Reply
from specdec_cli.decode.tokens import shared_prefix
from specdec_cli.decode.types import Drafter, FinishReason, Grammar, Origin, Round, TokenLogprob
from specdec_cli.drafters import with_lookup
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.generation.encode import more_ids
from specdec_cli.generation.grammar import open_grammar
from specdec_cli.generation.pair import Decoding, OpenHead, OpenModel, Pair, decoding_for, own_name
from specdec_cli.generation.prompts import check_prompt
from specdec_cli.generation.rules import check_rule, make_strict, rule_with
from specdec_cli.lengths.auto import AutoLength
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.planning.plan import Say
from specdec_cli.planning.request import PairRequest, Sampling
from specdec_cli.settings import AUTO, USUAL_K
from specdec_cli.structured.compiler import checking
from specdec_cli.structured.source import GrammarSource

_MOST_GRAMMARS = 8
"""Grammars that are kept open for the next request with the same one."""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """What is asked of an open pair. `drafter` replaces the pair's own, with drafts of `k` tokens. `prediction` is a
    text that the answer will mostly repeat: where anything is drafted, drafts are copied from it as well."""

    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int | None = None
    stop_strings: tuple[str, ...] = ()
    n_logprobs: int | None = None
    drafter: Drafter | None = None
    k: int = USUAL_K
    prediction: str = ""


@dataclass(frozen=True, slots=True)
class TokenText:
    """One token of an answer, and the text that has become certain with it."""

    token: int
    text: str
    origin: Origin
    logprob: TokenLogprob | None = None


class AnswerStream:
    """One answer while it is written. Iterate over it: each pass of the target brings its tokens.

    `stats` are those of the answer so far, `finish` is None until its end, and `rest` is then the text that was held
    back as a possible beginning of a stop string.
    """

    def __init__(self, rounds: Iterator[Round], reply: Reply, prompt: Sequence[int], pair: Pair, rule: Rule) -> None:
        self.prompt_tokens = len(prompt)
        # The last token is evaluated in any case: what comes after it is asked for.
        self.cached_tokens = min(shared_prefix(list(pair.target.session.cached), list(prompt)), len(prompt) - 1)
        self.stats = RunStats()
        self.finish: FinishReason | None = None
        self.rest = ""
        self.reply = reply
        self.seed = rule.seed
        self._prompt, self._pair = prompt, pair
        self._rounds = rounds
        self._before = [_evaluation(opened) for opened in (pair.target, pair.draft)]

    def __iter__(self) -> Iterator[list[TokenText]]:
        """Raises what the engine raises; what was counted until then stays."""
        try:
            for emitted in self._rounds:
                tokens = self._taken(emitted)
                yield tokens
                if self.finish is not None:
                    break
        finally:
            self._close()

    def _taken(self, emitted: Round) -> list[TokenText]:
        found = []
        round_ = emitted
        for n, (token, origin) in enumerate(zip(emitted.tokens, emitted.origins, strict=True), 1):
            part, spans = self.reply.add(_alone(token, origin))
            logprob = emitted.logprobs[n - 1] if emitted.logprobs else None
            found.append(TokenText(token, "".join(span.text for span in spans), origin, logprob))
            if part.finish is not None:
                round_ = emitted.ending_after(n)
                break
        self.stats.add(round_)
        self.finish = round_.finish
        return found

    def _close(self) -> None:
        self.rest = "".join(span.text for span in self.reply.close())
        pair = self._pair
        after = [_evaluation(opened) for opened in (pair.target, pair.draft)]
        self.stats.target, self.stats.draft = (
            then.since(before) if then is not None and before is not None else None
            for then, before in zip(after, self._before, strict=True)
        )
        if self.finish is None and not self.stats.passes:  # nothing was to be written
            self.finish = "length"
        if pair.store is not None:
            pair.store.keep([*self._prompt, *self.reply.tokens])


def _alone(token: int, origin: Origin) -> Round:
    """A round of one token."""
    return Round((token,), 1, None) if origin == "draft" else Round((), 0, token)


def _evaluation(opened: OpenModel | OpenHead | None) -> Evaluation | None:
    return opened.session.evaluation if opened is not None else None


class Responder:
    """Answers requests with the pair that was opened for `request`, whose drafting holds for all of them.

    The sessions keep their caches from one answer to the next. Close it, or use it as a context manager.
    """

    def __init__(
        self, pair: Pair, request: PairRequest, *, clock: Callable[[], float], say: Say, abort: AbortFlag | None = None
    ) -> None:
        self.pair = pair
        self._request = request
        self._clock = clock
        self._say = say
        self._abort = abort
        self._grammars: OrderedDict[GrammarSource, tuple[Grammar, ExitStack]] = OrderedDict()

    def start(self, asked: AnswerRequest) -> AnswerStream:
        """The answer, of which nothing is computed before it is iterated over.

        Raises UsageError for what cannot be asked of these models, Interrupted.
        """
        pair = self.pair
        prompt = check_prompt(list(asked.prompt), pair.target.session.n_ctx)
        request = replace(self._request, sampling=asked.sampling)
        check_rule(request)
        source = asked.sampling.grammar
        grammar = self._grammar(source) if source is not None else None
        model, law = pair.target.model, pair.rule.law
        rule = rule_with(grammar, request, model, law.n_shared, pair.target.context.max_rows)
        decoding = self._decoding(request, rule, asked)
        self._tell_what_is_read(decoding, prompt)
        rounds = pair.rounds(
            prompt,
            decoding,
            max_tokens=asked.max_tokens,
            clock=self._clock,
            n_logprobs=asked.n_logprobs,
            checks=None if isinstance(decoding.drafter, NoDrafter) else PlainChecks(),
        )
        reply = Reply(model.token_bytes, end_tokens=pair.end_tokens, stop_strings=asked.stop_strings)
        return AnswerStream(rounds, reply, prompt, pair, rule)

    def _grammar(self, source: GrammarSource) -> Grammar:
        """Opened before, or compiled now. Raises UsageError, Interrupted."""
        if source not in self._grammars:
            with checking(source, self._abort) as check:
                check.finish()
            with ExitStack() as stack:
                grammar = open_grammar(source, self.pair.target.model, self._say, stack)
                self._grammars[source] = grammar, stack.pop_all()
            if len(self._grammars) > _MOST_GRAMMARS:
                _, (_, oldest) = self._grammars.popitem(last=False)
                oldest.close()
        self._grammars.move_to_end(source)
        return self._grammars[source][0]

    def _decoding(self, request: PairRequest, rule: Rule, asked: AnswerRequest) -> Decoding:
        pair, drafting = self.pair, request.drafting
        strict = make_strict(request, rule)
        if asked.drafter is not None and pair.held_back is None:
            most = pair.target.context.max_rows - 1
            return Decoding(asked.drafter, FixedLength(min(asked.k, most)), rule, strict)
        name = drafting.drafter
        if asked.prediction and name != NoDrafter.name:
            ids = more_ids(pair.target.model, asked.prediction, parse_special=False)
            pair, name = replace(pair, predicted=tuple(ids)), with_lookup(name)
        k = AUTO if drafting.auto else drafting.k
        return replace(decoding_for(pair, name, k, rule, drafting.p_min), strict=strict)

    def _tell_what_is_read(self, decoding: Decoding, prompt: Sequence[int]) -> None:
        """Lengths by cost count what the draft still has to read of the prompt."""
        draft = self.pair.draft
        if isinstance(draft, OpenModel) and isinstance(decoding.length, AutoLength):
            n = shared_prefix(list(draft.session.cached), list(prompt))
            decoding.length.has_read(own_name(ModelDrafter.name, draft), n)

    def close(self) -> None:
        """Free the grammars; calling it again does nothing."""
        while self._grammars:
            _, (_, stack) = self._grammars.popitem()
            stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
