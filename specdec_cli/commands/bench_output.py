"""What `specdec bench` found, shown and written, or held against an earlier benchmark."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_cli.commands.options import say
from specdec_cli.errors import TextDiffers, UsageError

if TYPE_CHECKING:
    from specdec_cli.bench.report import Results
    from specdec_cli.ui.terminal import Terminal

WIDEST = 150
"""Columns that drafters side by side take, with the names of their files."""
WIDE = 110
"""Columns that the whole table takes; a pipe has as many as COLUMNS says, or 80."""


def report(results: "Results", outputs: dict[str, Path | None], plot_file: Path | None) -> None:
    from specdec_cli.bench import report as bench_report
    from specdec_cli.ui.clean import printable
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    texts = {
        "json": lambda: json.dumps(bench_report.document(results), indent=1) + "\n",
        "csv": lambda: bench_report.as_csv(results),
        "md": lambda: bench_report.as_markdown(results),
    }
    on_stdout = False
    for name, file in outputs.items():
        if file is not None and str(file) == "-":
            on_stdout = True
            sys.stdout.write(texts[name]())
        elif file is not None:
            file.write_text(texts[name](), encoding="utf-8")
            say(f"Written: {file}")
    if not on_stdout:
        terminal = Terminal(sys.stdout, os.environ)
        is_narrow = terminal.size()[0] < WIDE
        headers, rows = (
            bench_report.narrow(results) if is_narrow else (bench_report.HEADERS, bench_report.table(results))
        )
        write_table(headers, rows, terminal, right=" ".join(headers[1:-1]))
        print("Speedups are medians of ratios to the plain answers written just before and after.\n")
        write_table(bench_report.COST_HEADERS, bench_report.cost_table(results), terminal, right="ms")
        print()
        for line in bench_report.verdict(results):
            print(printable(line))
        _print_chart(results, terminal)
    if plot_file is not None:
        from specdec_cli.bench.plot import write_plot

        write_plot(results, plot_file)
        say(f"Written: {plot_file}")
    if results.has_bug:
        raise TextDiffers(
            "A text differs from plain decoding's, and no near tie explains it.",
            hint="This is a bug: please report it with the JSON document (--json).",
        )


def _print_chart(results: "Results", terminal: "Terminal") -> None:
    """The best setting by kind of text. A single kind's figure stands in the verdict."""
    from specdec_cli.bench.measure import by_setting
    from specdec_cli.ui.ratios import ratio_chart

    best, _ = results.best()
    ratios = [(cell.kind, cell.speedup) for cell in by_setting(results.cells)[best]]
    lines = ratio_chart(ratios, terminal) if len(ratios) > 1 else []
    if lines:
        print(f"\nSpeedup of {best} at temperature {best.temperature:g}; the upright line is plain decoding:")
        print("\n".join(lines))


def drafters_side_by_side(files: list[Path], md_file: Path | None) -> None:
    """One table of what several benchmarks measured. Raises UsageError."""
    from specdec_cli.bench.compare import changed_facts, read_document
    from specdec_cli.bench.report import markdown_table
    from specdec_cli.bench.table import HEADERS, narrow, rows
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    if not files:
        raise UsageError("--table needs a file.", hint="Give what bench --json wrote, with commas between.")
    documents = [read_document(file) for file in files]
    found = rows([(str(file), document) for file, document in zip(files, documents, strict=True)])
    if md_file is not None and str(md_file) == "-":
        print("\n".join(markdown_table(HEADERS, found)))
    else:
        terminal = Terminal(sys.stdout, os.environ)
        is_narrow = terminal.size()[0] < WIDEST
        headers, shown = narrow(found) if is_narrow else (HEADERS, found)
        write_table(headers, shown, terminal, right="speedup per-pass ms temp ms/token")
        if md_file is not None:
            md_file.write_text("\n".join([*markdown_table(HEADERS, found), ""]), encoding="utf-8")
            say(f"Written: {md_file}")
    changed = {what for other in documents[1:] for what in changed_facts(documents[0], other)}
    if "machine" in changed:
        say("Note: these speedups are not of one machine.")
    if "versions" in changed:
        say("Note: these speedups are not of the same versions of specdec, llama.cpp and what else there is.")


def compare_documents(before: Path, after: Path) -> None:
    from specdec_cli.bench.compare import changed_facts, differences, read_document
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    old, new = read_document(before), read_document(after)
    found = differences(old, new)
    rows = [
        (
            f"{d.before:.2f}",
            f"{d.after:.2f}",
            f"{d.change:+.1%}",
            f"{d.noise:.1%}",
            ("faster" if d.change > 0 else "slower") if d.is_real else "noise",
            d.name,
        )
        for d in found
    ]
    write_table(
        ("before", "after", "change", "noise", "verdict", "cell"),
        rows,
        Terminal(sys.stdout, os.environ),
        right="before after change noise",
    )
    print()
    for what in changed_facts(old, new):
        print(f"Note: {what} differ.")
    real = [d for d in found if d.is_real]
    faster = sum(d.change > 0 for d in real)
    print(f"{len(real)} of {len(found)} cells differ beyond noise: {faster} faster, {len(real) - faster} slower.")
