"""Two benchmarks side by side: which differences are more than what measuring again would give."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli.errors import UsageError

SMALLEST = 0.03
"""The same machine gives so much between two runs of a benchmark (docs/benchmarks.md)."""
FACTS = ("machine", "versions", "files")
_WANTED = "Give what bench --json wrote."
_KEY = ("kind", "temperature", "drafter", "k", "p_min")


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
    def is_real(self) -> bool:
        return abs(self.change) > self.noise


def read_document(file: Path) -> Mapping[str, Any]:
    """A document that `bench --json` wrote. Raises UsageError."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read: {error}.", hint=_WANTED) from error
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list) or not all(_is_cell(cell) for cell in cells):
        raise UsageError(f"{file} is no benchmark.", hint=_WANTED)
    document: Mapping[str, Any] = data
    return document


def _is_cell(cell: Any) -> bool:
    """Whether it has what a comparison reads, as numbers and words that a benchmark can have."""
    if not isinstance(cell, dict) or not {*_KEY, "speedup", "speedup_range"} <= cell.keys():
        return False
    pair = cell["speedup_range"]
    ratios = [cell["speedup"], *pair] if isinstance(pair, list) and len(pair) == 2 else [None]
    return (
        all(isinstance(cell[name], str) for name in ("kind", "drafter"))
        and (isinstance(cell["k"], int) or cell["k"] == "auto")
        and all(is_number(cell[name]) for name in ("temperature", "p_min"))
        and all(ratio is not None and is_number(ratio) and ratio > 0 for ratio in ratios)
    )


def is_number(value: Any) -> bool:
    """Whether it is a finite one; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Every cell that both have. Raises UsageError if there is none."""
    old = {_key(cell): cell for cell in before["cells"]}
    found = [_difference(old[_key(cell)], cell) for cell in after["cells"] if _key(cell) in old]
    if not found:
        raise UsageError("The two benchmarks have no cell in common.", hint="Measure the same kinds and settings.")
    return found


def changed_facts(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What else is not the same: machine, versions, files."""
    return [what for what in FACTS if _lasting(before.get(what)) != _lasting(after.get(what))]


def _lasting(facts: Any) -> Any:
    """Without what changes from minute to minute."""
    return {k: v for k, v in facts.items() if k != "free_memory_bytes"} if isinstance(facts, dict) else facts


def _key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in _KEY)


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference:
    """Noise: half of both ranges together, over the median; repeated measuring seldom leaves them."""
    spread = max(_half_range(old), _half_range(new), SMALLEST)
    name = f"{new['kind']}, temp {new['temperature']:g}, {new['drafter']} k {new['k']}"
    return Difference(name, float(old["speedup"]), float(new["speedup"]), spread)


def _half_range(cell: Mapping[str, Any]) -> float:
    low, high = _two(cell["speedup_range"])
    return (high - low) / 2 / max(float(cell["speedup"]), 1e-9)


def _two(numbers: Sequence[Any]) -> tuple[float, float]:
    low, high = numbers
    return float(low), float(high)
