"""A benchmark as a JSON document, table rows, Markdown and a verdict."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specdec_cli.bench.measure import Cell, Setting, by_setting, median_speedup
from specdec_cli.bench.trend import acceptance_by_quarter
from specdec_cli.drafters import NAMED, with_lookup
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.lengths.speedup_model import CostCurve, best_k, break_even, perfect_speedup, predicted_speedup
from specdec_cli.settings import AUTO
from specdec_cli.ui.clean import printable

PAYS, COSTS = 1.03, 0.97
"""Between these a difference is not worth a word: the same machine gives it between two runs."""
FAR_OFF = 0.15
"""A prediction that misses the measurement by more deserves one."""


@dataclass(frozen=True, slots=True)
class Named:
    """How the pair was named on the command line, and who drafts for it by itself."""

    model: str
    draft: str | None
    drafter: str

    def command(self, setting: Setting) -> str | None:
        """`specdec run` as this setting has it, whatever the temperature; None where no option says so."""
        words, draft = ["specdec", "run", self.model], self.draft
        if setting.k == AUTO and setting.drafter == self.drafter != with_lookup(self.drafter):
            words.append("--no-ngram")
        elif setting.drafter in NAMED:
            draft = setting.drafter
        elif setting.drafter != self.drafter and (setting.k, setting.drafter) != (AUTO, with_lookup(self.drafter)):
            return None
        words += ["--draft", draft] if draft is not None else []
        words += ["-k", str(setting.k)] if setting.k not in (0, AUTO) else []
        words += ["--p-min", f"{setting.p_min:g}"] if setting.p_min else []
        return shlex.join(words)

    @property
    def plain(self) -> str:
        """Plain decoding's."""
        return shlex.join(["specdec", "run", self.model, "--draft", NoDrafter.name])


@dataclass(frozen=True, slots=True)
class Results:
    """All that was measured. `facts` are machine, versions, files, command and settings as JSON values."""

    cells: Mapping[tuple[str, Setting], Cell]
    curves: tuple[CostCurve, ...]
    facts: Mapping[str, Any]
    named: Named | None = None

    @property
    def command(self) -> str | None:
        """What to run to have the best of it: plain decoding where nothing was faster."""
        best, speedup = self.best()
        if self.named is None:
            return None
        return self.named.command(best) if speedup >= PAYS else self.named.plain

    @property
    def curve(self) -> CostCurve:
        """At the context that the runs had."""
        return self.curves[0]

    @property
    def has_bug(self) -> bool:
        return any(cell.worst.verdict == "bug" for cell in self.cells.values())

    def best(self) -> tuple[Setting, float]:
        """The setting with the largest median over kinds of text; plain decoding only if nothing else was measured."""
        medians = {setting: median_speedup(cells) for setting, cells in by_setting(self.cells).items()}
        medians = {setting: value for setting, value in medians.items() if setting.k} or medians
        best = max(medians, key=lambda setting: medians[setting])
        return best, medians[best]


def document(results: Results) -> dict[str, Any]:
    """The whole benchmark as JSON values."""
    return {
        **results.facts,
        "use": results.command,
        "cost_curve": [
            {
                "context": curve.context,
                "target_seconds_by_width": {str(w): s for w, s in curve.target.items()},
                "draft_seconds_per_token": curve.draft,
            }
            for curve in results.curves
        ],
        "predictions": predictions(results),
        "cells": [cell_row(cell, results.curve) for cell in results.cells.values()],
    }


def cell_row(cell: Cell, curve: CostCurve) -> dict[str, Any]:
    """One cell; speeds in tokens per second, `speedup_range` the smallest and largest ratio."""
    worst = cell.worst
    tried, kept = cell.counts_by_position
    return {
        "kind": cell.kind,
        "temperature": cell.setting.temperature,
        "drafter": cell.setting.drafter,
        "k": cell.setting.k,
        "p_min": cell.setting.p_min,
        "tokens_per_second": cell.speed,
        "plain_tokens_per_second": cell.plain_speed,
        "speedup": cell.speedup,
        "speedup_range": [min(cell.ratios), max(cell.ratios)],
        "predicted_speedup": cell.predicted(curve),
        "acceptance": cell.acceptance,
        "tokens_per_pass": cell.tokens_per_pass,
        "accepted_per_position": cell.by_position,
        "tried_per_position": tried,
        "kept_per_position": kept,
        "draft_seconds_per_token": cell.draft_seconds_per_token,
        "n_tokens": sum(run.stats.tokens for run in cell.runs),
        "n_passes": sum(run.stats.passes for run in cell.runs),
        "acceptance_by_quarter": acceptance_by_quarter([run.rounds for run in cell.runs]),
        "n_runs": len(cell.runs),
        "same_output": worst.verdict,
        "first_difference": asdict(worst) if worst.verdict != "same" else None,
    }


