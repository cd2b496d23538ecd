"""`specdec bench`: what drafting is worth on this machine, by kind of text."""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.commands.bench_options import MeasureOptions, ResultOptions
from specdec_cli.commands.bench_output import compare_benchmarks, report
from specdec_cli.commands.chat import stoppable
from specdec_cli.commands.drafting_options import DraftOptions
from specdec_cli.commands.groups import takes_groups
from specdec_cli.commands.options import MODEL, SEED, LogOpt, loading, say, waiting, words, write_log
from specdec_cli.commands.placement_options import PlacementOptions
from specdec_cli.commands.sampling_options import SamplingOptions
from specdec_cli.commands.tune import MEASURED_SHARE, Tuning, fastest, keep
from specdec_cli.errors import Interrupted, UsageError
from specdec_cli.outputs import check_outputs
from specdec_cli.settings import AUTO
from specdec_cli.signals import raise_on_sigterm
from specdec_cli.terminal_guard import guard_terminal

if TYPE_CHECKING:
    from specdec_cli.bench.measure import Bench, Extent, Setting, Task
    from specdec_cli.bench.prompt_set import BenchPrompt
    from specdec_cli.bench.report import Results
    from specdec_cli.decode.sampling import SamplingParams
    from specdec_cli.generation.pair import Pair
    from specdec_cli.lengths.speedup_model import CostCurve
    from specdec_cli.planning.profile import Profile
    from specdec_cli.planning.request import PairRequest
    from specdec_cli.presets.resolve import Resolved


_CURVES_SHARE = 0.3
"""Of the budget, after which what passes cost is measured only as often as it must be."""


@takes_groups
def bench(
    model: Annotated[
        str | None,
        MODEL,
    ] = None,
    *,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="A.json,B.json",
            help="Measure nothing; show earlier results (--json files) side by side. With two, also show which "
            "differences exceed the noise.",
        ),
    ] = None,
    pairing: DraftOptions,
    what: MeasureOptions,
    sampling: SamplingOptions,
    placement: PlacementOptions,
    results: ResultOptions,
    log: LogOpt = None,
) -> None:
    """Measure drafting against plain decoding, alternately, and compare every text with plain decoding's.

    Ctrl-C stops and shows the results so far. Exit code 9 if a text differs from plain decoding's and no near tie
    explains it.
    """
    compared = {f"--compare {name}": Path(name) for name in words(compare)}
    reads = {"MODEL": Path(model) if model else None, **pairing.reads, "--prompts": what.prompts, **compared}
    check_outputs({**results.writes, "--log": log}, reads)
    results.check()
    if compare is not None:
        others = {"--draft": pairing.draft, "--json": results.json_file, "--plot": results.plot_file}
        _alone("--compare", {"a model": model, **others})
        compare_benchmarks([Path(name) for name in words(compare)], results.md_file)
        return
    if model is None:
        raise UsageError("No model given.", hint="Give a preset or a GGUF file.")
    guard_terminal()
    raise_on_sigterm()
    waiting(f"Loading {model} ...")
    if pairing.draft == "none":
        raise UsageError(
            "--draft none leaves nothing to measure: plain decoding is measured in any case, next to a drafter.",
            hint="Leave it out, or use --drafter ngram for n-gram lookup.",
        )
    prompts, wanted, fills = what.chosen_prompts(), what.wanted(), what.fills()
    files = pairing.files_for(model)
    write_log(log, *files.paths)
    from specdec_cli.bench.grid import settings_for
    from specdec_cli.bench.report import Named

    params = sampling.over(files.sampling)
    settings = settings_for(files, wanted, params.temperature)
    request = _request(files, settings, sampling, placement)
    found, profile, is_whole = _measured(request, params, prompts, settings, fills, what)
    found = replace(found, named=Named(model, pairing.draft, files.drafter))
    report(found, {"json": results.json_file, "md": results.md_file}, results.plot_file)
    if not is_whole:
        raise Interrupted(signal.SIGINT)
    if profile is not None:
        keep(profile, files, model, pairing.draft)


def _request(
    files: "Resolved", settings: "Sequence[Setting]", sampling: SamplingOptions, placement: PlacementOptions
) -> "PairRequest":
    """What suits all settings at once."""
    from specdec_cli.bench.measure import longest_draft
    from specdec_cli.planning.drafting import for_several
    from specdec_cli.planning.request import PairRequest

    auto = any(setting.k == AUTO for setting in settings)
    return PairRequest(
        files.target,
        for_several(files, [setting.drafter for setting in settings], longest_draft(settings), auto=auto),
        sampling.asked(sampling.over(files.sampling, settings[0].temperature), seed=SEED),
        placement.asked(),
        files.adapters,
    )


