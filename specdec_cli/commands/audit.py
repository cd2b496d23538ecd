"""`specdec audit`: the promise, tested at length on this machine with the user's own files."""

import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specdec_cli.commands.drafting_options import DraftOptions, drafter_names
from specdec_cli.commands.groups import takes_groups
from specdec_cli.commands.options import (
    MODEL,
    SEED,
    LogOpt,
    in_panel,
    loading,
    numbers,
    say,
    stop_waiting,
    waiting,
    whole_numbers,
    words,
    write_log,
)
from specdec_cli.commands.placement_options import PlacementOptions
from specdec_cli.commands.sampling_options import SamplingOptions
from specdec_cli.errors import Interrupted, TextDiffers, UsageError
from specdec_cli.outputs import check_outputs, write_output
from specdec_cli.signals import raise_on_sigterm
from specdec_cli.terminal_guard import guard_terminal

if TYPE_CHECKING:
    from specdec_cli.audit.checks import Audit, Way
    from specdec_cli.bench.measure import Task
    from specdec_cli.generation.pair import Pair
    from specdec_cli.planning.request import PairRequest
    from specdec_cli.presets.resolve import Resolved

_LEAST_ANSWER = 64
_TEXTS_SHARE = 0.5
"""Of the time, if there are distributions to test as well."""

