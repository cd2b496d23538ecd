"""Comparing benchmarks: drafters side by side, and differences that exceed the noise."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from specdec_cli.drafters import DRAFTERS, sources
from specdec_cli.errors import UsageError
from specdec_cli.lengths.speedup_model import conditional_acceptance
from specdec_cli.settings import AUTO
from specdec_cli.untrusted_files import read_json, reason

SMALLEST = 0.03
"""Two runs of the same benchmark on the same machine differ by this much (docs/benchmarks.md)."""
FACTS = ("machine", "versions", "files")
_LARGEST_FILE = 64 << 20
_WANTED = "Give a file that bench --json wrote."
_AGAIN = "Measure again: specdec bench ... --json FILE"
_KEY = ("kind", "temperature", "drafter", "k", "p_min")
_COUNTS = ("tried_per_position", "kept_per_position", "draft_seconds_per_token", "n_tokens", "n_passes")


def read_document(file: Path) -> Mapping[str, Any]:
    """A document that `bench --json` wrote, with every value checked. Raises UsageError."""
    try:
        data = read_json(file, _LARGEST_FILE)
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot read {file}: {reason(error)}.", hint=_WANTED) from error
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list) or not all(_is_cell(cell) for cell in cells):
        raise UsageError(f"{file} is not a benchmark result.", hint=_WANTED)
    if not cells:
        raise UsageError(f"{file} holds no results: nothing was measured.", hint=_AGAIN)
    if not all(cell.keys() >= set(_COUNTS) for cell in cells):
        raise UsageError(f"{file} was written by an older specdec and lacks token counts.", hint=_AGAIN)
    if not all(_has_counts(cell) for cell in cells):
        raise UsageError(f"{file} holds impossible token counts.", hint=_AGAIN)
    if not _names_files(data.get("files")):
        raise UsageError(f"{file} does not say which files were measured.", hint=_AGAIN)
    return dict(data)


def _is_cell(cell: Any) -> bool:
    """Whether it holds a setting and a speedup, in types and ranges that a benchmark can have."""
    if not isinstance(cell, dict) or not {*_KEY, "speedup", "speedup_range"} <= cell.keys():
        return False
    pair = cell["speedup_range"]
    ratios: list[Any] = [cell["speedup"], *pair] if isinstance(pair, list) and len(pair) == 2 else [None]
    return (
        all(isinstance(cell[name], str) for name in ("kind", "drafter"))
        and (_is_count(cell["k"], 0 if cell["drafter"] == "none" else 1) or cell["k"] == AUTO)
        and all(_is_number(cell[name]) and cell[name] >= 0 for name in ("temperature", "p_min"))
        and all(_is_number(ratio) and ratio > 0 for ratio in ratios)
        and ratios[1] <= ratios[-1]
    )


def _has_counts(cell: Mapping[str, Any]) -> bool:
    tried, kept, seconds, *totals = (cell[name] for name in _COUNTS)
    are_lists = isinstance(tried, list) and isinstance(kept, list) and len(tried) == len(kept)
    return (
        are_lists
        and all(map(_is_count, [*tried, *kept, *totals]))
        and all(n_kept <= n_tried for n_tried, n_kept in zip(tried, kept, strict=True))
        and (seconds is None or (_is_number(seconds) and seconds >= 0))
    )


def _names_files(files: Any) -> bool:
    is_named = isinstance(files, list) and all(
        isinstance(f, dict) and all(isinstance(f.get(part), str) for part in ("role", "name")) for f in files
    )
    return is_named and any(file["role"] == "target" for file in files)


def _is_count(value: Any, least: int = 0) -> bool:
    """Whether it is a whole number of at least so many; true and false are not."""
    return type(value) is int and value >= least


def _is_number(value: Any) -> bool:
    """Whether it is a finite number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def changed_facts(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Which of machine, versions and files differ."""
    return [what for what in FACTS if _lasting(before.get(what)) != _lasting(after.get(what))]


def _lasting(facts: Any) -> Any:
    """Without what changes from minute to minute."""
    return {k: v for k, v in facts.items() if k != "free_memory_bytes"} if isinstance(facts, dict) else facts


# --- differences of two --------------------------------------------------------------------------------------

DIFFERENCE_HEADERS = ("before", "after", "change", "noise", "verdict", "cell")


@dataclass(frozen=True, slots=True)
class Difference:
    """One cell in both: `before` and `after` are speedups, `noise` the share that chance may have brought."""

    name: str
    before: float
    after: float
    noise: float

    @property
    def change(self) -> float:
        return self.after / self.before - 1

    @property
    def verdict(self) -> str:
        if abs(self.change) <= self.noise:
            return "noise"
        return "faster" if self.change > 0 else "slower"

    @property
    def row(self) -> tuple[str, ...]:
        figures = f"{self.before:.2f}", f"{self.after:.2f}", f"{self.change:+.1%}", f"{self.noise:.1%}"
        return (*figures, self.verdict, self.name)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Every cell that both have."""
    old = {_key(cell): cell for cell in before["cells"]}
    return [_difference(old[_key(cell)], cell) for cell in after["cells"] if _key(cell) in old]


def _key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in _KEY)


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference:
    """Noise: the larger half of both ranges, over the median; repeated measurements seldom leave it."""
    spread = max(_half_range(old), _half_range(new), SMALLEST)
    name = f"{new['kind']}, temp {new['temperature']:g}, {new['drafter']} k {new['k']}"
    return Difference(name, old["speedup"], new["speedup"], spread)


