"""Answers a prompt, or chat turns that share both caches, with an open pair."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specdec_cli.advice import cut_notes
from specdec_cli.decode.plain_pace import PlainChecks
from specdec_cli.decode.text_stream import Reply
from specdec_cli.generation.answer import Answer, follow
from specdec_cli.generation.chat import Conversation
from specdec_cli.generation.pair import OpenHead, OpenModel, Pair
from specdec_cli.generation.prompts import check_prompt
from specdec_cli.generation.trace import Trace
from specdec_cli.structured.source import NAMES
from specdec_cli.ui.view import Header, ModelLine, View


@dataclass(frozen=True, slots=True)
class Limits:
    """When an answer ends, beside the model's own end tokens. None: no limit but the context."""

    max_tokens: int | None = None
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """One answer with its text."""

    answer: Answer
    reply: Reply
    prompt_tokens: int


class Writer:
    """Answers prompts. The sessions of `pair` keep their caches from one to the next."""

    def __init__(
        self,
        pair: Pair,
        limits: Limits,
        *,
        open_view: Callable[[Header], View],
        trace: Trace,
        settings: dict[str, Any],
        clock: Callable[[], float],
        n_logprobs: int | None = None,
    ) -> None:
        self._pair = pair
        self._limits = limits
        self._open_view = open_view
        self._trace = trace
        self._settings = settings
        self._clock = clock
        self._n_logprobs = n_logprobs
        self.prompt_tokens = 0
        """Of the last answer."""

    def write(self, prompt: Sequence[int]) -> Written:
        """Answer the whole prompt given as ids. Raises UsageError."""
        pair = self._pair
        prompt = check_prompt(list(prompt), pair.target.session.n_ctx)
        self.prompt_tokens = len(prompt)
        opened = (pair.target, pair.draft)
        before = [o.session.evaluation if o is not None else None for o in opened]

        def close(answer: Answer) -> list[str]:
            answer.stats.target, answer.stats.draft = (
                o.session.evaluation.since(b) if o is not None and b is not None else None
                for o, b in zip(opened, before, strict=True)
            )
            if pair.grammar is None or reply.stopped_by_string:
                return []
            answer.is_complete = pair.rule.law.may_end([*prompt, *reply.tokens], pair.end_tokens)
            return (
                cut_notes(answer.finish, self._limits.max_tokens, NAMES[pair.grammar]) if not answer.is_complete else []
            )

        reply = Reply(pair.target.model.token_bytes, end_tokens=pair.end_tokens, stop_strings=self._limits.stop_strings)
        header = describe(pair, len(prompt))
        self._trace.start(header, prompt, self._settings)
        rounds = pair.rounds(
            prompt,
            max_tokens=self._limits.max_tokens,
            clock=self._clock,
            n_logprobs=self._n_logprobs,
            checks=PlainChecks() if header.drafting else None,
        )
        with self._open_view(header) as view:
            answer = follow(rounds, reply, view, self._trace, pair.decoding.drafter.name, close)
        if pair.store is not None:
            pair.store.keep([*prompt, *reply.tokens])
        return Written(answer, reply, len(prompt))

    def reply_to(self, conversation: Conversation, text: str) -> Written:
        """One turn of a chat: the answer is taken into the conversation."""
        written = self.write(conversation.ask(text))
        ids = [t for t in written.reply.tokens if t not in self._pair.end_tokens]
        # A stop string is cut out of the text but not out of the ids: then the ids are made from the text.
        conversation.answered(None if written.reply.stopped_by_string else ids, written.reply.text)
        return written


def describe(pair: Pair, prompt_tokens: int) -> Header:
    """What a view shows of the pair."""
    return Header(
        target=_line(pair.target),
        draft=_line(pair.draft) if pair.draft is not None else None,
        drafter=pair.decoding.drafter.name,
        sampling=_sampling(pair),
        n_ctx=pair.target.session.n_ctx,
        prompt_tokens=prompt_tokens,
        seed=None if pair.rule.law.params.is_greedy else pair.rule.seed,
    )


def _sampling(pair: Pair) -> str:
    params = pair.rule.law.params
    words = [str(params)] if params.is_greedy else [str(params), f"seed {pair.rule.seed}"]
    words += [] if pair.rule.keeps_text else [f"--verify {pair.rule.name}"]
    return ", ".join(words)


def _line(opened: OpenModel | OpenHead) -> ModelLine:
    return ModelLine(
        name=opened.model.path.name,
        weights_bytes=opened.facts.weights_bytes,
        cache_bytes=opened.session.cache_bytes,
        layers_on_gpu=opened.model.layers_on_gpu,
    )