def _measured(
    request: "PairRequest",
    params: "SamplingParams",
    prompts: "Sequence[BenchPrompt]",
    settings: "Sequence[Setting]",
    fills: list[int],
    what: MeasureOptions,
) -> "tuple[Results, Profile | None, bool]":
    """What was measured, the fastest way if that was to be found, and whether nothing broke it off."""
    from specdec_cli.bench.measure import Bench, Extent, longest_draft
    from specdec_cli.bench.tasks import as_tasks, facts_of
    from specdec_cli.generation.pair import open_pair
    from specdec_cli.llama.abort import AbortFlag

    abort, began = AbortFlag(), time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(stoppable(abort))
        with waiting() as line:
            line.show(loading(request.target, request.drafting.draft))
            pair = stack.enter_context(open_pair(request, say=line.say, abort=abort))
            line.show("Reading the prompts ...")
            tasks = as_tasks(pair, prompts, what.n, line.say)
        measuring = Bench(pair, params, what.n, time.perf_counter)
        measuring.check(settings)
        contexts = [len(tasks[0].ids) + what.n // 2, *fills]
        widest = min(pair.target.context.max_rows - 1, longest_draft(settings))
        seconds = 60 * what.budget
        share = MEASURED_SHARE if what.tunes else 1
        late = began + _CURVES_SHARE * seconds
        curves = _curves(measuring, pair, tasks, contexts, widest, settings[0].temperature, late)
        is_whole, cut = _measure(measuring, Extent(tasks, what.repeats, what.n), settings, began + seconds * share)
        abort.clear()
        facts = facts_of(request, {"max_tokens": what.n, "repeats": what.repeats}, sys.argv[1:])
        if cut:
            facts["cut"] = f"To keep the budget of {what.budget:g} minutes, {cut}."
        results = _results(measuring, curves, facts)
        if not (what.tunes and is_whole):
            return results, None, is_whole
        try:
            tuning = Tuning(pair, params, what.n, abort, began + seconds, what.tune_kv)
            return results, fastest(tuning, measuring, tasks, results), True
        except (KeyboardInterrupt, Interrupted):
            say("Stopped while tuning; nothing was saved.")
            return results, None, False


def _alone(option: str, others: Mapping[str, object]) -> None:
    """Refuse what has no place beside an option that measures nothing."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise UsageError(
            f"{option} cannot be combined with {' or '.join(given)}.",
            hint="Leave out one of the two. Separate several --compare files with commas.",
        )


def _curves(
    measuring: "Bench",
    pair: "Pair",
    tasks: "Sequence[Task]",
    contexts: list[int],
    k: int,
    temperature: float,
    late: float,
) -> "list[CostCurve]":
    """What passes cost at each context, the one that the runs have first."""
    text = [token for task in tasks for token in task.ids]
    curves = []
    for context in contexts:
        if not 0 < context <= pair.target.session.n_ctx - k - 10:
            raise UsageError(
                f"--ctx-fill {context} does not fit a context of {pair.target.session.n_ctx}.",
                hint="Use a larger --ctx.",
            )
        say(f"Timing passes of 1 to {k + 1} tokens at a context of {context} tokens ...")
        curves.append(measuring.cost_curve(text, context, k + 1, temperature, deadline=late))
    return curves


def _measure(
    measuring: "Bench", whole: "Extent", settings: "Sequence[Setting]", deadline: float
) -> tuple[bool, str | None]:
    """Until a time of the clock, after saying what is going to be measured.

    Returns False if Ctrl-C ended it, and what was cut for lack of time.
    """
    from specdec_cli.bench.measure import within_budget
    from specdec_cli.ui import words
    from specdec_cli.ui.steps import Steps
    from specdec_cli.ui.terminal import Terminal

    with waiting() as line:
        line.show("Warming up: every setting once ...")
        seconds_per_run = measuring.warm_up(whole.tasks[0], settings)
    chosen = within_budget(whole, settings, seconds_per_run, deadline - time.perf_counter())
    n_runs, kinds = measuring.n_runs(chosen, settings), {task.kind for task in chosen.tasks}
    seconds = n_runs * seconds_per_run * chosen.n_tokens / whole.n_tokens
    counts = (
        f"{words.count(len(chosen.tasks), 'prompt')} of {words.count(len(kinds), 'kind')}",
        words.count(len(settings), "setting"),
        words.count(chosen.repeats, "repeat"),
    )
    say(
        f"{' x '.join(counts)}: {words.count(n_runs, 'answer')}, about {seconds / 60:.1f} minutes. "
        "Ctrl-C stops and shows the results so far."
    )
    n_done = 0
    try:
        with Steps(n_runs, "measuring", Terminal(sys.stderr, os.environ), say) as steps:
            for _ in measuring.measure(chosen, settings, deadline):
                steps.step()
                n_done += 1
    except (KeyboardInterrupt, Interrupted):
        say(f"Stopped after {n_done} of {n_runs} answers; these are the results so far.")
        return False, None
    return True, _cut(whole, chosen, n_done, n_runs)


def _cut(whole: "Extent", chosen: "Extent", n_done: int, n_runs: int) -> str | None:
    """What was left out, in words."""
    kinds = [len({task.kind for task in extent.tasks}) for extent in (chosen, whole)]
    parts = [
        f"{kinds[0]} of {kinds[1]} kinds of text were measured" if kinds[0] < kinds[1] else "",
        f"{len(chosen.tasks)} of {len(whole.tasks)} prompts" if len(chosen.tasks) < len(whole.tasks) else "",
        f"{chosen.repeats} of {whole.repeats} repeats" if chosen.repeats < whole.repeats else "",
        f"answers had {chosen.n_tokens} instead of {whole.n_tokens} tokens" if chosen.n_tokens < whole.n_tokens else "",
        f"{n_done} of {n_runs} answers were written" if n_done < n_runs else "",
    ]
    return ", ".join(part for part in parts if part) or None


def _results(measuring: "Bench", curves: "Sequence[CostCurve]", facts: dict[str, Any]) -> "Results":
    from specdec_cli.bench.report import Results

    if not measuring.cells:
        say("Nothing has been measured yet.")
        raise Interrupted(signal.SIGINT)
    return Results(measuring.cells, tuple(curves), facts)
