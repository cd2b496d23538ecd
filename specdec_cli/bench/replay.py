"""What another draft length would have been worth in a run that was recorded: from its trace, without the models."""

import json
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.lengths.speedup_model import (
    CostCurve,
    conditional_acceptance,
    expected_tokens,
    position_counts,
    predicted_speedup,
)


@dataclass(frozen=True, slots=True)
class Recording:
    """What a trace holds of its runs: chances by draft position, and what passes and draft tokens took (seconds).

    `passes` are medians by width; `speed` is what the run had, in tokens per second after its first round.
    """

    chances: tuple[float, ...]
    passes: Mapping[int, float]
    draft: float
    speed: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One draft length: `is_measured` where the trace, or the curve, has passes of its width."""

    k: int
    tokens_per_pass: float
    speed: float
    speedup: float
    is_measured: bool


def read_trace(file: Path) -> Recording:
    """A trace that `run --jsonl` wrote. Raises UsageError for another file, and without drafts of a fixed length."""
    rounds = _rounds(file)
    if _was_chosen(file):
        raise UsageError(
            f"The lengths in {file} were chosen round by round (-k auto), where drafts were likely to be right.",
            hint="What other lengths are worth tells a run with a fixed one: specdec run ... -k 8 --jsonl FILE",
        )
    tried, kept = position_counts((len(one["drafted"]), one["n_accepted"]) for one in rounds)
    if not tried:
        raise UsageError(
            f"{file} has no round with a draft.", hint="Record a run with a draft: specdec run ... --jsonl FILE"
        )
    by_width: dict[int, list[float]] = {}
    for one in rounds:
        by_width.setdefault(len(one["drafted"]) + 1, []).append(one["verify_seconds"])
    return Recording(
        chances=tuple(conditional_acceptance(tried, kept)),
        passes={width: statistics.median(seconds) for width, seconds in sorted(by_width.items())},
        draft=sum(one["draft_seconds"] for one in rounds) / sum(len(one["drafted"]) for one in rounds),
        speed=sum(one["n_accepted"] + (one["own"] is not None) for one in rounds)
        / sum(one["seconds"] for one in rounds),
    )


def curve_of(document: Mapping[str, Any]) -> CostCurve:
    """The first cost curve of a document that `bench --json` wrote. Raises UsageError."""
    try:
        curve = document["cost_curve"][0]
        target = {int(width): float(seconds) for width, seconds in curve["target_seconds_by_width"].items()}
        return CostCurve(int(curve["context"]), target, float(curve["draft_seconds_per_token"]))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UsageError("That file has no cost curve.", hint="Give one that bench --json wrote.") from error


def what_if(recording: Recording, ks: Sequence[int], curve: CostCurve | None) -> list[WhatIf]:
    """The recorded chances with other lengths, none longer than what was drafted then.

    Without a curve the trace's own times are taken, and widths that it lacks lie on the line between those it has.
    Raises UsageError where the trace alone has passes of only one width.
    """
    longest = len(recording.chances)
    known = dict(recording.passes) if curve is None else dict(curve.target)
    if len(known) < 2:
        raise UsageError(
            f"The trace has passes of one width only ({next(iter(known))}), which tells nothing of others.",
            hint="Give --curve FILE, from specdec bench --json FILE.",
        )
    wanted = [k for k in ks if k <= longest]
    if not wanted:
        raise UsageError(f"The run drafted {longest} tokens at most.", hint=f"Ask for -k {longest} or less.")
    draft = recording.draft if curve is None else curve.draft
    full = CostCurve(0, {w: _on_the_line(known, w) for w in range(1, max(wanted) + 2)}, draft)
    plain = 1 / full.target[1]
    found = []
    for k in wanted:
        speedup = predicted_speedup(full, recording.chances, k)
        tokens = expected_tokens(recording.chances, k)
        found.append(WhatIf(k, tokens, speedup * plain, speedup, {1, k + 1} <= known.keys()))
    return found


def _on_the_line(known: Mapping[int, float], width: int) -> float:
    """Between the two nearest widths, or along them."""
    if width in known:
        return known[width]
    widths = sorted(known)
    right = min(max(bisect_left(widths, width), 1), len(widths) - 1)
    a, b = widths[right - 1], widths[right]
    return max(known[a] + (known[b] - known[a]) * (width - a) / (b - a), min(known.values()) / 2)


def _rounds(file: Path) -> list[dict[str, Any]]:
    """All rounds but the first of each answer, which reads the prompt."""
    try:
        lines = [
            json.loads(line) for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}.", hint="Give a file that run --jsonl wrote.") from error
    rounds, is_first = [], True
    for line in lines:
        kind = line.get("type") if isinstance(line, dict) else None
        if kind == "header":
            is_first = True
        elif kind == "round":
            rounds += [] if is_first else [line]
            is_first = False
    needed = {"drafted", "n_accepted", "own", "draft_seconds", "verify_seconds", "seconds"}
    if not rounds or not all(needed <= one.keys() for one in rounds):
        raise UsageError(f"{file} is no trace of a run.", hint="Give a file that run --jsonl wrote.")
    return rounds


def _was_chosen(file: Path) -> bool:
    headers = (json.loads(line) for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line)
    return any(line.get("type") == "header" and line.get("settings", {}).get("auto") is True for line in headers)
