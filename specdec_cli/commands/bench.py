"""`specdec bench`: what drafting is worth on this machine, by kind of text."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.commands.bench_output import compare_benchmarks, report
from specdec_cli.commands.chat import stoppable
from specdec_cli.commands.options import find, in_panel, layers, numbers, quantize, say, whole_numbers, words
from specdec_cli.commands.pull import offer_to_pull
from specdec_cli.commands.tune import MEASURED_SHARE, Tuning, fastest, keep
from specdec_cli.errors import Interrupted, UsageError
from specdec_cli.outputs import check_outputs
from specdec_cli.settings import AUTO
from specdec_cli.signals import raise_on_sigterm
from specdec_cli.terminal_guard import guard_terminal

if TYPE_CHECKING:
    from specdec_cli.bench.measure import Bench, Length, Setting, Task
    from specdec_cli.bench.prompt_set import BenchPrompt
    from specdec_cli.bench.report import Results
    from specdec_cli.generation.pair import Pair
    from specdec_cli.lengths.speedup_model import CostCurve
    from specdec_cli.planning.plan import PairRequest
    from specdec_cli.presets.resolve import Resolved

SEED = 1
USUAL_LENGTHS = (1, 2, 4, 8)
WIDEST_LOOKAHEAD = 31
TUNED_P_MINS = (0.0, 0.5)

_what = in_panel("What is measured")
_how = in_panel("GPU, memory, threads")
_out = in_panel("Output")


def bench(
    model: Annotated[str | None, typer.Argument(help="A preset's name, or the path of the target's GGUF file.")] = None,
    *,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="A.json,B.json",
            help="Measure nothing: show the drafters of one or more benchmarks side by side; of two, also which "
            "differences are beyond noise.",
        ),
    ] = None,
    draft: Annotated[str | None, _what(help="Draft GGUF; a preset brings its own.")] = None,
    drafter: Annotated[
        str | None,
        _what(
            help="Who drafts, with commas: model, ngram ... (the draft, if there is one, and ngram); none is plain "
            "decoding once more."
        ),
    ] = None,
    k: Annotated[
        str | None, _what("-k", "--k", help="Draft lengths, with commas, numbers or auto (1,2,4,8 and the preset's).")
    ] = None,
    temp: Annotated[str | None, _what(help="Temperatures, with commas (0 and the preset's).")] = None,
    p_min: Annotated[
        str | None, _what(help="Least confidence of a draft token, with commas (the preset's, or 0).")
    ] = None,
    n: Annotated[int, _what("-n", min=8, help="Tokens of each answer.")] = 96,
    repeats: Annotated[int, _what(min=1, help="Times everything is measured.")] = 2,
    kinds: Annotated[str | None, _what(help="Kinds of text, with commas (all).")] = None,
    prompts: Annotated[Path | None, _what(help="Your own prompts: a text, or JSON lines with kind and prompt.")] = None,
    ctx_fill: Annotated[str | None, _what(help="Cost of passes at these contexts, too, with commas.")] = None,
    budget: Annotated[float, _what(min=0.1, help="Minutes it may take, about.")] = 10.0,
    tune: Annotated[
        bool,
        _what(
            "--tune",
            help="Find the fastest drafter, lengths, --p-min, threads and --kv-draft, and keep them: run uses them "
            "then. None of these changes what the target says (near ties apart).",
        ),
    ] = False,
    tune_kv: Annotated[
        bool,
        _what(
            "--tune-kv",
            help="As --tune, and try the target's --kv and --flash-attn: only what left the text of every prompt tried "
            "the same is taken, but other texts may still differ from those of an f16 cache.",
        ),
    ] = False,
    ctx: Annotated[int | None, _how(min=0, help="Context in tokens.")] = None,
    kv: Annotated[str, _how(help="Type of the target's cache.")] = "f16",
    kv_draft: Annotated[str, _how(help="Type of the draft's cache.")] = "f16",
    threads: Annotated[int | None, _how(min=1, help="Threads of both models.")] = None,
    ngl: Annotated[str, _how(help="Layers of the target on the GPU.")] = "auto",
    ngl_draft: Annotated[str, _how(help="Layers of the draft on the GPU.")] = "auto",
    json_file: Annotated[Path | None, _out("--json", help="Write everything as JSON to FILE (- for stdout).")] = None,
    md_file: Annotated[Path | None, _out("--md", help="Write verdict and table as Markdown.")] = None,
    plot_file: Annotated[
        Path | None,
        _out("--plot", metavar="FILE.svg|png", help="Draw speedup, acceptance, costs and speed by kind of text."),
    ] = None,
) -> None:
    """Measure plain decoding and drafting by turns, and hold every text against plain decoding's.

    Ctrl-C ends the measuring and shows what there is so far. Exit code 9 if a text is not plain decoding's and no
    near tie explains it.
    """
    outputs = {"json": json_file, "md": md_file}
    compared = {f"--compare {name}": Path(name) for name in words(compare)}
    check_outputs(
        {"--json": json_file, "--md": md_file, "--plot": plot_file},
        {
            "MODEL": Path(model) if model else None,
            "--draft": Path(draft) if draft else None,
            "--prompts": prompts,
            **compared,
        },
    )
    if compare is not None:
        _alone("--compare", {"a model": model, "--draft": draft, "--json": json_file, "--plot": plot_file})
        return compare_benchmarks([Path(name) for name in words(compare)], md_file)
    if model is None:
        raise UsageError("No model was named.", hint="Give a preset's name or a GGUF file.")
    tune = tune or tune_kv
    guard_terminal()
    raise_on_sigterm()
    from specdec_cli.bench.measure import Bench, longest_draft
    from specdec_cli.bench.prompt_set import SHIPPED, choose, read_prompts
    from specdec_cli.decode.sampling import SamplingParams
    from specdec_cli.generation.pair import open_pair
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.planning.plan import PairRequest
    from specdec_cli.presets.resolve import resolve

    if plot_file is not None:
        from specdec_cli.bench.plot import check_form

        check_form(plot_file)
    chosen = choose(read_prompts(prompts or SHIPPED), words(kinds))
    fills = whole_numbers(ctx_fill, "--ctx-fill")
    if draft == "none":
        raise UsageError(
            "--draft none leaves nothing to measure: plain decoding is always measured, beside a drafter.",
            hint="Leave it out, or use --drafter ngram for lookup in the text.",
        )
    if any(not 0 <= value <= 1 for value in numbers(p_min, "--p-min")):
        raise UsageError(f"--p-min cannot be {p_min!r}.", hint="Give numbers from 0 to 1.")
    offer_to_pull(model, draft)
    files = resolve(model, draft, quantize, find, say)
    sampling = files.preset.sampling if files.preset is not None else SamplingParams()
    temperatures = numbers(temp, "--temp") or sorted({sampling.temperature} | (set() if tune else {0.0}))
    ks = _lengths(k) if k is not None else _usual_lengths(files)
    p_mins = numbers(p_min, "--p-min") or _usual_p_mins(files, tune)
    settings = _settings(files, words(drafter), ks, temperatures, p_mins)
    request = PairRequest(
        target=files.target,
        draft=files.draft,
        seed=SEED,
        sampling=replace(sampling, temperature=temperatures[0]),
        gpu_layers=layers(ngl, "--ngl"),
        gpu_layers_draft=layers(ngl_draft, "--ngl-draft"),
        cache_type=kv,
        cache_type_draft=kv_draft,
        n_ctx=ctx,
        threads=threads,
        force=True,
        auto=any(setting.k == AUTO for setting in settings),
        head=files.head,
        **opened_for(files, [setting.drafter for setting in settings], longest_draft(settings)),
    )
    abort, began = AbortFlag(), time.perf_counter()
    with stoppable(abort), open_pair(request, say=say, abort=abort) as pair:
        tasks = as_tasks(pair, chosen, n)
        measuring = Bench(pair, sampling, n, time.perf_counter)
        measuring.check(settings)
        curves = _curves(
            measuring,
            pair,
            tasks,
            [len(tasks[0].ids) + n // 2, *fills],
            min(pair.target.context.max_rows - 1, longest_draft(settings)),
            temperatures[0],
        )
        is_whole = _measure(measuring, tasks, settings, repeats, 60 * budget * (MEASURED_SHARE if tune else 1))
        abort.clear()
        results = _results(measuring, curves, facts_of(request, {"max_tokens": n, "repeats": repeats}))
        profile = None
        if tune and is_whole:
            try:
                profile = fastest(
                    Tuning(pair, sampling, n, abort, began + 60 * budget, tune_kv), measuring, tasks, results
                )
            except (KeyboardInterrupt, Interrupted):
                say("Stopped while tuning: nothing is kept.")
                is_whole = False
    report(results, outputs, plot_file)
    if not is_whole:
        raise Interrupted(signal.SIGINT)
    if profile is not None:
        keep(profile, files, model, draft)
    return None


def _alone(option: str, others: Mapping[str, object]) -> None:
    """Refuse what has no place beside an option that measures nothing."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise UsageError(
            f"{option} cannot be combined with {' and '.join(given)}.",
            hint="Leave out one of the two. Several files of --compare have commas between them.",
        )


