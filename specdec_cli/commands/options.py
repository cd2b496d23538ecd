"""Options that several commands share, written once."""

import sys
from typing import Annotated

import typer

JsonOpt = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]


def say(text: str) -> None:
    """A note for the user: on stderr, so that stdout stays the model's."""
    print(text, file=sys.stderr, flush=True)
