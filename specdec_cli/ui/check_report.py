"""The comparison of two tokenizers as a page: the facts side by side, every difference, the verdict."""

from collections.abc import Iterator, Sequence

from rich.cells import set_cell_size
from rich.console import Console
from rich.style import Style
from rich.text import Text

from specdec_cli.ui import words
from specdec_cli.ui.paint import BOLD, DIM, PLAIN
from specdec_cli.ui.terminal import Terminal
from specdec_cli.vocab_check import TOKEN_RULES, Finding, Report, Severity, TokenPair, marker, one_line, quoted
from specdec_cli.vocabulary import Vocabulary

FEW = 20
"""Differing tokens shown per finding unless all are asked for."""

_SEVERITIES: dict[Severity, Style] = {"error": Style(color="red", bold=True), "note": Style(color="yellow")}
_VERDICTS = {
    "match": Style(color="green", bold=True),
    "match with notes": Style(color="yellow", bold=True),
    "mismatch": Style(color="red", bold=True),
}
_GAP = 3
_WIDEST = 56
_LABELS = ("file", "vocabulary type", "pre-tokenizer", "tokens", "BOS", "EOS", "EOT", "end tokens", "probe text")


def write(report: Report, terminal: Terminal, *, limit: int | None = FEW) -> None:
    """The whole report; at most `limit` tokens per finding (None: all)."""
    console = Console(
        file=terminal.stream,
        color_system="auto" if terminal.color else None,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )
    for line in lines(report, limit):
        console.print(line if terminal.utf8 else _ascii(line))


def lines(report: Report, limit: int | None = FEW) -> Iterator[Text]:
    """The report line by line. Names and tokens are escaped: they are data of the files."""
    yield from _facts(report.target, report.draft)
    yield Text()
    for finding in report.findings:
        yield _styled((f"{finding.severity:<6}", _SEVERITIES[finding.severity]), f"{finding.rule}: {finding.text}")
        if finding.rule in TOKEN_RULES and finding.ids:
            yield from _tokens(report, finding, limit)
    if report.findings:
        yield Text()
    yield _verdict(report)


def _facts(target: Vocabulary, draft: Vocabulary) -> Iterator[Text]:
    rows = [("", "target", "draft"), *zip(_LABELS, _values(target), _values(draft), strict=True)]
    for i, (label, *values) in enumerate(_in_columns(rows)):
        same = rows[i][1] == rows[i][2] or i <= 1
        yield _styled((label, DIM), ("".join(values).rstrip(), PLAIN if same else BOLD))


def _values(v: Vocabulary) -> Sequence[str]:
    """One vocabulary's column, in the order of `_LABELS`."""
    ends = sorted(v.end_tokens)
    added = (" (added)" if v.add_bos else "", " (added)" if v.add_eos else "")
    return (
        _name(v.name),
        v.kind,
        v.pre_tokenizer or "default",
        f"{len(v):,}",
        marker(v, v.bos) + added[0],
        marker(v, v.eos) + added[1],
        marker(v, v.eot),
        " ".join(map(str, ends)) or "none",
        words.count(len(v.probe_ids), "token"),
    )


def _tokens(report: Report, finding: Finding, limit: int | None) -> Iterator[Text]:
    rows = [("id", "target", "draft")]
    rows += [(str(pair.id), *_pieces(pair)) for pair in report.tokens(finding.ids[:limit])]
    for row in _in_columns(rows):
        yield Text(" " * 6 + "".join(row).rstrip())
    if left := finding.n_differing - (len(rows) - 1):
        yield _styled((f"{' ' * 6}and {left:,} more (--all shows them)", DIM))


def _pieces(pair: TokenPair) -> tuple[str, str]:
    ours, theirs = ("no token" if t is None else f"{quoted(t[0])} {t[1]}" for t in (pair.target, pair.draft))
    return ours, theirs


def _verdict(report: Report) -> Text:
    style = _VERDICTS[report.verdict]
    if report.verdict != "mismatch":
        return _styled((one_line(report), style))
    n_errors, n_notes = len(report.errors), len(report.notes)
    rest = f" and {words.count(n_notes, 'note')}" if n_notes else ""
    return _styled((f"tokenizers differ: {words.count(n_errors, 'error')}{rest}", style))


def _in_columns(rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Cells padded to the widest of their column; cells beyond `_WIDEST` stick out rather than be cut."""
    widths = [min(_WIDEST, max(Text(cell).cell_len for cell in column)) for column in zip(*rows, strict=True)]
    for row in rows:
        sized = zip(row, widths, strict=True)
        yield [set_cell_size(cell, max(width, Text(cell).cell_len) + _GAP) for cell, width in sized]


def _styled(*parts: str | tuple[str, Style]) -> Text:
    return Text.assemble(*parts)


def _name(text: str) -> str:
    return quoted(text.encode("utf-8", "surrogateescape"))[1:-1]


def _ascii(line: Text) -> Text:
    return Text(line.plain.encode("ascii", "backslashreplace").decode("ascii"))