def _lengths(text: str) -> "list[Length]":
    """Draft lengths between commas. Raises UsageError."""
    if not words(text):
        raise UsageError("--k needs a length.", hint="Give numbers with commas, or auto.")
    found: list[Length] = [AUTO if word == AUTO else _length(word, text) for word in words(text)]
    return list(dict.fromkeys(found))


def _length(word: str, text: str) -> int:
    if not word.isdecimal():
        raise UsageError(f"--k cannot be {text!r}.", hint="Give whole numbers with commas, such as 1,2,4, or auto.")
    if int(word) < 1:
        raise UsageError("--k needs lengths of 1 or more.", hint="Plain decoding is always measured beside them.")
    return int(word)


def _usual_lengths(files: "Resolved") -> "list[Length]":
    own = files.preset.k if files.preset is not None else None
    return [*sorted({*USUAL_LENGTHS, own or USUAL_LENGTHS[0]}), AUTO]


def opened_for(files: "Resolved", drafters: Iterable[str], longest: int) -> dict[str, Any]:
    """Of a PairRequest: what suits all of these drafters, with drafts of at most `longest` tokens.

    MTP layers are read with the weights. Lookahead needs more sequences; its passes are wide, and texts are compared at
    the widths of passes.
    """
    from specdec_cli.drafters import sources

    has_trees = any("lookahead" in sources(name) for name in drafters)
    return {
        "drafter": "mtp" if files.drafter == "mtp" else "none",
        "k": max(longest, WIDEST_LOOKAHEAD if has_trees else 0),
        "trees": has_trees,
    }


