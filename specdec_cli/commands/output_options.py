"""Output options of `specdec run`."""

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specdec_cli.commands.options import LogOpt, in_panel, say
from specdec_cli.errors import UsageError
from specdec_cli.outputs import ByOption, open_output

if TYPE_CHECKING:
    from specdec_cli.generation.trace import Trace
    from specdec_cli.ui.view import Header, View

_output = in_panel("Output")


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """One view on stdout, and files beside it."""

    plain: Annotated[bool, _output("--plain", help="Stream plain text, without the dashboard.")] = False
    verbose: Annotated[bool, _output("-v", "--verbose", help="Show all statistics after an answer.")] = False
    compare: Annotated[
        bool, _output("--compare", help="Afterwards decode the same prompt plainly, and put the two side by side.")
    ] = False
    as_json: Annotated[bool, _output("--json", help="Print one JSON document on stdout, and nothing else.")] = False
    jsonl: Annotated[Path | None, _output(help="Write a trace to this file, one JSON line per round.")] = None
    logprobs: Annotated[
        int | None,
        _output(min=0, help="Add log-probabilities of each token and of the N most likely ones to --json or --jsonl."),
    ] = None
    log: LogOpt = None

    @property
    def writes(self) -> ByOption:
        return {"--jsonl": self.jsonl, "--log": self.log}

    def check(self, *, is_chat: bool) -> None:
        """Raises UsageError for what has no place in the output."""
        if self.as_json and is_chat:
            raise UsageError("--json needs a prompt.", hint="Give one as an argument, with -f, or through a pipe.")
        if self.compare and is_chat:
            raise UsageError("--compare needs a prompt.", hint="Give one as an argument, with -f, or through a pipe.")
        if self.logprobs is not None and not self.as_json and self.jsonl is None:
            raise UsageError("--logprobs needs --json or --jsonl.", hint="Add --json, or --jsonl FILE.")

    @contextmanager
    def trace(self) -> Iterator["Trace"]:
        """The trace, written to a file if there is one. Raises UsageError."""
        from specdec_cli.generation.trace import Trace

        if self.jsonl is None:
            yield Trace(None, say)
            return
        with open_output(self.jsonl) as file:
            yield Trace(file, say)

    def view_opener(self) -> Callable[["Header"], "View"]:
        from specdec_cli.ui.make import open_view
        from specdec_cli.ui.silent import SilentView

        if self.as_json:
            return lambda _: SilentView(say)
        n_opened = itertools.count()
        return lambda header: open_view(
            header,
            plain=self.plain,
            stdout=sys.stdout,
            stderr=sys.stderr,
            environ=os.environ,
            verbose=self.verbose,
            introduce=next(n_opened) == 0,  # a chat opens one for each answer
        )