def predictions(results: Results) -> list[dict[str, Any]]:
    """By temperature: what every k should be worth, with the chances by position of the longest drafts measured."""
    rows = []
    for setting, chances in _longest_drafts(results).items():
        curve = results.curve
        for k in range(1, len(chances) + 1):
            if k + 1 in curve.target:
                rows.append(
                    {
                        "temperature": setting.temperature,
                        "k": k,
                        "predicted_speedup": predicted_speedup(curve, chances, k),
                        "measured_speedup": _measured(results, setting, k),
                        "break_even_acceptance": break_even(curve, k),
                        "perfect_speedup": perfect_speedup(curve, k),
                        "is_best": k == best_k(curve, chances),
                    }
                )
    return rows


def _longest_drafts(results: Results) -> dict[Setting, list[float]]:
    """For each temperature, the model-drafted setting with the largest k, and its chances over all kinds."""
    longest: dict[float, tuple[int, Setting]] = {}
    for setting in by_setting(results.cells):
        k, before = setting.k, longest.get(setting.temperature)
        is_fixed = setting.drafter == "model" and not setting.p_min
        if is_fixed and isinstance(k, int) and (before is None or k > before[0]):
            longest[setting.temperature] = k, setting
    return {setting: pooled(results, setting).by_position for _, setting in longest.values()}


def pooled(results: Results, setting: Setting) -> Cell:
    """All runs of a setting, of whatever kind of text."""
    return Cell("all", setting, [run for cell in by_setting(results.cells)[setting] for run in cell.runs])


def _measured(results: Results, like: Setting, k: int) -> float | None:
    for setting, cells in by_setting(results.cells).items():
        if (setting.drafter, setting.temperature, setting.p_min, setting.k) == ("model", like.temperature, 0.0, k):
            return median_speedup(cells)
    return None


def verdict(results: Results) -> list[str]:
    """The answer in sentences: does it pay here, with what, and is the text the same?"""
    best, speedup = results.best()
    cells = by_setting(results.cells)[best]
    low, high = min(cells, key=lambda c: c.speedup), max(cells, key=lambda c: c.speedup)
    spread = f"from {low.speedup:.2f} ({low.kind}) to {high.speedup:.2f} ({high.kind})"
    kinds = f"median of {len(cells)} kinds of text, {spread}" if len(cells) > 1 else f"on {low.kind}"
    which = f"{best} at temperature {best.temperature:g}"
    use = f" (use: {results.command})" if results.command is not None else ""
    if speedup >= PAYS:
        lines = [f"Drafting pays here{use}: {which} is {speedup:.2f} times as fast as plain decoding ({kinds})."]
    elif speedup > COSTS:
        lines = [
            f"Drafting makes no difference here{use}: the best setting, {which}, runs at {speedup:.2f} times plain "
            f"decoding ({kinds})."
        ]
    else:
        lines = [
            f"Drafting is slower here{use}: even the best setting, {which}, runs at {speedup:.2f} times plain "
            f"decoding ({kinds})."
        ]
    lines += [line for line in (results.facts.get("cut"), _far_off(results), _sameness(results)) if line]
    return lines


def _far_off(results: Results) -> str | None:
    off = [
        (cell, predicted)
        for cell in results.cells.values()
        if (predicted := cell.predicted(results.curve)) is not None and abs(predicted / cell.speedup - 1) > FAR_OFF
    ]
    if not off:
        return None
    cell, predicted = max(off, key=lambda pair: abs(pair[1] / pair[0].speedup - 1))
    return (
        f"In {len(off)} of {len(results.cells)} cells the prediction is off by more than {FAR_OFF:.0%}, most on "
        f"{cell.kind} with {cell.setting}: {predicted:.2f} predicted, {cell.speedup:.2f} measured."
    )


