"""The comparison of two tokenizers as a page: the facts side by side, every difference, the verdict."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style
from rich.text import Text

from specdec_cli.models.tokenizer_check import (
    TOKEN_RULES,
    Finding,
    Report,
    Severity,
    TokenPair,
    escaped,
    marker,
    one_line,
    pre_tokenizer,
    quoted,
)
from specdec_cli.models.translation import Overlap, figures
from specdec_cli.models.vocabulary import Vocabulary
from specdec_cli.ui import words
from specdec_cli.ui.paint import BOLD, DIM, PLAIN
from specdec_cli.ui.terminal import Terminal

FEW = 20
"""Differing tokens shown per finding unless all are asked for."""

_SEVERITIES: dict[Severity, Style] = {"error": Style(color="red", bold=True), "note": Style(color="yellow")}
_VERDICTS = {
    "match": Style(color="green", bold=True),
    "match with notes": Style(color="yellow", bold=True),
    "mismatch": Style(color="red", bold=True),
}
Show = Callable[[str], str]
"""Makes text fit for the terminal."""

_GAP, _INDENT = 3, 6
_LABELS = ("file", "vocabulary type", "pre-tokenizer", "tokens", "BOS", "EOS", "EOT", "end tokens", "probe text")


def write(
    report: Report, terminal: Terminal, *, limit: int | None = FEW, overlap: Mapping[str, Overlap] | None = None
) -> None:
    """The whole report; at most `limit` tokens per finding (None: all). With an `overlap` drafts can be translated."""
    console = Console(file=terminal.stream, highlight=False, soft_wrap=True)
    for line in lines(report, limit, ascii_only=not terminal.utf8, overlap=overlap):
        if terminal.color:
            console.print(line)
        else:
            terminal.stream.write(f"{line.plain}\n")  # ten times as fast, and there may be 256,000 lines


def lines(
    report: Report,
    limit: int | None = FEW,
    *,
    ascii_only: bool = False,
    overlap: Mapping[str, Overlap] | None = None,
) -> Iterator[Text]:
    """The report line by line. What comes from the files is escaped; it is never markup."""
    show = _ascii if ascii_only else str
    yield from _facts(report.target, report.draft, show)
    yield Text()
    for finding in report.findings:
        sentence = show(f"{finding.rule}: {finding.text}")
        yield Text.assemble((f"{finding.severity:<6}", _SEVERITIES[finding.severity]), sentence)
        if finding.rule in TOKEN_RULES and finding.ids:
            yield from _tokens(report, finding, limit, show)
    if report.findings:
        yield Text()
    yield Text(show(_verdict(report)), _VERDICTS[report.verdict])
    if overlap is not None:
        yield Text(f"translatable with --cross: {figures(overlap)}", _VERDICTS["match with notes"])


def _facts(target: Vocabulary, draft: Vocabulary, show: Show) -> Iterator[Text]:
    rows = [("", "target", "draft"), *zip(_LABELS, _values(target), _values(draft), strict=True)]
    for (_, ours, theirs), (label, *values) in zip(rows, _in_columns(rows, show), strict=True):
        alike = ours == theirs or label.strip() in ("", "file")
        yield Text.assemble((label, DIM), ("".join(values).rstrip(), PLAIN if alike else BOLD))


def _values(v: Vocabulary) -> Sequence[str]:
    """One vocabulary's column, in the order of `_LABELS`."""
    return (
        escaped(v.name),
        v.kind,
        pre_tokenizer(v),
        f"{len(v):,}",
        marker(v, v.bos) + (" (added)" if v.add_bos else ""),
        marker(v, v.eos) + (" (added)" if v.add_eos else ""),
        marker(v, v.eot),
        " ".join(map(str, sorted(v.end_tokens))) or "none",
        words.count(len(v.probe_ids), "token"),
    )


def _tokens(report: Report, finding: Finding, limit: int | None, show: Show) -> Iterator[Text]:
    ids = finding.ids[:limit]
    rows = [("id", "target", "draft"), *((str(pair.id), *_pieces(pair)) for pair in report.tokens(ids))]
    for row in _in_columns(rows, show):
        yield Text(" " * _INDENT + "".join(row).rstrip())
    if left := finding.n_differing - len(ids):
        yield Text(f"{' ' * _INDENT}and {left:,} more (--all shows them)", DIM)


def _pieces(pair: TokenPair) -> tuple[str, str]:
    ours, theirs = ("no token" if t is None else f"{quoted(t[0])} {t[1]}" for t in (pair.target, pair.draft))
    return ours, theirs


def _verdict(report: Report) -> str:
    if report.verdict != "mismatch":
        return one_line(report)
    n_notes = len(report.notes)
    rest = f" and {words.count(n_notes, 'note')}" if n_notes else ""
    return f"tokenizers differ: {words.count(len(report.errors), 'error')}{rest}"


def _in_columns(rows: Sequence[Sequence[str]], show: Show) -> Iterator[list[str]]:
    """Cells padded to the widest of their column."""
    shown = [[show(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) + _GAP for column in zip(*shown, strict=True)]
    for row in shown:
        yield [set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True)]


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("ascii")
