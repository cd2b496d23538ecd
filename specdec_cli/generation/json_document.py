"""The JSON document of `run --json`."""

import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from specdec_cli import __version__
from specdec_cli.decode.types import TokenLogprob
from specdec_cli.generation.pair import OpenHead, OpenModel, Pair
from specdec_cli.generation.recording import Comparison
from specdec_cli.generation.trace import stats_document
from specdec_cli.generation.writer import Written
from specdec_cli.llama.versions import versions as llama_versions


def run_document(
    pair: Pair, written: Written, settings: Mapping[str, Any], comparison: Comparison | None = None
) -> dict[str, Any]:
    """What `run --json` prints. `origins` has one entry per token id; times are in seconds, sizes in bytes.

    `grammar_complete` says whether the text may end there by its grammar: null without one, or after a stop string.
    """
    answer, reply = written.answer, written.reply
    return {
        "text": reply.text,
        "token_ids": reply.tokens,
        "origins": reply.origins,
        "logprobs": [_logprob(pair, one) for one in answer.logprobs] or None,
        "finish_reason": answer.finish,
        "grammar_complete": answer.is_complete,
        "prompt_tokens": written.prompt_tokens,
        "notes": answer.notes,
        "settings": settings,
        "models": {
            "target": _model(pair.target),
            "draft": _model(pair.draft) if pair.draft is not None else None,
            "drafter": pair.decoding.drafter.name,
            "tokenizers": pair.tokenizers,
        },
        "strict": _strict(pair),
        "versions": versions(),
        "stats": stats_document(answer.stats),
        "compare": comparison.document() if comparison is not None else None,
    }


def _logprob(pair: Pair, one: TokenLogprob) -> dict[str, Any]:
    return {
        **_token(pair, one.token, one.logprob),
        "likeliest": [_token(pair, token, logprob) for token, logprob in one.likeliest],
    }


def _token(pair: Pair, token: int, logprob: float) -> dict[str, Any]:
    return {
        "id": token,
        "text": pair.target.model.token_bytes(token).decode("utf-8", "replace"),
        "logprob": logprob if math.isfinite(logprob) else None,
    }


def _strict(pair: Pair) -> dict[str, Any] | None:
    strict = pair.decoding.strict
    if strict is None:
        return None
    return {"longest_draft": strict.longest, "width_noise": strict.noise, "settled": strict.n_settled}


def _model(opened: OpenModel | OpenHead) -> dict[str, Any]:
    on_gpu, layers = opened.model.layers_on_gpu
    return {
        "path": str(opened.model.path),
        "parameters": opened.facts.n_params,
        "weights_bytes": opened.facts.weights_bytes,
        "cache_bytes": opened.session.cache_bytes,
        "layers": layers,
        "layers_on_gpu": on_gpu,
        "n_ctx": opened.session.n_ctx,
        "threads": opened.context.threads,
    }


def versions() -> dict[str, str]:
    """Of everything that can change a result or a speed."""
    return {
        "specdec": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        **llama_versions(),
    }


def plain(value: Any) -> Any:
    """Settings as JSON can hold them: paths as text, tuples as lists."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value
