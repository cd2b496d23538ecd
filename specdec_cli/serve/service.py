"""What the server knows of its pair, and how the body of a request becomes a job. No HTTP."""

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.generation.encode import text_ids
from specdec_cli.generation.messages import ChatFormat
from specdec_cli.generation.pair import Pair
from specdec_cli.generation.responder import AnswerRequest
from specdec_cli.serve import shapes
from specdec_cli.serve.api_error import ApiError, as_api_error, invalid, too_long
from specdec_cli.serve.fields import Fields
from specdec_cli.serve.protocol import (
    Defaults,
    Wanted,
    chat_request,
    completion_request,
    template_variables,
)
from specdec_cli.serve.shapes import Envelope
from specdec_cli.serve.telling import ChatTelling, CompletionTelling, Telling
from specdec_cli.serve.tools import read_tools

_MOST_NESTED = "The body is nested too deeply."
_CERTAINLY_SHORT = 1 << 16
"""Bytes of text that are tokenized without asking whether they can fit."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be answered: what is asked of the pair, and who tells of it."""

    asked: Sequence[AnswerRequest]
    telling: Telling
    stream: bool
    score_prompts: int | None = None


class Service:
    """Reads requests for one open pair. Its methods may be called from several threads.

    `alias` is the model's name for clients; `system` is what chats without a system message begin with.
    """

    def __init__(
        self,
        pair: Pair,
        defaults: Defaults,
        *,
        alias: str,
        system: str | None = None,
        variables: Mapping[str, Any] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.alias = alias
        self._pair = pair
        self._model = pair.target.model
        self._defaults = defaults
        self._system = system
        self._now = now
        self._started = int(now())
        has_template = self._model.chat_template is not None
        self._format = ChatFormat(self._model, variables=variables) if has_template else None

    @property
    def n_ctx(self) -> int:
        return self._pair.target.session.n_ctx

    def chat(self, body: bytes) -> Prepared:
        """A request for chat completions. Raises ApiError."""
        document = parsed(body)
        with _Translated():
            request = chat_request(document, self._defaults)
            self._check_length(request.messages)
            ids = self._chat_format.ids(
                self._with_system(request.messages), tools=request.tools.told, variables=request.variables
            )
        asked = self._asked(request.wanted, [ids])
        telling = ChatTelling(
            self._envelope("chatcmpl"), request, self._model.marked_bytes, self._pair.end_tokens, _call_id
        )
        return Prepared(asked, telling, request.wanted.stream)

    def completion(self, body: bytes) -> Prepared:
        """A request for completions. Raises ApiError."""
        document = parsed(body)
        with _Translated():
            request = completion_request(document, self._defaults, self._model.n_vocab)
            self._check_length(request.prompts)
            ids = [text_ids(self._model, one) if isinstance(one, str) else list(one) for one in request.prompts]
        texts = [one if isinstance(one, str) else self._text(one) for one in request.prompts]
        asked = self._asked(request.wanted, ids)
        telling = CompletionTelling(
            self._envelope("cmpl"), request, texts, self._model.marked_bytes, self._pair.end_tokens
        )
        score_prompts = request.wanted.n_logprobs if request.echo else None
        return Prepared(asked, telling, request.wanted.stream, score_prompts)

    def tokenize(self, body: bytes) -> dict[str, Any]:
        """llama-server's /tokenize. Raises ApiError."""
        fields = Fields(parsed(body))
        content = fields.text("content")
        with _Translated():
            ids = self._model.tokenize(
                content or "",
                add_special=fields.flag("add_special"),
                parse_special=fields.flag("parse_special", True),
            )
        if fields.flag("with_pieces"):
            return {"tokens": [shapes.piece(token, self._model.marked_bytes(token)) for token in ids]}
        return {"tokens": ids}

    def detokenize(self, body: bytes) -> dict[str, Any]:
        """llama-server's /detokenize. Raises ApiError."""
        tokens = Fields(parsed(body)).items("tokens") or []
        n_vocab = self._model.n_vocab
        if not all(type(one) is int and 0 <= one < n_vocab for one in tokens):
            raise invalid("tokens", f"a list of token ids from 0 to {n_vocab - 1:,}")
        return {"content": b"".join(map(self._model.marked_bytes, tokens)).decode("utf-8", "replace")}

    def apply_template(self, body: bytes) -> dict[str, Any]:
        """llama-server's /apply-template. Raises ApiError."""
        fields = Fields(parsed(body))
        with _Translated():
            messages = fields.items("messages") or []
            self._check_length(messages)
            prompt = self._chat_format.text(
                self._with_system(messages), tools=read_tools(fields).told, variables=template_variables(fields)
            )
        return {"prompt": prompt}

    def models(self) -> dict[str, Any]:
        """The one model, with llama-server's `meta`."""
        facts = self._pair.target.facts
        draft = self._pair.draft
        meta = {
            "n_vocab": self._model.n_vocab,
            "n_ctx": self.n_ctx,
            "n_ctx_train": facts.n_ctx_train,
            "n_embd": facts.n_embd,
            "n_params": facts.n_params,
            "size": facts.weights_bytes,
            "draft": draft.model.path.name if draft is not None else None,
            "drafter": self._pair.decoding.drafter.name,
        }
        model = {"id": self.alias, "object": "model", "created": self._started, "owned_by": "specdec", "meta": meta}
        return {"object": "list", "data": [model]}

    def props(self, build: str) -> dict[str, Any]:
        """llama-server's /props."""
        sampling, model = self._defaults.sampling, self._model
        params = {name: getattr(sampling.params, name) for name in sampling.params.__slots__}
        return {
            "default_generation_settings": {"n_ctx": self.n_ctx, "params": params},
            "total_slots": 1,
            "model_path": str(model.path),
            "model_alias": self.alias,
            "modalities": {"vision": False, "audio": False},
            "chat_template": model.chat_template or "",
            "bos_token": model.bos_text,
            "eos_token": model.eos_text,
            "build_info": build,
            "is_sleeping": False,
        }

    @property
    def _chat_format(self) -> ChatFormat:
        if self._format is None:
            raise ApiError(400, "This model has no chat template. Use /v1/completions.")
        return self._format

    def _with_system(self, messages: Sequence[Any]) -> Sequence[Any]:
        roles = {message.get("role") for message in messages if isinstance(message, dict)}
        if self._system is None or roles & {"system", "developer"}:
            return messages
        return [{"role": "system", "content": self._system}, *messages]

    def _asked(self, wanted: Wanted, prompts: Sequence[Sequence[int]]) -> list[AnswerRequest]:
        """Raises ApiError for a prompt that leaves no room, or that is empty."""
        for ids in prompts:
            if not ids:
                raise ApiError(400, "The prompt is empty.", param="prompt")
            if len(ids) >= self.n_ctx:
                raise too_long(len(ids), self.n_ctx)
        return [
            AnswerRequest(
                ids,
                replace(wanted.sampling, seed=(wanted.sampling.seed + i) % 2**64),
                max_tokens=wanted.max_tokens,
                stop_strings=wanted.stop_strings,
                n_logprobs=wanted.n_logprobs,
                prediction=wanted.prediction,
            )
            for ids in prompts
            for i in range(wanted.n)
        ]

    def _check_length(self, parts: Sequence[Any]) -> None:
        """A text so long that no tokenizer could make it fit is not worth tokenizing. Raises ApiError."""
        n_bytes = sum(_n_bytes(part) for part in parts)
        if n_bytes > _CERTAINLY_SHORT and n_bytes > self.n_ctx * self._longest_token:
            raise too_long(None, self.n_ctx)

    @cached_property
    def _longest_token(self) -> int:
        """In bytes."""
        return max(len(self._model.marked_bytes(token)) for token in range(self._model.n_vocab))

    def _text(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._model.token_bytes, ids)).decode("utf-8", "replace")

    def _envelope(self, kind: str) -> Envelope:
        return Envelope(f"{kind}-{secrets.token_hex(12)}", int(self._now()), self.alias)


def parsed(body: bytes) -> Any:
    """The JSON document of a body. Raises ApiError."""
    try:
        return json.loads(body, parse_constant=_no_number)
    except RecursionError:
        raise ApiError(400, _MOST_NESTED) from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise ApiError(400, f"The body is not valid JSON: {str(error)[:200]}.") from None


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


class _Translated:
    """What goes wrong below, as an error for the client."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, UsageError):
            raise as_api_error(error) from error
        if isinstance(error, UnicodeEncodeError):
            raise ApiError(400, "The request has half a surrogate pair in a text.") from error
        if isinstance(error, RecursionError):
            raise ApiError(400, _MOST_NESTED) from error


def _n_bytes(part: Any) -> int:
    """Of the texts and token ids in a prompt, a message, or a part of one; at least one for each character."""
    if isinstance(part, str):
        return len(part)
    if isinstance(part, dict):
        return _n_bytes(part.get("content")) + _n_bytes(part.get("text"))
    return sum(map(_n_bytes, part)) if isinstance(part, list | tuple) else 0


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
