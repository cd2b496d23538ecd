"""Drafters side by side: one row for each setting of one or several benchmarks, over all kinds of text."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from specdec_cli.bench.compare import is_number
from specdec_cli.drafters import sources
from specdec_cli.errors import UsageError
from specdec_cli.lengths.speedup_model import conditional_acceptance

HEADERS = ("target", "draft", "drafter", "temp", "kept 1st, 2nd ...", "ms/token", "per pass", "speedup", "kinds")
MOST_POSITIONS = 4
_NAME, _FIRST_TWO = 12, len("0.50, 0.50")
_NEEDED = frozenset({"tried_per_position", "kept_per_position", "draft_seconds_per_token", "n_tokens", "n_passes"})
_AGAIN = "Measure again: specdec bench ... --json FILE"


def rows(documents: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    """Of documents that `bench --json` wrote, in their order, each with the name of its file.

    Chances are of each position given that all before it were kept; milliseconds are inside the drafter, the median of
    rounds; the speedup is the median of kinds of text, with the least and the greatest beside it. Raises UsageError.
    """
    for name, document in documents:
        _check(name, document)
    return [_row(document, cells) for _, document in documents for cells in _by_setting(document)]


def narrow(found: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and rows for a terminal of 80 columns: what one came for. Of names the end tells most."""
    headers = ("speedup", "per-pass", "ms", "temp", "kept 1, 2", "drafter", "file")
    cropped: list[tuple[str, ...]] = []
    for target, draft, drafter, temp, kept, ms, per_pass, speedup, _ in found:
        file = PurePath(target if draft == "-" else draft).stem  # the ending would take the room of the name
        cropped.append((speedup, per_pass, ms, temp, kept[:_FIRST_TWO], drafter, file[-_NAME:]))
    return headers, cropped


def _check(name: str, document: Mapping[str, Any]) -> None:
    """What was read of it before says nothing of what only the table needs. Raises UsageError."""
    cells, files = document["cells"], document.get("files")
    if not cells:
        raise UsageError(f"{name} has no cells: nothing was measured.", hint=_AGAIN)
    if not all(cell.keys() >= _NEEDED for cell in cells):
        raise UsageError(f"{name} is of an older specdec and lacks what the table needs.", hint=_AGAIN)
    if not all(_has_counts(cell) for cell in cells):
        raise UsageError(f"{name} holds counts that no benchmark has.", hint=_AGAIN)
    are_named = isinstance(files, list) and all(
        isinstance(f, dict) and all(isinstance(f.get(part), str) for part in ("role", "name")) for f in files
    )
    if not (are_named and any(file["role"] == "target" for file in files or ())):
        raise UsageError(f"{name} does not say which files were measured.", hint=_AGAIN)


def _has_counts(cell: Mapping[str, Any]) -> bool:
    tried, kept, each = (cell[name] for name in ("tried_per_position", "kept_per_position", "draft_seconds_per_token"))
    are_lists = isinstance(tried, list) and isinstance(kept, list) and len(tried) == len(kept)
    counts = [*tried, *kept, cell["n_tokens"], cell["n_passes"]] if are_lists else [None]
    return all(map(is_number, counts)) and (each is None or is_number(each))


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


_ROLES = {"medusa": "heads", "ngram": "", "lookahead": "", "none": ""}
"""Which file a source drafts with, if it is not the draft; "" for none, also where a draft was open."""


def _file(drafter: str, names: Mapping[str, str]) -> str:
    """The file that a drafter reads, of those of the benchmark."""
    roles = [_ROLES.get(source, "draft") for source in sources(drafter)]
    return next((names[role] for role in roles if role in names), "-")


def _kept(cells: Sequence[Mapping[str, Any]]) -> str:
    tried, kept = (_summed([cell[f"{what}_per_position"] for cell in cells]) for what in ("tried", "kept"))
    chances = conditional_acceptance(tried, kept)
    shown = ", ".join(f"{chance:.2f}" for chance in chances[:MOST_POSITIONS])
    return (shown or "-") + (" ..." if len(chances) > MOST_POSITIONS else "")


def _summed(counts: Sequence[Sequence[int]]) -> list[int]:
    longest = max(map(len, counts), default=0)
    return [sum(of[i] for of in counts if i < len(of)) for i in range(longest)]