def _usual_p_mins(files: "Resolved", tune: bool) -> list[float]:
    own = files.preset.p_min or 0.0 if files.preset is not None else 0.0
    return sorted({own, *TUNED_P_MINS}) if tune else [own]


def _settings(
    files: "Resolved", drafters: list[str], ks: "list[Length]", temperatures: list[float], p_mins: list[float]
) -> "list[Setting]":
    """Every combination. Who needs no draft model has no use for --p-min, and, unless asked for, is measured only with
    the longest drafts, which cost it nothing. Where lengths are chosen, lookup takes turns with a draft model, as in
    `run`."""
    from specdec_cli.bench.measure import Setting
    from specdec_cli.drafters import DRAFTERS, HEED_P_MIN, sources, with_lookup
    from specdec_cli.presets.resolve import DRAFTER_NAMES

    unknown = [name for name in drafters if not all(source in DRAFTERS for source in sources(name))]
    if unknown:
        raise UsageError(
            f"--drafter cannot be {unknown[0]!r}.",
            hint=f"Use one or more of {', '.join(DRAFTERS)}, with commas, or ngram+model for both by turns.",
        )
    found = []
    for temperature in temperatures:
        for name in drafters or [*([files.drafter] if files.drafter != "none" else []), "ngram"]:
            if name == "none":
                found.append(Setting(name, 0, temperature))
            elif name in DRAFTER_NAMES:
                found += [Setting(name, k, temperature) for k in (ks if drafters else _longest(ks))]
            else:
                # What decides on lengths by itself needs no second threshold.
                own_p_mins = p_mins if name in HEED_P_MIN else [0.0]
                found += [Setting(name, k, temperature, p) for p in own_p_mins for k in ks if k != AUTO]
                if AUTO in ks:
                    found.append(Setting(name if drafters else with_lookup(name), AUTO, temperature, own_p_mins[0]))
    return list(dict.fromkeys(found))


def _longest(ks: "list[Length]") -> "list[Length]":
    numbers = [k for k in ks if isinstance(k, int)]
    return [*([max(numbers)] if numbers else []), *(k for k in ks if k == AUTO)]


