"""`specdec audit`: the promise, tested at length on this machine with the user's own files."""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.commands.bench import SEED, as_tasks, facts_of, opened_for
from specdec_cli.commands.options import find, in_panel, layers, numbers, quantize, say, whole_numbers, words
from specdec_cli.commands.pull import offer_to_pull
from specdec_cli.errors import TextDiffers, UsageError
from specdec_cli.outputs import check_outputs, write_output
from specdec_cli.signals import raise_on_sigterm
from specdec_cli.terminal_guard import guard_terminal

if TYPE_CHECKING:
    from specdec_cli.audit.checks import Audit, Way
    from specdec_cli.bench.measure import Task
    from specdec_cli.generation.pair import Pair
    from specdec_cli.presets.resolve import Resolved

_LEAST_ANSWER = 64
_TEXTS_SHARE = 0.5
"""Of the time, if there are distributions to test as well."""

_what = in_panel("What is tested")
_how = in_panel("GPU, memory, threads")
_out = in_panel("Output")


def audit(
    model: Annotated[str, typer.Argument(help="A preset's name, or the path of the target's GGUF file.")],
    *,
    draft: Annotated[str | None, _what(help="Whatever run takes; a preset brings its own.")] = None,
    drafter: Annotated[
        str | None, _what(help="Who drafts, with commas: model, ngram ... (the draft, if there is one, and ngram).")
    ] = None,
    rules: Annotated[str, _what(help="Rules of verification, with commas.")] = "coupled,rejection,block",
    k: Annotated[str, _what("-k", "--k", help="Draft lengths, with commas.")] = "1,3,7",
    temp: Annotated[str, _what(help="Temperatures, with commas.")] = "0,0.7,1",
    tokens: Annotated[int, _what(min=1, help="Tokens compared with plain decoding in every way.")] = 2000,
    draws: Annotated[int, _what(min=100, help="Draws of each place of a text, in every way.")] = 1000,
    places: Annotated[int, _what(min=1, help="Places of texts at which distributions are tested.")] = 3,
    prompts: Annotated[Path | None, _what(help="Your own prompts: a text, or JSON lines with kind and prompt.")] = None,
    budget: Annotated[float, _what(min=0.1, help="Minutes it may take, about.")] = 5.0,
    ctx: Annotated[int | None, _how(min=0, help="Context in tokens.")] = None,
    kv: Annotated[str, _how(help="Type of the target's cache.")] = "f16",
    kv_draft: Annotated[str, _how(help="Type of the draft's cache.")] = "f16",
    threads: Annotated[int | None, _how(min=1, help="Threads of both models.")] = None,
    ngl: Annotated[str, _how(help="Layers of the target on the GPU.")] = "auto",
    ngl_draft: Annotated[str, _how(help="Layers of the draft on the GPU.")] = "auto",
    json_file: Annotated[Path | None, _out("--json", help="Write everything as JSON to FILE (- for stdout).")] = None,
) -> None:
    """Test at length that drafts change nothing: texts against plain decoding's, distributions against the target's.

    Ctrl-C ends it and shows what there is so far. Exit code 9 if a text is not plain decoding's and no near tie
    explains it, or if a distribution is not the target's.
    """
    guard_terminal()
    raise_on_sigterm()
    from specdec_cli.audit.checks import LAW_LENGTHS, Audit
    from specdec_cli.bench.prompt_set import SHIPPED, read_prompts
    from specdec_cli.decode.sampling import SamplingParams
    from specdec_cli.generation.pair import open_pair
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.planning.plan import PairRequest
    from specdec_cli.presets.resolve import resolve

    check_outputs(
        {"--json": json_file}, {"MODEL": Path(model), "--draft": Path(draft) if draft else None, "--prompts": prompts}
    )
    if draft == "none":
        raise UsageError(
            "--draft none leaves nothing to audit: every text is held against plain decoding's anyway.",
            hint="Leave it out, or use --drafter ngram for lookup in the text.",
        )
    chosen = read_prompts(prompts or SHIPPED)
    drafters, lengths, temperatures = words(drafter), whole_numbers(k, "--k"), numbers(temp, "--temp")
    offer_to_pull(model, draft)
    files = resolve(model, draft, quantize, find, say)
    drafters = _drafters(drafters, files)
    text_ways, law_ways = _ways(words(rules), drafters, lengths, temperatures)
    request = PairRequest(
        target=files.target,
        draft=files.draft,
        seed=SEED,
        sampling=files.preset.sampling if files.preset is not None else SamplingParams(),
        gpu_layers=layers(ngl, "--ngl"),
        gpu_layers_draft=layers(ngl_draft, "--ngl-draft"),
        cache_type=kv,
        cache_type_draft=kv_draft,
        n_ctx=ctx,
        threads=threads,
        force=True,
        head=files.head,
        **opened_for(files, drafters, max(*lengths, *LAW_LENGTHS)),
    )
    with open_pair(request, say=say, abort=AbortFlag()) as pair:
        _check_drafting(pair, drafters)
        n_each = max(min(_LEAST_ANSWER, tokens), -(-tokens // len(chosen)))
        tasks = _mixed(as_tasks(pair, chosen, n_each))
        auditing = Audit(pair, request.sampling, time.perf_counter)
        began = time.perf_counter()
        text_seconds = 60 * budget * (_TEXTS_SHARE if law_ways else 1)
        seconds_each = auditing.seconds_per_answer(tasks[0], n_each) * _answers_a_prompt(text_ways)
        n_prompts = _within(text_seconds, seconds_each, min(len(tasks), -(-tokens // n_each)))
        _say_plan(text_ways, law_ways, tokens, n_prompts * n_each, n_prompts * seconds_each, draws, places, budget)
        texts = auditing.check_texts(tasks[:n_prompts], text_ways, tokens, n_each, began + text_seconds)
        laws = auditing.check_laws(tasks, law_ways, draws, places, began + 60 * budget)
        try:
            _follow("texts", n_prompts * len(text_ways), texts)
            _follow("distributions", places * len(law_ways), laws)
        except KeyboardInterrupt:
            say("Stopped: these are the results so far.")
        more = {"tokens": tokens, "max_tokens": n_each, "draws": draws, "places": places, "budget_minutes": budget}
        facts = facts_of(request, more)
    _report(auditing, facts, tokens, json_file)


def _drafters(wanted: list[str], files: "Resolved") -> list[str]:
    from specdec_cli.drafters import DRAFTERS, sources

    able = [name for name in DRAFTERS if name != "none"]
    unknown = [name for name in wanted if not all(source in able for source in sources(name))]
    if unknown:
        raise UsageError(
            f"--drafter cannot be {unknown[0]!r}.",
            hint=f"Use one or more of {', '.join(able)}, with commas, or ngram+model for both by turns.",
        )
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
        raise UsageError(f"--rules cannot be {','.join(unknown)!r}.", hint=f"Use some of {','.join(RULES)}.")
    if not lengths or min(lengths) < 1:
        raise UsageError("--k needs lengths of 1 or more.", hint="Plain decoding is what they are compared with.")
    if not temperatures or min(temperatures) < 0:
        raise UsageError("--temp needs temperatures of 0 or more.", hint="Give numbers with commas, such as 0,0.7,1.")
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
                f"Nothing can be drafted with this pair: {found.propose([], 1).off_reason}.",
                hint="Without drafts every text is plain decoding's.",
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
    wanted: int,
    fitting: int,
    seconds: float,
    draws: int,
    places: int,
    budget: float,
) -> None:
    if text_ways:
        less = f" (of {wanted:,}: more with --budget)" if fitting < wanted else ""
        say(
            f"Texts: {min(wanted, fitting):,} tokens{less} in each of {len(text_ways)} ways against plain decoding, "
            f"about {seconds / 60:.1f} minutes."
        )
    if law_ways:
        say(
            f"Distributions: {draws:,} draws, or what time allows, at {places} places in each of {len(law_ways)} ways "
            "against the target's."
        )
    say(f"Together at most {budget:g} minutes, about. Ctrl-C shows what there is so far.")


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

    if not auditing.texts and not auditing.laws:
        raise UsageError("Nothing was tested yet.", hint="Let it run until the first text is done.")
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
            "A text, or a distribution, is not the target's own.",
            hint="This is a bug: please report it with the JSON document (--json).",
        )
