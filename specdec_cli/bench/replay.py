"""Estimates the speed of other draft lengths from a recorded trace, without the models."""

import statistics
from bisect import bisect_left
from collections import Counter
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
    predicted_speedup,
)
from specdec_cli.untrusted_files import parse_json, read_file, reason

_LARGEST_TRACE = 256 << 20
_LONGEST_LINE = 4 << 20
_LONGEST_DRAFT = 1024
_PRIOR = 4.0
"""Outcomes that a confidence itself stands for, beside those seen with it."""
_WANTED = "Give a file that run --jsonl wrote."


@dataclass(frozen=True, slots=True)
class Recording:
    """What a trace holds of its runs: chances by draft position, and what passes and draft tokens took (seconds).

    `passes` are medians by width; `speed` is what the run had, in tokens per second after its first round. `estimated`
    is the share of draft tokens that were not verified, whose outcomes are estimated from their confidence; `undrafted`
    that of rounds without a draft.
    """

    chances: tuple[float, ...]
    passes: Mapping[int, float]
    draft: float
    speed: float
    estimated: float = 0.0
    undrafted: float = 0.0


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One draft length: `is_measured` where the trace, or the curve, has passes of its width."""

    k: int
    tokens_per_pass: float
    speed: float
    speedup: float
    is_measured: bool


def read_trace(file: Path) -> Recording:
    """A trace that `run --jsonl` wrote. Raises UsageError for another file, and for one without drafts.

    With -k auto, drafts are cut where they are likely to be wrong, so the tokens that were verified are better than
    those of a fixed length. A token that was drafted and cut counts as its confidence was worth elsewhere in the trace.
    """
    rounds, was_chosen = _rounds(file)
    if was_chosen and not any(one.confidences for one in rounds):
        raise UsageError(
            f"{file} was recorded with -k auto and has no draft confidences.",
            hint="Record the run again, or with a fixed length: specdec run ... -k 8 --jsonl FILE",
        )
    tried, kept = _counts(rounds)
    n_verified = sum(one.n_drafted for one in rounds)
    if not n_verified:
        raise UsageError(
            f"{file} has no round with draft tokens.", hint="Record a run with a draft: specdec run ... --jsonl FILE"
        )
    by_width: dict[int, list[float]] = {}
    for one in rounds:
        by_width.setdefault(one.n_drafted + 1, []).append(one.verify_seconds)
    return Recording(
        chances=tuple(conditional_acceptance(tried, kept)),
        passes={width: statistics.median(seconds) for width, seconds in sorted(by_width.items())},
        draft=sum(one.draft_seconds for one in rounds) / sum(one.n_drawn for one in rounds),
        speed=sum(one.n_accepted + one.n_own for one in rounds) / sum(one.seconds for one in rounds),
        estimated=1 - n_verified / sum(one.n_drawn for one in rounds),
        undrafted=sum(not one.n_drawn for one in rounds) / len(rounds),
    )


def _counts(rounds: "Sequence[_Round]") -> tuple[list[float], list[float]]:
    """Drafts that came as far as each position, and those that kept it; a token that was cut counts in part."""
    worth = _Calibration(rounds)
    longest = max((one.n_drawn for one in rounds), default=0)
    tried, kept = [0.0] * longest, [0.0] * longest
    for one in rounds:
        for i in range(min(one.n_accepted + 1, one.n_drafted)):
            tried[i] += 1
            kept[i] += i < one.n_accepted
        reached = float(one.n_accepted == one.n_drafted and one.n_own)
        for i in range(one.n_drafted, one.n_drawn):
            tried[i] += reached
            reached *= worth.of(one.source, one.confidences[i])
            kept[i] += reached
    return tried, kept


class _Calibration:
    """How often tokens of a source were accepted, by how sure it was: in tenths, each drawn towards its own middle."""

    def __init__(self, rounds: "Sequence[_Round]") -> None:
        self._tried, self._kept = Counter[tuple[str, int | None]](), Counter[tuple[str, int | None]]()
        for one in rounds:
            for i, confidence in enumerate(one.confidences[: min(one.n_accepted + 1, one.n_drafted)]):
                cell = one.source, _tenth(confidence)
                self._tried[cell] += 1
                self._kept[cell] += i < one.n_accepted

    def of(self, source: str, confidence: float | None) -> float:
        """The chance that such a token is accepted."""
        cell, expected = (source, _tenth(confidence)), 0.5 if confidence is None else confidence
        return (self._kept[cell] + _PRIOR * expected) / (self._tried[cell] + _PRIOR)


def _tenth(confidence: float | None) -> int | None:
    return None if confidence is None else min(int(10 * confidence), 9)


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
        raise UsageError("The --curve file has no cost curve.", hint="Give a file that bench --json wrote.")
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
            f"All passes in the trace have the same width ({next(iter(known))}), so other widths cannot be estimated.",
            hint="Give --curve FILE, from specdec bench --json FILE.",
        )
    wanted = [k for k in ks if 0 <= k <= longest]
    if not wanted:
        raise UsageError(f"The recorded run drafted at most {longest} tokens.", hint=f"Use -k {longest} or less.")
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
    confidences: tuple[float | None, ...]
    source: str

    @property
    def n_drawn(self) -> int:
        """Tokens that were drafted, verified or not."""
        return max(self.n_drafted, len(self.confidences))


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
        raise UsageError(f"Cannot read {file}: {reason(error)}.", hint=_WANTED) from error
    for n, line in enumerate(lines, 1):
        try:
            value = parse_json(line, _LONGEST_LINE) if line.strip() else None
        except ValueError as error:
            raise UsageError(f"Cannot read line {n} of {file}: {reason(error)}.", hint=_WANTED) from error
        if isinstance(value, dict):
            yield value


def _round(line: Mapping[str, Any], file: Path) -> _Round:
    """Raises UsageError for what no run can have written."""
    drafted, n_accepted, own = (line.get(name) for name in ("drafted", "n_accepted", "own"))
    confidences, source = line.get("confidences", []), line.get("source", "")
    draft_seconds, verify_seconds, seconds = (line.get(f"{name}seconds") for name in ("draft_", "verify_", ""))
    if not (
        isinstance(drafted, list)
        and type(n_accepted) is int
        and 0 <= n_accepted <= len(drafted)
        and (own is None or type(own) is int)
        and _is_between(draft_seconds, 0)
        and _is_between(verify_seconds, LEAST_PASS_SECONDS)
        and _is_between(seconds, LEAST_PASS_SECONDS)
        and _are_confidences(confidences)
        and isinstance(source, str)
    ):
        raise _no_trace(file)
    n_drawn = max(len(drafted), len(confidences))
    if n_drawn > _LONGEST_DRAFT:
        raise UsageError(
            f"A draft in {file} has {n_drawn:,} tokens.",
            hint=f"Replay a run whose drafts have at most {_LONGEST_DRAFT:,} tokens.",
        )
    return _Round(
        len(drafted),
        n_accepted,
        int(own is not None),
        draft_seconds,
        verify_seconds,
        seconds,
        tuple(confidences),
        source,
    )


def _no_trace(file: Path) -> UsageError:
    return UsageError(f"{file} is not a trace.", hint=_WANTED)


def _are_confidences(values: Any) -> TypeGuard[list[float | None]]:
    return isinstance(values, list) and all(
        value is None or (type(value) in (int, float) and 0 <= value <= 1) for value in values
    )


def _is_between(value: Any, least: float) -> TypeGuard[float]:
    return type(value) in (int, float) and least <= value <= MOST_SECONDS
