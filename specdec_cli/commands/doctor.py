"""`specdec doctor`: what is wrong here, and the one thing to do next."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.commands.chat import stoppable
from specdec_cli.commands.completion import models
from specdec_cli.commands.drafting_options import DraftOptions
from specdec_cli.commands.groups import takes_groups
from specdec_cli.commands.options import SEED, JsonOpt, find, quantize, waiting
from specdec_cli.commands.placement_options import PlacementOptions
from specdec_cli.errors import NotHere
from specdec_cli.signals import raise_on_sigterm
from specdec_cli.terminal_guard import guard_terminal

if TYPE_CHECKING:
    from specdec_cli.doctor.checkup import Check, Finding
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
    pairing: DraftOptions,
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
        for finding in _findings(model, pairing, placement, line):
            line.hide()
            found.append(finding)
            if not as_json:
                screen.write(finding.name, finding.verdict, finding.text, finding.command)
    otherwise = f"specdec run {model}" if model is not None else "specdec doctor demo"
    step = next_command(found, otherwise)
    if as_json:
        print(json.dumps(document(found, step)))
    else:
        screen.end(_summary(found), step)
    if has_problem(found):
        raise typer.Exit(EXIT_CODE)


def _summary(found: "Sequence[Finding]") -> str:
    counts = [(sum(finding.verdict == verdict for finding in found), verdict) for verdict in ("problem", "warning")]
    told = [f"{n} {verdict}{'s' * (n > 1)}" for n, verdict in counts if n]
    return f"{' and '.join(told)}." if told else "Nothing is wrong."


def _findings(
    model: str | None,
    pairing: DraftOptions,
    placement: PlacementOptions,
    line: "Waiting",
) -> "Iterator[Finding]":
    """One after another, as they are found."""
    from specdec_cli.doctor.machine import machine_checks
    from specdec_cli.doctor.network import hub_check

    yield from _by_turns([*machine_checks(), hub_check(offline=pairing.offline)], line)
    if model is None:
        return
    from specdec_cli.doctor.checkup import Finding
    from specdec_cli.doctor.measured import Measured
    from specdec_cli.doctor.pair import Patient, pair_checks
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.presets.resolve import named_preset, resolve

    try:
        files = resolve(model, named_preset(model), pairing.draft, quantize, find, line.say)
    except NotHere as error:
        yield Finding("files", "problem", str(error), f"specdec pull {model}")
        return
    patient = Patient(model, pairing.draft, files, _request(files, placement))
    yield from _by_turns(pair_checks(patient), line)
    abort = AbortFlag()
    measured = Measured(patient, abort)
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
