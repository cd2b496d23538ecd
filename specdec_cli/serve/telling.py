"""From what the worker writes to documents: whole, or in parts for a stream."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from specdec_cli.decode.types import TokenLogprob
from specdec_cli.serve import shapes
from specdec_cli.serve.protocol import ChatRequest, CompletionRequest
from specdec_cli.serve.shapes import Ended, Envelope, Pieces
from specdec_cli.serve.worker import AnswerEnded, Event, Scored, Wrote

Document = Mapping[str, Any]


class Telling(Protocol):
    """Takes in the events of a job."""

    ended: list[Ended]

    def take(self, event: Event) -> Iterator[Document]:
        """The parts of a stream that follow from an event."""
        ...

    def last(self) -> Iterator[Document]:
        """The parts that a stream ends with."""
        ...

    def whole(self) -> Document:
        """The answer to a request that wants no stream, when the job has ended."""
        ...


@dataclass
class _Written:
    """One answer so far. `sent` characters of `text` have been told."""

    text: str = ""
    sent: int = 0
    has_begun: bool = False
    logprobs: list[TokenLogprob] = field(default_factory=list)
    ended: Ended | None = None


class _Common:
    """What both kinds of completions share."""

    def __init__(self, envelope: Envelope, n: int, include_usage: bool) -> None:
        self.ended: list[Ended] = []
        self._envelope = envelope
        self._n = n
        self._include_usage = include_usage

    def _counts(self) -> dict[str, Any]:
        return {"usage": shapes.usage(self.ended, self._n), "timings": shapes.timings(self.ended)}

    def _is_last(self, n_answers: int) -> dict[str, Any]:
        """The last answer's last part tells the times."""
        return {"timings": shapes.timings(self.ended)} if len(self.ended) == n_answers else {}


class ChatTelling(_Common):
    """Chat completions. `new_id` makes the ids of tool calls."""

    def __init__(
        self,
        envelope: Envelope,
        request: ChatRequest,
        pieces: Pieces,
        end_tokens: frozenset[int],
        new_id: Callable[[], str],
    ) -> None:
        super().__init__(envelope, request.wanted.n, request.wanted.include_usage)
        self._tools = request.tools
        self._with_logprobs = request.wanted.n_logprobs is not None
        self._pieces = pieces
        self._end_tokens = end_tokens
        self._new_id = new_id
        self._answers = [_Written() for _ in range(request.wanted.n)]

    def take(self, event: Event) -> Iterator[Document]:
        if isinstance(event, Wrote):
            yield from self._wrote(event)
        elif isinstance(event, AnswerEnded):
            yield from self._answer_ended(event)

    def _wrote(self, event: Wrote) -> Iterator[Document]:
        answer = self._answers[event.answer]
        answer.text += "".join(one.text for one in event.tokens)
        found = [one.logprob for one in event.tokens if one.logprob and one.token not in self._end_tokens]
        answer.logprobs += found
        if not answer.has_begun:
            answer.has_begun = True
            yield self._part(event.answer, {"role": "assistant", "content": ""})
        until = max(self._tools.safe(answer.text), answer.sent)
        new, answer.sent = answer.text[answer.sent : until], until
        if new or found:
            yield self._part(event.answer, {"content": new}, found if self._with_logprobs else None)

    def _answer_ended(self, event: AnswerEnded) -> Iterator[Document]:
        answer = self._answers[event.answer]
        answer.text += event.ended.rest
        answer.ended = event.ended
        self.ended.append(event.ended)
        content, calls = self._tools.split(answer.text)
        if len(content) > answer.sent:
            yield self._part(event.answer, {"content": content[answer.sent :]})
        if calls:
            ids = [self._new_id() for _ in calls]
            yield self._part(event.answer, {"tool_calls": shapes.tool_calls(calls, ids, indexed=True)})
        choice = self._choice(event.answer, {}, shapes.finish_reason(event.ended.finish, calls))
        yield self._envelope.chat_chunk([choice], **self._is_last(len(self._answers)))

    def _part(self, index: int, delta: Mapping[str, Any], logprobs: Sequence[TokenLogprob] | None = None) -> Document:
        return self._envelope.chat_chunk([self._choice(index, delta, None, logprobs)])

    def _choice(
        self,
        index: int,
        delta: Mapping[str, Any],
        finish: str | None,
        logprobs: Sequence[TokenLogprob] | None = None,
    ) -> dict[str, Any]:
        told = shapes.chat_logprobs(logprobs, self._pieces) if logprobs is not None else None
        return {"index": index, "delta": dict(delta), "logprobs": told, "finish_reason": finish}

    def last(self) -> Iterator[Document]:
        if self._include_usage:
            yield self._envelope.chat_chunk([], **self._counts())

    def whole(self) -> Document:
        choices = []
        for index, answer in enumerate(self._answers):
            content, calls = self._tools.split(answer.text)
            ids = [self._new_id() for _ in calls]
            logprobs = shapes.chat_logprobs(answer.logprobs, self._pieces) if self._with_logprobs else None
            finish = shapes.finish_reason(answer.ended.finish if answer.ended else "length", calls)
            message = shapes.message(content, calls, ids)
            choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish})
        return self._envelope.chat(choices, **self._counts())


