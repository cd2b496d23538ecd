"""What the server answers, in OpenAI's shapes with llama-server's additions. Pure functions of plain values."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.types import FinishReason, TokenLogprob
from specdec_cli.drafters.ngram.drafter import PREDICTION
from specdec_cli.serve.tools import Call

_NEVER = -9999.0
"""The log-probability of what cannot come: JSON has no minus infinity, and OpenAI writes this number."""

Pieces = Callable[[int], bytes]
"""The bytes of a token."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One answer that has ended. `prompt_seconds` were spent until its first token."""

    finish: FinishReason
    prompt_tokens: int
    cached_tokens: int
    seed: int
    stats: RunStats
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all parts of an answer to one request have in common. `created` is in seconds since 1970."""

    id: str
    created: int
    model: str

    def chat(self, choices: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        return self._of("chat.completion", choices, more)

    def chat_chunk(self, choices: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        return self._of("chat.completion.chunk", choices, more)

    def completion(self, choices: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        return self._of("text_completion", choices, more)

    def _of(self, kind: str, choices: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
            "choices": list(choices),
            **more,
        }


def message(text: str, calls: Sequence[Call], ids: Sequence[str]) -> dict[str, Any]:
    """The message of a chat choice; its content is null where there is nothing but calls."""
    found: dict[str, Any] = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
    return {**found, "tool_calls": tool_calls(calls, ids)} if calls else found


def tool_calls(calls: Sequence[Call], ids: Sequence[str], *, indexed: bool = False) -> list[dict[str, Any]]:
    """Calls with their ids; parts of a stream have indices as well."""
    return [
        {
            **({"index": i} if indexed else {}),
            "id": ids[i],
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for i, call in enumerate(calls)
    ]


def finish_reason(finish: FinishReason, calls: Sequence[Call] = ()) -> str:
    """OpenAI's words: the end of the context is a length, too."""
    if calls and finish == "stop":
        return "tool_calls"
    return "stop" if finish == "stop" else "length"


def usage(answers: Sequence[Ended], n: int) -> dict[str, Any]:
    """Counts of a request: the prompt of `n` answers counts once."""
    prompt = sum(one.prompt_tokens for one in answers[::n])
    written = sum(one.stats.tokens for one in answers)
    predicted = sum(one.stats.drafted_by_source.get(PREDICTION, 0) for one in answers)
    accepted = sum(one.stats.accepted_by_source.get(PREDICTION, 0) for one in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": answers[0].cached_tokens if answers else 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": predicted - accepted,
        },
    }


def timings(answers: Sequence[Ended]) -> dict[str, Any]:
    """llama-server's `timings`: times in milliseconds, the prompt's up to the first token."""
    cached = answers[0].cached_tokens
    n_prompt = answers[0].prompt_tokens - cached
    prompt_ms = 1e3 * sum(one.stats.ttft_seconds or 0.0 for one in answers)
    n_written = sum(one.stats.tokens for one in answers)
    written_ms = 1e3 * sum(one.stats.decode_seconds for one in answers)
    n_after_first = sum(one.stats.tokens - one.stats.first_round_tokens for one in answers)
    found = {
        "cache_n": cached,
        "prompt_n": n_prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(n_prompt, 1),
        "prompt_per_second": 1e3 * n_prompt / prompt_ms if prompt_ms else 0.0,
        "predicted_n": n_written,
        "predicted_ms": written_ms,
        "predicted_per_token_ms": written_ms / max(n_after_first, 1),
        "predicted_per_second": 1e3 * n_after_first / written_ms if written_ms else 0.0,
    }
    drafted = sum(one.stats.drafted for one in answers)
    accepted = sum(one.stats.accepted for one in answers)
    return {**found, "draft_n": drafted, "draft_n_accepted": accepted} if drafted else found


def chat_logprobs(found: Sequence[TokenLogprob], pieces: Pieces) -> dict[str, Any]:
    """`logprobs` of a chat choice: an entry for each token."""
    return {
        "content": [
            {
                **_token(one.token, one.logprob, pieces),
                "top_logprobs": [_token(token, logprob, pieces) for token, logprob in one.likeliest],
            }
            for one in found
        ],
        "refusal": None,
    }


def completion_logprobs(
    found: Sequence[tuple[int, TokenLogprob | None]], pieces: Pieces, offset: int
) -> dict[str, Any]:
    """`logprobs` of a completion choice; the first token of an echoed prompt has none. `offset` in characters."""
    texts = [_text(pieces(token)) for token, _ in found]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [None if one is None else _finite(one.logprob) for _, one in found],
        "top_logprobs": [
            None if one is None else {_text(pieces(token)): _finite(logprob) for token, logprob in one.likeliest}
            for _, one in found
        ],
        "text_offset": offsets,
    }


def _token(token: int, logprob: float, pieces: Pieces) -> dict[str, Any]:
    data = pieces(token)
    return {"token": _text(data), "logprob": _finite(logprob), "bytes": list(data)}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _NEVER


def piece(token: int, data: bytes) -> dict[str, Any]:
    """A token as /tokenize tells it: text, or bytes where it is no text of its own."""
    try:
        return {"id": token, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(data)}


def event(document: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return (
        b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"
    )


DONE = b"data: [DONE]\n\n"
STILL_HERE = b": still here\n\n"
"""A comment, which clients skip: it keeps a connection open on which nothing else is to be said yet."""
