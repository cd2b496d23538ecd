"""What `specdec bench` shows and writes, and how it compares benchmarks."""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_cli.commands.options import say, text_differs
from specdec_cli.errors import DiskFull, SpecdecError, UsageError
from specdec_cli.outputs import write_output

if TYPE_CHECKING:
    from specdec_cli.bench.compare import Difference
    from specdec_cli.bench.report import Results
    from specdec_cli.ui.terminal import Terminal

WIDEST = 150
"""Columns for drafters side by side, with the names of their files."""
WIDE = 110
"""Columns for the whole table; a pipe has as many as COLUMNS says, or 80."""
_NOTES = {
    "machine": "come from different machines",
    "versions": "come from different versions of specdec, llama.cpp or their libraries",
    "files": "measured different files",
}


def report(results: "Results", outputs: dict[str, Path | None], plot_file: Path | None) -> None:
    """Write all that was asked for, and the table unless a document is on stdout. What was measured for minutes is
    shown also where a file cannot be written: that is raised last. Raises TextDiffers, UsageError, DiskFull."""
    from specdec_cli.bench import report as bench_report

    texts = {
        "json": lambda: json.dumps(bench_report.document(results), indent=1) + "\n",
        "md": lambda: bench_report.as_markdown(results),
    }
    failed: list[SpecdecError] = []
    for name, file in outputs.items():
        if file is not None and str(file) == "-":
            sys.stdout.write(texts[name]())
        elif file is not None:
            _write(file, partial(_write_text, file, texts[name]), failed)
    if not any(str(file) == "-" for file in outputs.values()):
        _print_tables(results)
    if plot_file is not None:
        _write(plot_file, lambda: _plot(results, plot_file), failed)
    for error in failed if results.has_bug else failed[1:]:
        say(f"Error: {error}")
    if results.has_bug:
        raise text_differs("the JSON document (--json)")
    if failed:
        raise failed[0]


def _write(file: Path, write: Callable[[], None], failed: list[SpecdecError]) -> None:
    try:
        write()
        say(f"Written: {file}")
    except UsageError as error:
        failed.append(error)
    except OSError as error:  # the disk is full
        failed.append(DiskFull(f"Cannot write to {file}: {error.strerror}.", hint="Free some disk space."))


def _write_text(file: Path, text: Callable[[], str]) -> None:
    write_output(file, text())


def _plot(results: "Results", file: Path) -> None:
    from specdec_cli.bench.plot import write_plot

    write_plot(results, file)


def _print_tables(results: "Results") -> None:
    from specdec_cli.bench import report as bench_report
    from specdec_cli.ui.sentences import write_sentences
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    terminal = Terminal(sys.stdout, os.environ)
    write_sentences(bench_report.verdict(results), terminal)
    print()
    is_narrow = terminal.size()[0] < WIDE
    headers, rows = bench_report.narrow(results) if is_narrow else (bench_report.HEADERS, bench_report.table(results))
    write_table(headers, rows, terminal, right=" ".join(headers[1:-1]))
    write_sentences(["Each speedup is the median of ratios to the plain answers just before and after."], terminal)
    print()
    write_table(bench_report.COST_HEADERS, bench_report.cost_table(results), terminal, right="ms")
    _print_chart(results, terminal)


def _print_chart(results: "Results", terminal: "Terminal") -> None:
    """The best setting by kind of text. A single kind's figure stands in the verdict."""
    from specdec_cli.bench.measure import by_setting
    from specdec_cli.ui.ratios import ratio_chart
    from specdec_cli.ui.sentences import write_sentences

    best, _ = results.best()
    ratios = [(cell.kind, cell.speedup) for cell in by_setting(results.cells)[best]]
    lines = ratio_chart(ratios, terminal) if len(ratios) > 1 else []
    if lines:
        print()
        write_sentences(
            [f"Speedup of {best} at temperature {best.temperature:g}; the vertical line is plain decoding:"], terminal
        )
        print("\n".join(lines))


def compare_benchmarks(files: list[Path], md_file: Path | None) -> None:
    """Drafters of all side by side; of two, which cells differ beyond noise. Raises UsageError."""
    from specdec_cli.bench import compare
    from specdec_cli.bench.report import markdown_table
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    if not files:
        raise UsageError(
            "--compare needs at least one file.", hint="Give files that bench --json wrote, separated by commas."
        )
    documents = [compare.read_document(file) for file in files]
    rows = compare.side_by_side(documents)
    changes = compare.differences(*documents) if len(documents) == 2 else []
    table = [change.row for change in changes]
    lines = markdown_table(compare.HEADERS, rows)
    if changes:
        lines += ["", *markdown_table(compare.DIFFERENCE_HEADERS, table), "", _in_a_sentence(changes)]
    if md_file is not None and str(md_file) == "-":
        print("\n".join(lines))
    else:
        terminal = Terminal(sys.stdout, os.environ)
        is_narrow = terminal.size()[0] < WIDEST
        headers, shown = compare.narrow(rows) if is_narrow else (compare.HEADERS, rows)
        write_table(headers, shown, terminal, right="speedup per-pass ms temp ms/token")
        if changes:
            print()
            write_table(compare.DIFFERENCE_HEADERS, table, terminal, right="before after change noise")
            print(f"\n{_in_a_sentence(changes)}")
        if md_file is not None:
            write_output(md_file, "\n".join([*lines, ""]))
            say(f"Written: {md_file}")
    changed = {what for other in documents[1:] for what in compare.changed_facts(documents[0], other)}
    for what, note in _NOTES.items():
        if what in changed and (what != "files" or changes):  # several drafts are what one compares
            say(f"Note: These benchmarks {note}.")


def _in_a_sentence(changes: "list[Difference]") -> str:
    verdicts = [change.verdict for change in changes]
    faster, slower = verdicts.count("faster"), verdicts.count("slower")
    return f"{faster + slower} of {len(changes)} cells differ by more than the noise: {faster} faster, {slower} slower."