_what = in_panel("What is tested")
_out = in_panel("Output")


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Lists have commas between their parts."""

    drafter: Annotated[
        str | None,
        _what(
            help="Drafters to test, comma-separated: model, ngram ... (default: the draft, if there is one, and ngram)."
        ),
    ] = None
    rules: Annotated[str, _what(help="Verification rules, comma-separated.")] = "coupled,rejection,block"
    k: Annotated[str, _what("-k", "--k", help="Draft lengths, comma-separated.")] = "1,3,7"
    temp: Annotated[str, _what(help="Temperatures, comma-separated.")] = "0,0.7,1"
    tokens: Annotated[int, _what(min=1, help="Tokens to compare with plain decoding, per setting.")] = 2000
    draws: Annotated[int, _what(min=100, help="Draws per position, per setting.")] = 1000
    places: Annotated[int, _what(min=1, help="Positions at which distributions are tested.")] = 3
    prompts: Annotated[
        Path | None, _what(help="Your own prompts: a text file, or JSON lines with kind and prompt.")
    ] = None
    budget: Annotated[float, _what(min=0.1, help="Time limit in minutes, approximate.")] = 5.0


@takes_groups
def audit(
    model: Annotated[str, MODEL],
    *,
    pairing: DraftOptions,
    what: AuditOptions,
    sampling: SamplingOptions,
    placement: PlacementOptions,
    json_file: Annotated[Path | None, _out("--json", help="Write all results as JSON to FILE (- for stdout).")] = None,
    log: LogOpt = None,
) -> None:
    """Test exactness at length: texts against plain decoding's, distributions against the target's.

    Ctrl-C or SIGTERM stops and shows the results so far. Exit code 9 if a text differs from plain decoding's and no
    near tie explains it, or if a distribution is not the target's.
    """
    guard_terminal()
    raise_on_sigterm()
    line = waiting(f"Loading {model} ...")
    from specdec_cli.bench.prompt_set import SHIPPED, read_prompts
    from specdec_cli.bench.tasks import as_tasks, facts_of
    from specdec_cli.generation.pair import open_pair
    from specdec_cli.llama.abort import AbortFlag

    reads = {"MODEL": Path(model), **pairing.reads, "--prompts": what.prompts}
    check_outputs({"--json": json_file, "--log": log}, reads)
    if pairing.draft == "none":
        raise UsageError(
            "--draft none leaves nothing to audit: every text is compared with plain decoding.",
            hint="Leave it out, or use --drafter ngram for n-gram lookup.",
        )
    prompts, lengths = read_prompts(what.prompts or SHIPPED), whole_numbers(what.k, "--k")
    temperatures = numbers(what.temp, "--temp")
    files = pairing.files_for(model)
    write_log(log, *files.paths)
    drafters = _drafters(what.drafter, files)
    text_ways, law_ways = _ways(words(what.rules), drafters, lengths, temperatures)
    request = _request(files, drafters, lengths, sampling, placement)
    line.show(loading(*files.paths))
    with open_pair(request, say=say, abort=AbortFlag()) as pair:
        line.show("Reading the prompts ...")
        _check_drafting(pair, drafters)
        n_each = max(min(_LEAST_ANSWER, what.tokens), -(-what.tokens // len(prompts)))
        tasks = _mixed(as_tasks(pair, prompts, n_each, say))
        auditing, stopped = _tested(pair, request, tasks, n_each, text_ways, law_ways, what)
        more = {
            "tokens": what.tokens,
            "max_tokens": n_each,
            "draws": what.draws,
            "places": what.places,
            "budget_minutes": what.budget,
        }
        facts = facts_of(request, more, sys.argv[1:])
    if stopped is None or auditing.texts or auditing.laws:
        _report(auditing, facts, what.tokens, json_file)
    if stopped is not None:
        raise stopped


def _request(
    files: "Resolved",
    drafters: list[str],
    lengths: list[int],
    sampling: SamplingOptions,
    placement: PlacementOptions,
) -> "PairRequest":
    from specdec_cli.audit.checks import LAW_LENGTHS
    from specdec_cli.planning.drafting import for_several
    from specdec_cli.planning.request import PairRequest

    return PairRequest(
        files.target,
        for_several(files, drafters, max(*lengths, *LAW_LENGTHS)),
        sampling.asked(sampling.over(files.sampling), seed=SEED),
        placement.asked(),
        files.adapters,
    )


def _tested(
    pair: "Pair",
    request: "PairRequest",
    tasks: "Sequence[Task]",
    n_each: int,
    text_ways: "Sequence[Way]",
    law_ways: "Sequence[Way]",
    what: AuditOptions,
) -> "tuple[Audit, Interrupted | None]":
    """Everything, or what there was time for before the budget or a signal ended it; and that signal."""
    from specdec_cli.audit.checks import Audit

    waiting("Timing one answer ...")
    auditing = Audit(pair, request.sampling.params, time.perf_counter)
    began = time.perf_counter()
    text_seconds = 60 * what.budget * (_TEXTS_SHARE if law_ways else 1)
    seconds_each = auditing.seconds_per_answer(tasks[0], n_each) * _answers_a_prompt(text_ways)
    n_prompts = _within(text_seconds, seconds_each, min(len(tasks), -(-what.tokens // n_each)))
    stop_waiting()
    _say_plan(text_ways, law_ways, n_prompts * n_each, n_prompts * seconds_each, what)
    texts = auditing.check_texts(tasks[:n_prompts], text_ways, what.tokens, n_each, began + text_seconds)
    laws = auditing.check_laws(tasks, law_ways, what.draws, what.places, began + 60 * what.budget)
    try:
        _follow("texts", n_prompts * len(text_ways), texts)
        _follow("distributions", what.places * len(law_ways), laws)
    except (KeyboardInterrupt, Interrupted) as error:
        is_begun = auditing.texts or auditing.laws
        say("Stopped; these are the results so far." if is_begun else "Stopped; nothing has been tested yet.")
        return auditing, error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)
    return auditing, None


def _drafters(asked: str | None, files: "Resolved") -> list[str]:
    from specdec_cli.drafters import DRAFTERS, sources

    wanted = drafter_names(asked, [name for name in DRAFTERS if name != "none"])
    if any("model" in sources(name) for name in wanted) and not files.has_model:
        raise UsageError("There is no draft model to test.", hint="Give one with --draft, or use --drafter ngram.")
    own = "model" if files.has_model else files.drafter
    return list(dict.fromkeys(wanted or [*([own] if own != "none" else []), "ngram"]))


def _ways(
    rules: list[str], drafters: list[str], lengths: list[int], temperatures: list[float]
) -> "tuple[list[Way], list[Way]]":
    """Those whose texts must be plain decoding's, and those that only promise the distribution."""
    from specdec_cli.audit.checks import LAW_LENGTHS, Way
    from specdec_cli.generation.rules import RULES

    unknown = [rule for rule in rules if rule not in RULES]
    if unknown or not rules:
        raise UsageError(f"Invalid --rules: {','.join(unknown)!r}.", hint=f"Use one or more of {','.join(RULES)}.")
    if not lengths or min(lengths) < 1:
        raise UsageError("--k takes draft lengths of 1 or more.", hint="Plain decoding is the baseline in any case.")
    if not temperatures or min(temperatures) < 0:
        raise UsageError(
            "--temp takes temperatures of 0 or more.", hint="Give numbers separated by commas, such as 0,0.7,1."
        )
    every = [
        Way(rule, drafter, k, temperature)
        for temperature in temperatures
        for rule in rules
        for drafter in drafters
        for k in dict.fromkeys([*lengths, *LAW_LENGTHS])
    ]
    texts = [way for way in every if way.keeps_text and way.k in lengths]
    return texts, [way for way in every if not way.keeps_text and way.k in LAW_LENGTHS]