def _sameness(results: Results) -> str:
    """What came of comparing every text with plain decoding's."""
    bad = [cell for cell in results.cells.values() if cell.worst.verdict == "bug"]
    ties = [cell for cell in results.cells.values() if cell.worst.verdict == "tie"]
    if bad:
        return f"BUG: on {bad[0].kind} with {bad[0].setting} {bad[0].worst.as_sentence}. Please report it."
    if ties:
        worst = max((cell.worst for cell in ties), key=lambda c: c.gap)
        return (
            f"Every text matches plain decoding, except at near ties in {len(ties)} of {len(results.cells)} "
            f"cells (largest gap {worst.gap:.3g}, noise there {worst.noise:.3g})."
        )
    return f"Every text matches plain decoding, token by token, in all {len(results.cells)} cells."


HEADERS = (
    "kind", "temp", "drafter", "k", "tok/s", "plain", "speedup", "range", "predicted", "accepted", "per pass", "text",
)  # fmt: skip


def table(results: Results) -> list[tuple[str, ...]]:
    """The cells as words, one row each."""
    return [_row(cell, cell.predicted(results.curve)) for cell in results.cells.values()]


def _row(cell: Cell, predicted: float | None) -> tuple[str, ...]:
    return (
        cell.kind,
        f"{cell.setting.temperature:g}",
        cell.setting.drafter + (f" p-min {cell.setting.p_min:g}" if cell.setting.p_min else ""),
        str(cell.setting.k),
        f"{cell.speed:.1f}",
        f"{cell.plain_speed:.1f}",
        f"{cell.speedup:.2f}" + (" slower" if cell.speedup < COSTS else ""),
        f"{min(cell.ratios):.2f}-{max(cell.ratios):.2f}",
        "-" if predicted is None else f"{predicted:.2f}",
        "-" if cell.acceptance is None else f"{cell.acceptance:.0%}",
        f"{cell.tokens_per_pass:.2f}",
        str(cell.worst),
    )


NARROW = ("kind", "temp", "drafter", "speedup", "expected", "kept", "text")


def narrow(results: Results) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and rows for a terminal of 80 columns: what one came for."""
    rows: list[tuple[str, ...]] = []
    for cell, row in zip(results.cells.values(), table(results), strict=True):
        kind, temperature, *_, predicted, acceptance, _, text = row
        setting = str(cell.setting).replace("p-min", "p")
        rows.append((kind, temperature, setting, f"{cell.speedup:.2f}", predicted, acceptance, text.partition(" (")[0]))
    return NARROW, rows


COST_HEADERS = ("pass of", "ms", "for", "predicted", "measured", "break-even", "perfect draft")


def cost_table(results: Results) -> list[tuple[str, ...]]:
    """What passes cost, and what each draft length should bring at the first temperature measured."""
    curve, by_k = results.curve, {row["k"]: row for row in reversed(predictions(results))}
    rows: list[tuple[str, ...]] = []
    for width, seconds in curve.target.items():
        row = by_k.get(width - 1)
        figures = ("predicted_speedup", "measured_speedup", "break_even_acceptance", "perfect_speedup")
        shown = ("-" if row is None or row[name] is None else f"{row[name]:.2f}" for name in figures)
        mark = " best" if row is not None and row["is_best"] else ""
        rows.append((f"{width}", f"{1000 * seconds:.2f}", f"k {width - 1}{mark}", *shown))
    if curve.draft:
        rows.append(("draft", f"{1000 * curve.draft:.2f}", "a token", "-", "-", "-", "-"))
    return rows


def as_markdown(results: Results) -> str:
    """Verdict, table and how it was measured."""
    facts = results.facts
    lines = [*verdict(results), "", *markdown_table(HEADERS, table(results)), ""]
    lines += [f"- {name}: {value}" for name, value in facts["machine"].items()]
    lines += [f"- versions: {', '.join(f'{k} {v}' for k, v in facts['versions'].items() if k != 'llama_cpp_features')}"]
    lines += [f"- {file['role']}: {file['name']}, sha256 {file['sha256']}" for file in facts["files"]]
    lines.append(f"- command: `{facts['command']}`")
    return "\n".join([*map(_one_line, lines), ""])


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [_line(headers), _line(["---"] * len(headers)), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_one_line(cell).replace("|", "\\|") for cell in cells) + " |"


def _one_line(text: str) -> str:
    """Names of files and kinds of text come from outside: nothing that a terminal obeys, and no end of the line."""
    return " ".join(printable(text).split())
