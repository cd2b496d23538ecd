"""Draws a recorded run as an SVG, with the code that draws the live view.

python -m scripts.checks.screenshot trace.jsonl docs/run.svg
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from specdec_cli.decode.stats import RunStats
from specdec_cli.decode.text_stream import Span
from specdec_cli.decode.types import Round
from specdec_cli.ui.dashboard import text_styles
from specdec_cli.ui.paint import DIM, Line, Palette
from specdec_cli.ui.panel import panel
from specdec_cli.ui.race_files import svg
from specdec_cli.ui.summary import introduction
from specdec_cli.ui.view import Header
from specdec_cli.ui.wrap import Wrapper, wrapped

ROUND_FIELDS = ("n_accepted", "own", "k", "draft_seconds", "verify_seconds", "seconds", "finish", "off_reason")


def main() -> None:
    options = _parser().parse_args()
    with options.trace.open(encoding="utf-8") as lines:
        content = screen(read_trace(lines), columns=options.columns, rows=options.rows)
    options.svg.write_text(svg(content, options.columns, options.title), encoding="utf-8")


def read_trace(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in lines if line.strip())


def screen(events: Iterable[dict[str, Any]], *, columns: int, rows: int) -> list[Line]:
    """The window after the last event: what is told first, the last rows of the answer, and the panel."""
    palette = Palette.of(color=True, utf8=True)
    styles = text_styles(palette)
    text, stats, header = Wrapper(columns), RunStats(), None
    for event in events:
        if event["type"] == "header":
            header = Header.from_fields(event["header"])
        else:
            if event["type"] == "round":
                stats.add(_round(event))
            for span in (Span(*fields) for fields in event["spans"]):
                text.push(span.text, styles[span.origin])
    if header is None:
        raise SystemExit("The trace has no header line.")
    figures = panel(header, stats, palette, columns, rows)
    above = [row for told in introduction(header, palette.draft_name) for row in wrapped(told, DIM, columns)]
    answer = [*above, *text.rows, *([text.tail] if text.tail else [])]
    return [*answer[-(rows - 1 - len(figures)) :], *figures]


def _round(event: dict[str, Any]) -> Round:
    return Round(drafted=tuple(event["drafted"]), **{name: event[name] for name in ROUND_FIELDS})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Draw a recorded run as an SVG.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--rows", type=int, default=28)
    parser.add_argument("--title", default="specdec run")
    return parser


if __name__ == "__main__":
    main()
