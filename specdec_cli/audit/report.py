"""An audit as a verdict, tables and a JSON document."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from specdec_cli.audit.checks import ERROR, Audit, LawCheck, TextCheck, Way

TEXT_HEADERS = ("rule", "drafter", "k", "temp", "answers", "tokens", "ties", "text")
LAW_HEADERS = ("rule", "drafter", "k", "temp", "places", "draws", "overlap", "shift", "first", "second", "law")


def text_table(audit: Audit) -> list[tuple[str, ...]]:
    """A row for every way whose texts must be plain decoding's."""
    return [
        (*_way(check), str(check.answers), str(check.tokens), str(check.verdicts["tie"]), str(check.worst))
        for check in audit.texts.values()
    ]


def law_table(audit: Audit) -> list[tuple[str, ...]]:
    """A row for every way, with the smallest chances of counts at least as far from the target's distribution."""
    by_way: dict[Way, list[LawCheck]] = {}
    for check in audit.laws:
        by_way.setdefault(check.way, []).append(check)
    return [
        (
            *_way(checks[0]),
            str(len(checks)),
            str(sum(check.draws for check in checks)),
            f"{min(check.overlap for check in checks):.2f}-{max(check.overlap for check in checks):.2f}",
            f"{max(check.shift for check in checks):.2g}",
            *(_smallest(check.chances[i] for check in checks) for i in range(2)),
            "BUG" if any(map(audit.is_wrong, checks)) else "the target's",
        )
        for checks in by_way.values()
    ]


def _smallest(chances: Iterable[float | None]) -> str:
    known = [chance for chance in chances if chance is not None]
    return f"{min(known):.2g}" if known else "-"


def verdict(audit: Audit, n_tokens: int) -> list[str]:
    """What it comes to; the last line says whether the promise was kept."""
    lines = []
    if audit.texts:
        lines.append(_texts(audit, n_tokens))
    if audit.laws:
        lines.append(_laws(audit))
    lines += _not_shown(audit)
    lines += [_bug(bug) for bug in audit.bugs]
    lines.append("No bug found." if not audit.bugs else "Bugs found. Please report them.")
    return lines


def document(audit: Audit, facts: Mapping[str, Any]) -> dict[str, Any]:
    """All of it, with machine, versions, files and settings."""
    return {
        **facts,
        "verdict": "bug" if audit.bugs else "no fault",
        "texts": [
            {**asdict(c.way), "answers": c.answers, "tokens": c.tokens, "drafted": c.drafted, **_counted(c)}
            | {"worst": asdict(c.worst)}
            for c in audit.texts.values()
        ],
        "distributions": [
            {**asdict(c), **asdict(c.way), "way": str(c.way), "is_bug": audit.is_wrong(c)} for c in audit.laws
        ],
        "threshold": audit.threshold(len(audit.laws)) if audit.laws else None,
    }


def _counted(check: TextCheck) -> dict[str, int]:
    return {verdict: check.verdicts[verdict] for verdict in ("same", "tie", "bug")}


def _way(check: TextCheck | LawCheck) -> tuple[str, ...]:
    way = check.way
    return way.rule, way.drafter, str(way.k), f"{way.temperature:g}"


def _texts(audit: Audit, n_tokens: int) -> str:
    checks = list(audit.texts.values())
    total, fewest = sum(check.tokens for check in checks), min(check.tokens for check in checks)
    words = f"Texts: {total:,} tokens compared with plain decoding in {len(checks)} settings"
    if fewest < n_tokens:
        words += f"; at least {fewest:,} per setting ({n_tokens:,} requested)"
    ties = sum(check.verdicts["tie"] for check in checks)
    if not ties:
        return f"{words}. No text diverged, not even at a near tie."
    ways = [check for check in checks if check.worst.verdict == "tie"]
    largest = max(ways, key=lambda check: check.worst.gap, default=None)
    noise = f" (largest gap {largest.worst.gap:.2g}, noise there {largest.worst.noise:.2g})" if largest else ""
    return f"{words}. {ties} of {sum(check.answers for check in checks)} texts diverged at near ties{noise}."


def _laws(audit: Audit) -> str:
    chances = [chance for check in audit.laws for chance in check.chances if chance is not None]
    draws = sum(check.draws for check in audit.laws)
    words = f"Distributions: {draws:,} draws in {len(audit.laws)} cases (position and setting), {len(chances)} tests"
    if not chances:
        return f"{words}: the next token is nearly certain everywhere, so they prove nothing. Try a higher --temp."
    return (
        f"{words}; the smallest p-value is {min(chances):.2g}. Below {audit.threshold(len(audit.laws)):.1g} "
        f"counts as a bug (false alarms: {ERROR:g} over all tests)."
    )


def _not_shown(audit: Audit) -> list[str]:
    """What could not be tested, for want of drafts or of time."""
    without = [check.way for check in audit.texts.values() if not check.drafted]
    lines = []
    if without:
        lines.append(
            f"Nothing was drafted in these settings, so their texts prove nothing: {'; '.join(map(str, without))}."
        )
    lines += [
        f"Skipped distributions with {drafter} at temperature {temperature:g}: it drafted nothing at any "
        "position tried."
        for drafter, temperature in audit.without_places
    ]
    if audit.without_time:
        late = "; ".join(map(str, audit.without_time))
        lines.append(f"No time was left for these settings (raise --budget): {late}.")
    return lines


def _bug(bug: TextCheck | LawCheck) -> str:
    if isinstance(bug, TextCheck):
        return f"BUG: {bug.way}: {bug.worst.as_sentence}."
    first, second = ("-" if chance is None else f"{chance:.2g}" for chance in bug.chances)
    return (
        f"BUG: {bug.way}: after {bug.context} tokens of {bug.kind} the next tokens do not follow the target's "
        f"distribution (p-value {first} for the first, {second} for the second, {bug.draws} draws)."
    )