def as_tasks(pair: "Pair", prompts: "Sequence[BenchPrompt]", n: int) -> "list[Task]":
    """The prompts as ids, in the model's chat format if it has one; a chat's earlier turns are answered plainly."""
    from specdec_cli.bench.measure import Task, answered
    from specdec_cli.generation.encode import text_ids
    from specdec_cli.generation.prompts import conversation

    tasks, limit = [], pair.target.session.n_ctx
    for prompt in prompts:
        talk = conversation(pair.target.model, system=None, thinking=None, now=datetime.now)
        if talk is None:
            ids = text_ids(pair.target.model, "\n\n".join(prompt.turns))
        else:
            for turn in prompt.turns[:-1]:
                answer = answered(pair, talk.ask(turn), n)
                talk.answered(answer, b"".join(map(pair.target.model.token_bytes, answer)).decode("utf-8", "replace"))
            ids = talk.ask(prompt.turns[-1])
        if len(ids) + n >= limit:
            say(f"A prompt of kind {prompt.kind} is left out: its {len(ids)} tokens and {n} more do not fit {limit}.")
        else:
            tasks.append(Task(prompt.kind, tuple(ids)))
    if not tasks:
        raise UsageError("No prompt fits the context.", hint="Use a larger --ctx, a smaller -n or shorter prompts.")
    return tasks


def _curves(
    measuring: "Bench", pair: "Pair", tasks: "Sequence[Task]", contexts: list[int], k: int, temperature: float
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
        say(f"Measuring what passes of 1 to {k + 1} tokens cost after {context} tokens ...")
        curves.append(measuring.cost_curve(text, context, k + 1, temperature))
    return curves


def _measure(
    measuring: "Bench", tasks: "Sequence[Task]", settings: "Sequence[Setting]", repeats: int, budget: float
) -> bool:
    """Within the budget in seconds, after saying what is going to be measured. False if Ctrl-C ended it."""
    from specdec_cli.bench.measure import within_budget
    from specdec_cli.ui.steps import Steps
    from specdec_cli.ui.terminal import Terminal

    seconds_per_run = measuring.warm_up(tasks[0], settings)
    chosen, repeats = within_budget(tasks, settings, repeats, seconds_per_run, budget)
    n_runs = measuring.n_runs(chosen, settings, repeats)
    kinds = dict.fromkeys(task.kind for task in chosen)
    say(
        f"{len(chosen)} prompts of {len(kinds)} kinds, {len(settings)} settings, {repeats} times: {n_runs} answers, "
        f"about {n_runs * seconds_per_run / 60:.1f} minutes. Ctrl-C shows what there is so far."
    )
    n_done = 0
    try:
        with Steps(n_runs, "measuring", Terminal(sys.stderr, os.environ), say) as steps:
            for _ in measuring.measure(chosen, settings, repeats):
                steps.step()
                n_done += 1
    except (KeyboardInterrupt, Interrupted):
        say(f"Stopped after {n_done} of {n_runs} answers: these are the results so far.")
        return False
    return True


def _results(measuring: "Bench", curves: "Sequence[CostCurve]", facts: dict[str, Any]) -> "Results":
    from specdec_cli.bench.report import Results

    if not measuring.cells:
        say("Nothing was measured yet.")
        raise Interrupted(signal.SIGINT)
    return Results(measuring.cells, tuple(curves), facts)


def facts_of(request: "PairRequest", more: dict[str, Any]) -> dict[str, Any]:
    """Everything that a figure depends on."""
    from dataclasses import asdict

    from specdec_cli.generation.json_document import plain, versions
    from specdec_cli.llama.devices import gpu_devices
    from specdec_cli.planning.machine import available_memory, processor, usable_cores

    machine = {
        "cpu": processor(),
        "cores": usable_cores(),
        "free_memory_bytes": available_memory(),
        "gpus": [device.name for device in gpu_devices()],
    }
    files = [("target", request.target), ("draft", request.draft), ("heads", request.head)]
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": machine,
        "versions": versions(),
        "files": [_file(role, path) for role, path in files if path is not None],
        "command": shlex.join(["specdec", *sys.argv[1:]]),
        "settings": plain({**asdict(request), **more}),
    }


def _file(role: str, path: Path) -> dict[str, Any]:
    from specdec_cli.presets.derive import file_sha256

    real = path.resolve()
    known = len(real.name) == 64  # a blob of the Hub's cache is called by its hash
    sha256 = real.name if known else file_sha256(real)
    return {"role": role, "name": path.name, "bytes": real.stat().st_size, "sha256": sha256}