class CompletionTelling(_Common):
    """Completions of `prompts`, the texts of the request's prompts."""

    def __init__(
        self,
        envelope: Envelope,
        request: CompletionRequest,
        prompts: Sequence[str],
        pieces: Pieces,
        end_tokens: frozenset[int],
    ) -> None:
        super().__init__(envelope, request.wanted.n, request.wanted.include_usage)
        self._pieces = pieces
        self._end_tokens = end_tokens
        self._with_logprobs = request.wanted.n_logprobs is not None
        self._texts = [prompt if request.echo else "" for prompt in prompts for _ in range(request.wanted.n)]
        self._logprobs: list[list[tuple[int, TokenLogprob | None]]] = [[] for _ in self._texts]
        self._offsets = [0 for _ in self._texts]
        self._finishes: list[str | None] = [None for _ in self._texts]
        self._has_begun = [False for _ in self._texts]
        self._echo = request.echo

    def take(self, event: Event) -> Iterator[Document]:
        if isinstance(event, Scored):
            self._logprobs[event.answer] += event.tokens
            yield from self._echoed(event.answer, event.tokens)
        elif isinstance(event, Wrote):
            yield from self._echoed(event.answer, ())
            text = "".join(one.text for one in event.tokens)
            new = [(one.token, one.logprob) for one in event.tokens if one.token not in self._end_tokens]
            found = new if self._with_logprobs else []
            self._logprobs[event.answer] += found
            self._texts[event.answer] += text
            if text or found:
                yield self._part(event.answer, text, found)
        elif isinstance(event, AnswerEnded):
            yield from self._echoed(event.answer, ())
            self.ended.append(event.ended)
            self._texts[event.answer] += event.ended.rest
            self._finishes[event.answer] = shapes.finish_reason(event.ended.finish)
            yield self._part(event.answer, event.ended.rest, [], **self._is_last(len(self._texts)))

    def _echoed(self, index: int, tokens: Sequence[tuple[int, TokenLogprob | None]]) -> Iterator[Document]:
        """The prompt, once."""
        if self._echo and not self._has_begun[index]:
            self._has_begun[index] = True
            yield self._part(index, self._texts[index], tokens)

    def _part(self, index: int, text: str, found: Sequence[tuple[int, TokenLogprob | None]], **more: Any) -> Document:
        told = None
        if self._with_logprobs:
            told = shapes.completion_logprobs(found, self._pieces, self._offsets[index])
            self._offsets[index] += sum(map(len, told["tokens"]))
        choice = {"index": index, "text": text, "logprobs": told, "finish_reason": self._finishes[index]}
        return self._envelope.completion([choice], **more)

    def last(self) -> Iterator[Document]:
        if self._include_usage:
            yield self._envelope.completion([], **self._counts())

    def whole(self) -> Document:
        choices = [
            {
                "index": index,
                "text": text,
                "logprobs": shapes.completion_logprobs(self._logprobs[index], self._pieces, 0)
                if self._with_logprobs
                else None,
                "finish_reason": self._finishes[index],
            }
            for index, text in enumerate(self._texts)
        ]
        return self._envelope.completion(choices, **self._counts())