def _check_drafting(pair: "Pair", drafters: list[str]) -> None:
    """Nothing can be said of drafts where there are none."""
    from specdec_cli.generation.pair import drafter_for

    for name in drafters:
        found = drafter_for(pair, name, pair.rule, 0.0)
        if found.name == "none":
            raise UsageError(
                f"This pair cannot draft: {found.propose([], 1).off_reason}.",
                hint="Without drafts every text is plain decoding, so there is nothing to test.",
            )


def _mixed(tasks: "Sequence[Task]") -> "list[Task]":
    """The first prompt of every kind, then the second: whatever time is left, it is spent on all kinds."""
    seen: defaultdict[str, int] = defaultdict(int)
    turns = []
    for task in tasks:
        turns.append(seen[task.kind])
        seen[task.kind] += 1
    return [tasks[i] for i in sorted(range(len(tasks)), key=turns.__getitem__)]


def _answers_a_prompt(ways: "Sequence[Way]") -> int:
    return len(ways) + len({way.temperature for way in ways})


def _within(seconds: float, each: float, most: int) -> int:
    """As many as there is time for, one at least."""
    return most if most * each <= seconds else max(1, int(seconds / each))


def _say_plan(
    text_ways: "Sequence[Way]",
    law_ways: "Sequence[Way]",
    fitting: int,
    seconds: float,
    what: AuditOptions,
) -> None:
    if text_ways:
        less = f" (of {what.tokens:,}; raise --budget for more)" if fitting < what.tokens else ""
        say(
            f"Texts: {min(what.tokens, fitting):,} tokens{less} per setting, {len(text_ways)} settings, "
            f"compared with plain decoding; about {seconds / 60:.1f} minutes."
        )
    if law_ways:
        say(
            f"Distributions: {what.draws:,} draws (fewer if time runs out) at {what.places} positions per "
            f"setting, {len(law_ways)} settings, compared with the target's."
        )
    say(f"About {what.budget:g} minutes at most in total. Ctrl-C stops and shows the results so far.")


def _follow(label: str, n: int, work: Iterator[None]) -> None:
    from specdec_cli.ui.steps import Steps
    from specdec_cli.ui.terminal import Terminal

    if n:
        with Steps(n, label, Terminal(sys.stderr, os.environ), say) as steps:
            for _ in work:
                steps.step()


def _report(auditing: "Audit", facts: dict[str, object], tokens: int, json_file: Path | None) -> None:
    from specdec_cli.audit import report as audit_report
    from specdec_cli.ui.clean import printable
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    on_stdout = json_file is not None and str(json_file) == "-"
    if json_file is not None:
        text = json.dumps(audit_report.document(auditing, facts), indent=1) + "\n"
        if on_stdout:
            sys.stdout.write(text)
        else:
            write_output(json_file, text)
            say(f"Written: {json_file}")
    if not on_stdout:
        terminal, right = (
            Terminal(sys.stdout, os.environ),
            "k temp answers tokens ties places overlap shift draws first second",
        )
        tables = (
            (audit_report.TEXT_HEADERS, audit_report.text_table),
            (audit_report.LAW_HEADERS, audit_report.law_table),
        )
        for headers, rows_of in tables:
            if rows := rows_of(auditing):
                write_table(headers, rows, terminal, right=right)
                print()
        for line in audit_report.verdict(auditing, tokens):
            print(printable(line))
    if auditing.bugs:
        raise TextDiffers(
            "A text or a distribution differs from the target's.",
            hint="This is a bug. Please report it with the JSON document (--json).",
        )