def _half_range(cell: Mapping[str, Any]) -> float:
    low, high = cell["speedup_range"]
    return float((high - low) / 2 / cell["speedup"])


# --- drafters side by side -----------------------------------------------------------------------------------

HEADERS = ("target", "draft", "drafter", "temp", "kept 1st, 2nd ...", "ms/token", "per pass", "speedup", "kinds")
MOST_POSITIONS = 4
_NAME, _FIRST_TWO = 12, len("0.50, 0.50")


def side_by_side(documents: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One row for each setting of each benchmark, over all kinds of text.

    Chances are of each position given that all before it were kept; milliseconds are inside the drafter, the median of
    rounds; the speedup is the median of kinds of text, with the smallest and the largest beside it.
    """
    return [_row(document, cells) for document in documents for cells in _by_setting(document)]


def narrow(found: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and rows for a terminal of 80 columns. The end of a file's name tells most, its extension nothing."""
    headers = ("speedup", "per-pass", "ms", "temp", "kept 1, 2", "drafter", "file")
    cropped: list[tuple[str, ...]] = []
    for target, draft, drafter, temp, kept, ms, per_pass, speedup, _ in found:
        file = PurePath(target if draft == "-" else draft).stem
        cropped.append((speedup, per_pass, ms, temp, kept[:_FIRST_TWO], drafter, file[-_NAME:]))
    return headers, cropped


def _by_setting(document: Mapping[str, Any]) -> list[list[Mapping[str, Any]]]:
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for cell in document["cells"]:
        groups.setdefault((cell["drafter"], cell["k"], cell["p_min"], cell["temperature"]), []).append(cell)
    return list(groups.values())


def _row(document: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    names = {file["role"]: file["name"] for file in document["files"]}
    one, speedups = cells[0], [cell["speedup"] for cell in cells]
    drafting = [cell["draft_seconds_per_token"] for cell in cells if cell["draft_seconds_per_token"] is not None]
    return (
        names["target"],
        _file(one["drafter"], names),
        f"{one['drafter']} k {one['k']}" + (f" p-min {one['p_min']:g}" if one["p_min"] else ""),
        f"{one['temperature']:g}",
        _kept(cells),
        f"{1000 * statistics.median(drafting):.2f}" if drafting else "-",
        f"{sum(cell['n_tokens'] for cell in cells) / max(sum(cell['n_passes'] for cell in cells), 1):.2f}",
        f"{statistics.median(speedups):.2f}",
        f"{min(speedups):.2f}-{max(speedups):.2f}" if len(speedups) > 1 else one["kind"],
    )


def _file(drafter: str, names: Mapping[str, str]) -> str:
    """The file that a drafter reads, of those of the benchmark."""
    roles = [DRAFTERS[source].file if source in DRAFTERS else "draft" for source in sources(drafter)]
    return next((names[role] for role in roles if role in names), "-")


def _kept(cells: Sequence[Mapping[str, Any]]) -> str:
    tried, kept = (_summed([cell[f"{what}_per_position"] for cell in cells]) for what in ("tried", "kept"))
    chances = conditional_acceptance(tried, kept)
    shown = ", ".join(f"{chance:.2f}" for chance in chances[:MOST_POSITIONS])
    return (shown or "-") + (" ..." if len(chances) > MOST_POSITIONS else "")


def _summed(counts: Sequence[Sequence[int]]) -> list[int]:
    longest = max(map(len, counts), default=0)
    return [sum(of[i] for of in counts if i < len(of)) for i in range(longest)]
