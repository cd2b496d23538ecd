"""`specdec replay`: estimates other draft lengths from a recorded run."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from specdec_cli.commands.options import JsonOpt, whole_numbers


def replay(
    trace: Annotated[Path, typer.Argument(help="A trace that run --jsonl wrote.")],
    *,
    k: Annotated[
        str | None,
        typer.Option("-k", "--k", help="Draft lengths, comma-separated (default: all up to the longest recorded)."),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(help="Pass costs from a file that bench --json wrote (default: the trace's own timings)."),
    ] = None,
    as_json: JsonOpt = False,
) -> None:
    """Estimate from a recorded run, without the models, what other draft lengths would have given."""
    from specdec_cli.bench.compare import read_document
    from specdec_cli.bench.replay import curve_of, read_trace, what_if
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    recording = read_trace(trace)
    lengths = whole_numbers(k, "--k") or list(range(1, len(recording.chances) + 1))
    found = what_if(recording, lengths, curve_of(read_document(curve)) if curve is not None else None)
    if as_json:
        print(json.dumps({"recorded": asdict(recording), "what_if": [asdict(one) for one in found]}))
        return
    rows = [
        (
            str(one.k),
            f"{one.tokens_per_pass:.2f}",
            f"{one.speed:.1f}",
            f"{one.speedup:.2f}",
            "yes" if one.is_measured else "no",
        )
        for one in found
    ]
    headers = ("k", "per pass", "tok/s", "speedup", "measured")
    write_table(headers, rows, Terminal(sys.stdout, os.environ), right="k per pass tok/s speedup")
    best = max(found, key=lambda one: one.speedup)
    chances = ", ".join(f"{chance:.0%}" for chance in recording.chances)
    print(f"\nRecorded: {recording.speed:.1f} tokens/s; acceptance by position: {chances}.")
    if recording.estimated:
        print(
            f"Recorded with -k auto: {recording.estimated:.0%} of the draft tokens were not verified, so "
            f"their acceptance is estimated from confidence; {recording.undrafted:.0%} of the passes had "
            "no draft and do not count."
        )
    print(
        f"Best: -k {best.k}, {best.speedup:.2f} times plain decoding."
        if best.speedup > 1
        else f"No length pays: the best, -k {best.k}, gives {best.speedup:.2f} times plain decoding."
    )
