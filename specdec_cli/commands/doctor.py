"""`specdec doctor`: what is wrong here, and the one thing to do next."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.commands.chat import stoppable
from specdec_cli.commands.completion import drafts, models
from specdec_cli.commands.groups import takes_groups
from specdec_cli.commands.options import SEED, JsonOpt, find, quantize, waiting
from specdec_cli.commands.placement_options import PlacementOptions
from specdec_cli.errors import ModelError, NotHere
from specdec_cli.signals import raise_on_sigterm
from specdec_cli.terminal_guard import guard_terminal

if TYPE_CHECKING:
    from specdec_cli.doctor.checkup import Check, Finding
    from specdec_cli.doctor.pair import Subject
    from specdec_cli.planning.request import PairRequest
    from specdec_cli.presets.resolve import Resolved
    from specdec_cli.ui.waiting import Waiting

EXIT_CODE = 11
"""Something is wrong."""


@takes_groups
def doctor(
    model: Annotated[
        str | None,
        typer.Argument(help="Also check this pair: a preset, or the target's GGUF file.", autocompletion=models),
    ] = None,
    *,
    draft: Annotated[
        str | None, typer.Option(help="The pair's draft, as in run. A preset has its own.", autocompletion=drafts)
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the Hub.")] = False,
    placement: PlacementOptions,
    as_json: JsonOpt = False,
) -> None:
    """Check the build, the machine, the Hub and a pair; end with the one thing to do next.

    With MODEL, also the files, the tokenizers, what passes and draft tokens cost in ten seconds, and what is accepted
    of three short answers. Every check has a time limit. Exit code 11 if there is a problem; warnings are none.
    """
    guard_terminal()
    raise_on_sigterm()
    line = waiting("Checking llama.cpp ...")
    from specdec_cli.doctor.checkup import document, has_problem, next_command
    from specdec_cli.ui.findings import Findings
    from specdec_cli.ui.terminal import Terminal

    found: list[Finding] = []
    screen = Findings(Terminal(sys.stdout, os.environ))
    with line:
        for finding in _findings(model, draft, placement, line, offline=offline):
            line.hide()
            found.append(finding)
            if not as_json:
                screen.write(finding.name, finding.verdict, finding.text, finding.command)
    step = next_command(found, _use(model, draft))
    if as_json:
        print(json.dumps(document(found, step)))
    else:
        screen.end(_summary(found), step)
    if has_problem(found):
        raise typer.Exit(EXIT_CODE)


def _use(model: str | None, draft: str | None) -> str:
    """The next step where nothing is wrong."""
    if model is None:
        return "specdec doctor demo"
    return shlex.join(["specdec", "run", model, *(["--draft", draft] if draft is not None else [])])


def _summary(found: "Sequence[Finding]") -> str:
    counts = [(sum(finding.verdict == verdict for finding in found), verdict) for verdict in ("problem", "warning")]
    told = [f"{n} {verdict}{'s' * (n > 1)}" for n, verdict in counts if n]
    return f"{' and '.join(told)}." if told else "Nothing is wrong."


def _findings(
    model: str | None, draft: str | None, placement: PlacementOptions, line: "Waiting", *, offline: bool
) -> "Iterator[Finding]":
    """One after another, as they are found. Raises UsageError, before the first, for a name that nothing has."""
    from specdec_cli.doctor.checkup import Finding, failed
    from specdec_cli.doctor.machine import machine_checks
    from specdec_cli.doctor.network import hub_check
    from specdec_cli.doctor.pair import Subject
    from specdec_cli.presets.resolve import named_preset, resolve

    preset, missing = None, None
    try:
        preset = named_preset(model) if model is not None else None
    except NotHere as error:
        missing = error
    yield from _by_turns([*machine_checks(), hub_check(offline=offline)], line)
    if model is None:
        return
    try:
        if missing is not None:
            raise missing
        files = resolve(model, preset, draft, quantize, find, line.say)
    except NotHere as error:
        pull = ["specdec", "pull", *(["--target"] if preset is None else []), model]
        yield Finding("files", "problem", str(error), shlex.join(pull))
        return
    except ModelError as error:  # one that cannot be made here
        install = re.search(r"pip install [^()]*", error.hint or "")
        yield failed("files", error, install[0].strip() if install is not None else None)
        return
    yield from _of_pair(Subject(model, draft, files, _request(files, placement)), line)


def _of_pair(subject: "Subject", line: "Waiting") -> "Iterator[Finding]":
    from specdec_cli.doctor.measured import Measured
    from specdec_cli.doctor.pair import pair_checks
    from specdec_cli.llama.abort import AbortFlag

    yield from _by_turns(pair_checks(subject), line)
    abort = AbortFlag()
    measured = Measured(subject, abort)
    try:
        with stoppable(abort):
            yield from _by_turns(measured.checks(), line)
    finally:
        measured.close()


def _request(files: "Resolved", placement: PlacementOptions) -> "PairRequest":
    """The pair as it runs, with drafts of as many tokens as are timed, or as its preset suggests."""
    from specdec_cli.doctor.costs import WIDTHS
    from specdec_cli.planning.drafting import for_several
    from specdec_cli.planning.request import PairRequest, Sampling

    drafting = for_several(files, [files.drafter], max(WIDTHS) - 1)
    return PairRequest(files.target, drafting, Sampling(files.sampling, seed=SEED), placement.asked())


def _by_turns(checks: "Sequence[Check]", line: "Waiting") -> "Iterator[Finding]":
    from specdec_cli.doctor.checkup import found_by

    for check in checks:
        line.show(f"Checking {check.about} ...")
        yield found_by(check)
