"""Traces: one JSON line per round, written during the run, for replay."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from specdec_cli.decode.stats import Evaluation, RunStats
from specdec_cli.decode.text_stream import Span
from specdec_cli.decode.types import FinishReason, Round
from specdec_cli.ui.view import Header


def stats_document(stats: RunStats) -> dict[str, Any]:
    """The counts and rates of a run; acceptance is null when nothing was drafted. Times in seconds."""
    gain = stats.gain
    return {
        "tokens": stats.tokens,
        "passes": stats.passes,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "acceptance": stats.acceptance,
        "tokens_per_pass": stats.tokens_per_pass,
        "drafted_per_position": stats.drafted_per_position,
        "accepted_per_position": stats.accepted_per_position,
        "sources": {
            source: {"drafted": n, "accepted": stats.accepted_by_source[source]}
            for source, n in stats.drafted_by_source.items()
        },
        "decode_seconds": stats.decode_seconds,
        "tokens_per_second": stats.tokens_per_second,
        "plain_tokens_per_second_estimate": None if gain is None else 1 / gain.plain.seconds,
        "speedup_estimate": None if gain is None else gain.speedup,
        "speedup_estimate_spread": None if gain is None else gain.plain.spread,
        "ttft_seconds": stats.ttft_seconds,
        "draft_seconds": stats.draft_seconds,
        "verify_seconds": stats.verify_seconds,
        "other_seconds": stats.other_seconds,
        "speculation_off_reason": stats.off_reason,
        **_evaluation("target", stats.target),
        **_evaluation("draft", stats.draft),
    }


def _evaluation(which: str, counted: Evaluation | None) -> dict[str, Any]:
    if counted is None:
        return {}
    return {
        f"{which}_tokens_evaluated": counted.tokens,
        f"{which}_read_tokens": counted.read_tokens,
        f"{which}_read_seconds": counted.read_seconds,
    }


def _plain(spans: Sequence[Span]) -> list[list[str]]:
    return [[span.text, span.origin] for span in spans]


class Trace:
    """Writes JSON lines: a header, every round, an end. Without a file it writes nothing.

    A trace that cannot be written ends, with a word to `say`; the run goes on.
    """

    def __init__(self, file: TextIO | None, say: Callable[[str], None] = print) -> None:
        self._file = file
        self._say = say

    def start(self, header: Header, prompt_ids: Sequence[int], settings: Mapping[str, Any]) -> None:
        self._write({"type": "header", "header": asdict(header), "prompt_ids": list(prompt_ids), "settings": settings})

    def round(self, round_: Round, spans: Sequence[Span]) -> None:
        if self._file is None:
            return
        self._write({"type": "round", **asdict(round_), "spans": _plain(spans)})

    def end(self, stats: RunStats, finish: FinishReason, spans: Sequence[Span]) -> None:
        """`spans` is the text that became certain only with the end."""
        line = {"type": "end", "finish_reason": finish, "spans": _plain(spans), "stats": stats_document(stats)}
        self._write(line)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            self._file = None
            self._say(f"Cannot write the trace any further: {error.strerror}.")
