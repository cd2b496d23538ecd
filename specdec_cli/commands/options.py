"""Options that several commands share, written once."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from specdec_cli.ui.clean import printable

JsonOpt = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]


def say(text: str) -> None:
    """A note for the user: on stderr, so that stdout stays the model's."""
    print(printable(text), file=sys.stderr, flush=True)


def quantize(source: Path, target: Path, file_type: str) -> None:
    """llama.cpp's quantiser on all cores, for presets that make their models here."""
    from specdec_cli.llama.quantize import quantize as write
    from specdec_cli.machine import usable_cores

    write(source, target, file_type, threads=usable_cores())
