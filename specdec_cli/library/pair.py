"""An open pair as a program sees it."""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, Unpack

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import Drafter, FinishReason, Target, TokenLogprob
from specdec_cli.errors import UsageError
from specdec_cli.generation.encode import text_ids
from specdec_cli.generation.messages import ChatFormat
from specdec_cli.generation.responder import AnswerRequest, AnswerStream, Responder
from specdec_cli.planning.request import Sampling
from specdec_cli.structured.source import GrammarSource, Kind

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""A text that is continued as it is, token ids, or messages of a chat."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One token of an answer, and the text that has become certain with it; str(chunk) is the text.

    `drafted` says that a drafter proposed the token and the target chose it too. The last chunk has no token: it
    brings the rest of the text, the reason why the answer ends, and the statistics.
    """

    text: str
    token: int | None = None
    drafted: bool = False
    logprob: TokenLogprob | None = None
    finish_reason: FinishReason | None = None
    stats: RunStats | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `drafted` has one entry for each of `tokens`; `seed` repeats the text."""

    text: str
    tokens: list[int]
    drafted: list[bool]
    finish_reason: FinishReason
    seed: int
    prompt_tokens: int
    stats: RunStats
    logprobs: list[TokenLogprob] = field(default_factory=list)


class AnswerOptions(TypedDict, total=False):
    """How an answer is written. What is left out is as the preset has it, or else llama.cpp.

    `temperature` 0 is greedy; `params` has all samplers at once, before those given alone. The same `seed` gives the
    same text. The answer ends at an end token (unless `ignore_end`), before a text of `stop`, after `max_tokens`, or
    with the context. It keeps to `json_schema`, `regex`, `lark` or `grammar` (GBNF): one of them. `prediction` is a
    text that it will mostly repeat, such as the file to edit: drafts are copied from it. `logprobs` asks for the
    log-probability of each token and of that many likeliest ones; `logit_bias` is by token id.
    """

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    params: SamplingParams
    seed: int | None
    stop: str | Sequence[str]
    prediction: str
    ignore_end: bool
    json_schema: str | Mapping[str, Any]
    regex: str
    lark: str
    grammar: str
    logprobs: int
    logit_bias: Mapping[int, float]


class Pair:
    """A target and what drafts for it. One thread may use it at a time.

    Both caches are kept from answer to answer: a prompt that begins like the last one is read from where they differ.
    """

    def __init__(self, responder: Responder, sampling: Sampling, *, drafter: Drafter | None, k: int) -> None:
        self._responder = responder
        self._sampling = sampling
        self._drafter = drafter
        self._k = k
        self._model = responder.pair.target.model

    @property
    def path(self) -> Path:
        """The target's file."""
        return self._model.path

    @property
    def target(self) -> Target:
        """The target itself: logits after any list of tokens."""
        return self._responder.pair.target.session

    @property
    def n_ctx(self) -> int:
        """Tokens of prompt and answer together."""
        return self._responder.pair.target.session.n_ctx

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self._responder.pair.end_tokens

    def tokenize(self, text: str) -> list[int]:
        """Ids of a text from its beginning, with BOS where the model wants it; control tokens are read by name."""
        return text_ids(self._model, text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of ids, control tokens left out."""
        return b"".join(map(self._model.token_bytes, tokens)).decode("utf-8", "replace")

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Ids of a chat up to the next answer, by the model's own template, which is given `variables`."""
        return self._format.ids(messages, variables=variables)

    @cached_property
    def _format(self) -> ChatFormat:
        return ChatFormat(self._model)

    def stream(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> Iterator[Chunk]:
        """The answer, token by token: that of plain decoding with the same seed.

        A str is continued as it is; a list of messages goes through the model's chat template. Raises UsageError for
        what cannot be asked, DecodeFailed.
        """
        return _chunks(self._begin(prompt, options))

    def generate(self, prompt: Prompt, **options: Unpack[AnswerOptions]) -> Answer:
        """The whole answer. Raises what `stream` raises."""
        answer = self._begin(prompt, options)
        found = [one for tokens in answer for one in tokens]
        return Answer(
            answer.reply.text,
            [one.token for one in found],
            [one.origin == "draft" for one in found],
            answer.finish or "length",
            answer.seed,
            answer.prompt_tokens,
            answer.stats,
            [one.logprob for one in found if one.logprob is not None],
        )

    def _begin(self, prompt: Prompt, options: AnswerOptions) -> AnswerStream:
        seed, stop = options.get("seed"), options.get("stop", ())
        sampling = replace(
            self._sampling,
            params=_samplers(options.get("params", self._sampling.params), options),
            seed=secrets.randbits(32) if seed is None else seed,
            bias=tuple(options.get("logit_bias", {}).items()),
            ignore_end=options.get("ignore_end", False),
            grammar=_grammar(options),
        )
        asked = AnswerRequest(
            self._ids(prompt),
            sampling,
            max_tokens=options.get("max_tokens"),
            stop_strings=(stop,) if isinstance(stop, str) else tuple(stop),
            n_logprobs=options.get("logprobs"),
            drafter=self._drafter,
            k=self._k,
            prediction=options.get("prediction", ""),
        )
        return self._responder.start(asked)

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenize(prompt)
        ids = [one for one in prompt if isinstance(one, int)]
        if len(ids) == len(prompt):
            return ids
        return self.chat_ids([one for one in prompt if not isinstance(one, int)])


def _chunks(answer: AnswerStream) -> Iterator[Chunk]:
    for tokens in answer:
        for one in tokens:
            yield Chunk(one.text, one.token, one.origin == "draft", one.logprob)
    yield Chunk(answer.rest, finish_reason=answer.finish, stats=answer.stats)


def _samplers(base: SamplingParams, options: AnswerOptions) -> SamplingParams:
    """Raises UsageError."""
    return replace(
        base,
        temperature=options.get("temperature", base.temperature),
        top_k=options.get("top_k", base.top_k),
        top_p=options.get("top_p", base.top_p),
        min_p=options.get("min_p", base.min_p),
    )


def _grammar(options: AnswerOptions) -> GrammarSource | None:
    schema = options.get("json_schema")
    given: dict[Kind, str | None] = {
        "json-schema": schema if schema is None or isinstance(schema, str) else json.dumps(schema),
        "regex": options.get("regex"),
        "lark": options.get("lark"),
        "gbnf": options.get("grammar"),
    }
    found = [GrammarSource(kind, text) for kind, text in given.items() if text is not None]
    if len(found) > 1:
        raise UsageError(
            "Only one grammar can be used at a time.", hint="Give one of json_schema, regex, lark and grammar."
        )
    return found[0] if found else None
