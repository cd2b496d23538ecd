"""What another draft length would have been worth in a run that was recorded: from its trace, without the models."""

import statistics
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from specdec_cli.errors import UsageError
from specdec_cli.lengths.speedup_model import (
    LEAST_PASS_SECONDS,
    MOST_SECONDS,
    CostCurve,
    conditional_acceptance,
    expected_tokens,
    position_counts,
    predicted_speedup,
)
from specdec_cli.untrusted_files import parse_json, read_file, reason

_LARGEST_TRACE = 256 << 20
_LONGEST_LINE = 4 << 20
_LONGEST_DRAFT = 1024
_WANTED = "Give a file that run --jsonl wrote."


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
    rounds, was_chosen = _rounds(file)
    if was_chosen:
        raise UsageError(
            f"The lengths in {file} were chosen round by round (-k auto), where drafts were likely to be right.",
            hint="What other lengths are worth tells a run with a fixed one: specdec run ... -k 8 --jsonl FILE",
        )
    tried, kept = position_counts((one.n_drafted, one.n_accepted) for one in rounds)
    if not tried:
        raise UsageError(
            f"{file} has no round with a draft.", hint="Record a run with a draft: specdec run ... --jsonl FILE"
        )
    by_width: dict[int, list[float]] = {}
    for one in rounds:
        by_width.setdefault(one.n_drafted + 1, []).append(one.verify_seconds)
    return Recording(
        chances=tuple(conditional_acceptance(tried, kept)),
        passes={width: statistics.median(seconds) for width, seconds in sorted(by_width.items())},
        draft=sum(one.draft_seconds for one in rounds) / sum(one.n_drafted for one in rounds),
        speed=sum(one.n_accepted + one.n_own for one in rounds) / sum(one.seconds for one in rounds),
    )


def curve_of(document: Mapping[str, Any]) -> CostCurve:
    """The first cost curve of a document that `bench --json` wrote. Raises UsageError."""
    try:
        curve = document["cost_curve"][0]
        target = {int(width): seconds for width, seconds in curve["target_seconds_by_width"].items()}
        context, draft = int(curve["context"]), curve["draft_seconds_per_token"]
        is_right = all(_is_between(seconds, LEAST_PASS_SECONDS) for seconds in target.values()) and _is_between(
            draft, 0
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        is_right = False
    if not is_right or min(target, default=0) < 1:
        raise UsageError("That file has no cost curve.", hint="Give one that bench --json wrote.")
    return CostCurve(context, target, draft)


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
    wanted = [k for k in ks if 0 <= k <= longest]
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


class _Round(NamedTuple):
    """Of a round in a trace what is counted; `n_own` is 1 if the target added a token of its own."""

    n_drafted: int
    n_accepted: int
    n_own: int
    draft_seconds: float
    verify_seconds: float
    seconds: float


def _rounds(file: Path) -> tuple[list[_Round], bool]:
    """All rounds but the first of each answer, which reads the prompt; and whether lengths were chosen round by round.

    Raises UsageError.
    """
    rounds, is_first, was_chosen = list[_Round](), True, False
    for line in _lines(file):
        if line.get("type") == "header":
            is_first, settings = True, line.get("settings")
            was_chosen |= isinstance(settings, dict) and settings.get("auto") is True
        elif line.get("type") == "round":
            rounds += [] if is_first else [_round(line, file)]
            is_first = False
    if not rounds:
        raise _no_trace(file)
    return rounds, was_chosen


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines. Only "\\n" ends a line: texts may hold any other separator.

    Raises UsageError.
    """
    try:
        lines = read_file(file, _LARGEST_TRACE).split(b"\n")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {reason(error)}.", hint=_WANTED) from error
    for n, line in enumerate(lines, 1):
        try:
            value = parse_json(line, _LONGEST_LINE) if line.strip() else None
        except ValueError as error:
            raise UsageError(f"Line {n} of {file} cannot be read: {reason(error)}.", hint=_WANTED) from error
        if isinstance(value, dict):
            yield value


def _round(line: Mapping[str, Any], file: Path) -> _Round:
    """Raises UsageError for what no run can have written."""
    drafted, n_accepted, own = (line.get(name) for name in ("drafted", "n_accepted", "own"))
    draft_seconds, verify_seconds, seconds = (line.get(f"{name}seconds") for name in ("draft_", "verify_", ""))
    if not (
        isinstance(drafted, list)
        and type(n_accepted) is int
        and 0 <= n_accepted <= len(drafted)
        and (own is None or type(own) is int)
        and _is_between(draft_seconds, 0)
        and _is_between(verify_seconds, LEAST_PASS_SECONDS)
        and _is_between(seconds, LEAST_PASS_SECONDS)
    ):
        raise _no_trace(file)
    if len(drafted) > _LONGEST_DRAFT:
        raise UsageError(
            f"A draft in {file} has {len(drafted):,} tokens.",
            hint=f"Replay a run whose drafts have at most {_LONGEST_DRAFT:,}.",
        )
    return _Round(len(drafted), n_accepted, int(own is not None), draft_seconds, verify_seconds, seconds)


def _no_trace(file: Path) -> UsageError:
    return UsageError(f"{file} is no trace of a run.", hint=_WANTED)


def _is_between(value: Any, least: float) -> TypeGuard[float]:
    return type(value) in (int, float) and least <= value <= MOST_SECONDS
