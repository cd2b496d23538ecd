"""`specdec draft`: drafts made here, from the model itself or from another draft."""

import json
import os
import shlex
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.commands.bench import as_tasks, check_writable
from specdec_cli.commands.chatting import stoppable
from specdec_cli.commands.options import JsonOpt, find, layers, quantize, say
from specdec_cli.errors import DraftDoesNotPay, HeldByAnother, Interrupted, ModelError, TextDiffers, UsageError
from specdec_cli.guard import guard_terminal
from specdec_cli.interrupt import raise_on_sigterm

if TYPE_CHECKING:
    from specdec_cli.kinds import BenchPrompt
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.make_draft import Outcome
    from specdec_cli.plan import PairRequest
    from specdec_cli.recipes import Recipe
    from specdec_cli.sampling import SamplingParams
    from specdec_cli.workshop import Figures, Text, Workshop

SEED = 1
HOPELESS = 0.8
"""An expected speed over plain decoding below which nothing is run to see."""
WORTH = 1.02
"""How much faster a trimmed draft must be expected to make the target, against the draft that it was made from."""

OutOpt = Annotated[Path | None, typer.Option("--out", "-o", help="The file to write (here, named after the source).")]
TempOpt = Annotated[float | None, typer.Option(help="Temperature to measure at (the preset's, or 0.8).")]
TokensOpt = Annotated[int, typer.Option("-n", min=8, help="Tokens of each answer that is measured.")]
PromptsOpt = Annotated[
    Path | None, typer.Option(help="Prompts to measure on, as in bench (without, one of each kind of text).")
]
ThreadsOpt = Annotated[int | None, typer.Option(min=1, help="Threads of both models.")]
NglOpt = Annotated[str, typer.Option(help="Layers of the target on the GPU: auto, all or a number.")]
NglDraftOpt = Annotated[str, typer.Option(help="Layers of the draft on the GPU.")]
KeepOpt = Annotated[bool, typer.Option("--keep-anyway", help="Write the best one even if it does not pay.")]

draft_app = typer.Typer(help="Make a draft from a model itself, or an existing draft cheaper.", no_args_is_help=True)


@draft_app.command()
def make(
    model: Annotated[str, typer.Argument(help="A preset's name, or the path of the target's GGUF file.")],
    *,
    out: OutOpt = None,
    temp: TempOpt = None,
    n: TokensOpt = 64,
    prompts: PromptsOpt = None,
    threads: ThreadsOpt = None,
    ngl: NglOpt = "auto",
    ngl_draft: NglDraftOpt = "auto",
    keep_anyway: KeepOpt = False,
    as_json: JsonOpt = False,
) -> None:
    """Make a draft from the target itself: lower number formats, a cheaper output matrix, fewer layers.

    Each candidate is measured with the target, and the best is written if drafting with it is faster than plain
    decoding. What was stopped goes on where it stopped. Exit code 10 if no draft pays.
    """
    guard_terminal()
    raise_on_sigterm()
    from specdec_cli.bench_report import PAYS
    from specdec_cli.gguf import read_model
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.make_draft import most_candidates, search, work_folder
    from specdec_cli.resolve import resolve

    files = resolve(model, "none", quantize, find, say)
    request = _request(files.target, files.preset.sampling if files.preset else None, temp, threads, ngl, ngl_draft)
    out = _out(out, files.target, "draft")
    headers = read_model(files.target)
    asked = _prompts(prompts)
    abort = AbortFlag()
    folder = work_folder(request, "make", n, asked)
    with stoppable(abort), _going_on(), _alone(folder):
        shop = _workshop(request, files.target, folder, abort)
        sizes = _sizes(files.target)
        # Two candidates at once: the best so far, and the one that is being made.
        _check_room(shop, out, max((size for size in sizes.values() if size < shop.n_bytes), default=shop.n_bytes))
        _read_texts(shop, request, asked, n, abort)
        n_candidates = most_candidates(shop, headers[0], sizes)
        outcomes = _tried(search(shop, headers[0], sizes), n_candidates)
        _show(outcomes, as_json, "WORTH: the speed over plain decoding to be expected, with drafts of K tokens.")
        recipe, found = _best(shop, outcomes)
        speedup = _measured(shop, request, recipe, found, n, abort)
        pays = speedup is not None and speedup >= PAYS
        if pays or keep_anyway:
            _write(shop, out, (recipe, found), speedup, request, abort)
    if as_json:
        print(json.dumps(_document(outcomes, recipe, speedup, out if pays or keep_anyway else None)))
    if not pays:
        _give_up(f"the best one ({recipe}) {_speed(found, speedup)}", keep_anyway)
    if not as_json:
        print(f"\nWritten: {out} ({recipe}): {_speed(found, speedup)} with -k {found.k}.")
        print(f"Now: specdec run {shlex.quote(model)} --draft {shlex.quote(str(out))} -k {found.k}")


@draft_app.command()
def trim(
    draft: Annotated[Path, typer.Argument(help="The draft's GGUF file.")],
    *,
    target: Annotated[
        Path | None, typer.Option(help="The target it drafts for; without, the draft itself is the measure.")
    ] = None,
    out: OutOpt = None,
    temp: TempOpt = None,
    n: TokensOpt = 64,
    prompts: PromptsOpt = None,
    threads: ThreadsOpt = None,
    ngl: NglOpt = "auto",
    ngl_draft: NglDraftOpt = "auto",
    keep_anyway: KeepOpt = False,
    as_json: JsonOpt = False,
) -> None:
    """Make a draft's output matrix cheaper: with a large vocabulary it is most of what a draft token costs.

    Exit code 10 if no cheaper matrix pays.
    """
    guard_terminal()
    raise_on_sigterm()
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.make_draft import trims, work_folder
    from specdec_cli.recipes import OUTPUT_FORMATS, Recipe, cheaper_outputs

    request = _request(target or draft, None, temp, threads, ngl, ngl_draft)
    out = _out(out, draft, "trimmed")
    asked = _prompts(prompts)
    abort = AbortFlag()
    folder = work_folder(request, f"trim {draft.absolute()}", n, asked)
    with stoppable(abort), _going_on(), _alone(folder):
        shop = _workshop(request, draft, folder, abort, alone=target is None)
        if not cheaper_outputs(shop.tensors):
            raise DraftDoesNotPay(
                f"The output matrix of {draft.name} is too small a part of it, or as cheap as can be, to be trimmed.",
                hint="specdec draft make TARGET makes smaller drafts from the target itself.",
            )
        _check_room(shop, out, shop.n_bytes)
        _read_texts(shop, request, asked, n, abort)
        outcomes = _tried(trims(shop), len(OUTPUT_FORMATS) + 1)
        worth = "RIGHT / COST" if target is None else "the speed over plain decoding to be expected, with drafts of K"
        _show(outcomes, as_json, f"WORTH: {worth}.")
        recipe, found = _best(shop, outcomes)
        gain = found.predicted / _as_it_is(outcomes).predicted
        pays = recipe != Recipe() and gain >= WORTH
        keep_anyway = keep_anyway and recipe != Recipe()
        if pays or keep_anyway:
            _write(shop, out, (recipe, found), None, request, abort)
    if as_json:
        print(json.dumps(_document(outcomes, recipe, None, out if pays or keep_anyway else None)))
    if not pays:
        why = f"the best way ({recipe}) is worth {gain:.2f} times the draft as it is"
        _give_up(why if recipe != Recipe() else "the draft is best as it is", keep_anyway)
    if not as_json:
        print(f"\nWritten: {out} ({recipe}): worth {gain:.2f} times the draft as it is.")
        model = shlex.quote(str(target)) if target is not None else "TARGET"
        print(f"Now: specdec run {model} --draft {shlex.quote(str(out))}")


def _request(
    target: Path, sampling: "SamplingParams | None", temp: float | None, threads: int | None, ngl: str, ngl_draft: str
) -> "PairRequest":
    from specdec_cli.plan import PairRequest
    from specdec_cli.sampling import SamplingParams

    sampling = sampling or SamplingParams()
    return PairRequest(
        target,
        None,
        "none",
        k=1,
        seed=SEED,
        sampling=sampling if temp is None else replace(sampling, temperature=temp),
        gpu_layers=layers(ngl, "--ngl"),
        gpu_layers_draft=layers(ngl_draft, "--ngl-draft"),
        threads=threads,
        force=True,
    )


def _out(out: Path | None, source: Path, what: str) -> Path:
    """Where the draft is to lie. Raises UsageError for a place that is taken, or cannot be written."""
    from specdec_cli.gguf import parts_of

    stem = source.stem if len(parts_of(source.name)) == 1 else source.stem.rpartition("-of-")[0].rpartition("-")[0]
    out = out or Path(f"{stem}-{what}.gguf")
    if out.exists():
        raise UsageError(f"{out} is there already.", hint="Name another file with --out, or delete that one.")
    check_writable(out)
    return out


def _prompts(file: Path | None) -> "list[BenchPrompt]":
    """The user's own, or one of each kind. Raises UsageError."""
    from specdec_cli.kinds import SHIPPED, read_prompts

    if file is not None:
        return read_prompts(file)
    return list({prompt.kind: prompt for prompt in reversed(read_prompts(SHIPPED))}.values())


def _workshop(
    request: "PairRequest", source: Path, folder: Path, abort: "AbortFlag", *, alone: bool = False
) -> "Workshop":
    from specdec_cli.gguf import read_model
    from specdec_cli.machine import usable_cores
    from specdec_cli.make_draft import beside_itself, measure
    from specdec_cli.workshop import Workshop

    def figures(path: Path) -> "Figures":
        found = measure(replace(request, draft=path), shop.journal.texts, abort)
        return beside_itself(found) if alone else found

    tensors = [tensor for header in read_model(source) for tensor in header.tensors]
    shop = Workshop(source, tensors, folder, figures, threads=request.threads or usable_cores(), abort=abort)
    return shop


def _sizes(source: Path) -> dict[str, int]:
    """Bytes that the weights take in each format that a draft can have."""
    from specdec_cli.llama.quantize import Changes, changed_bytes
    from specdec_cli.recipes import DRAFT_FORMATS

    return {name: changed_bytes(source, Changes(name)) for name in DRAFT_FORMATS}


def _check_room(shop: "Workshop", out: Path, candidate: int) -> None:
    """For two candidates at once, the best so far and the one that is being made, and for the draft."""
    from specdec_cli.workshop import check_room

    check_room({shop.folder: 2 * candidate, out.absolute().parent: candidate})


def _read_texts(
    shop: "Workshop", request: "PairRequest", prompts: "list[BenchPrompt]", n: int, abort: "AbortFlag"
) -> None:
    """Have the target's own answers, one for each kind of text, and see what its layers do. Raises ModelError."""
    if shop.journal.texts:
        say("Going on where the work stopped.")
        return
    from time import perf_counter

    from specdec_cli.bench import Bench
    from specdec_cli.make_draft import answers, seen_angles
    from specdec_cli.pairing import open_pair
    from specdec_cli.ui.steps import Steps
    from specdec_cli.ui.terminal import Terminal

    texts: list[Text] = []
    with open_pair(request, say=say, abort=abort) as pair:
        if not pair.target.session.can_rewind:
            raise ModelError(
                f"The memory of {request.target.name} cannot be taken back (a recurrent or hybrid model).",
                hint="No draft helps it here.",
            )
        tasks = as_tasks(pair, prompts, n)
        measuring = Bench(pair, request.sampling, n, perf_counter)
        with Steps(len(tasks), "the target's own texts", Terminal(sys.stderr, os.environ), say) as steps:
            for text in answers(measuring, tasks, request.sampling.temperature):
                texts.append(text)
                steps.step()
        if not texts:
            raise ModelError(
                f"{request.target.name} answers none of the prompts with more than a token.",
                hint="Use a model that writes text.",
            )
        shop.journal.angles = seen_angles(pair.target, texts)
    shop.journal.texts = texts
    shop.save()


def _tried(search: "Iterator[Outcome]", at_most: int) -> "list[Outcome]":
    """All candidates, with a bar. Raises SpecdecError."""
    from specdec_cli.ui.steps import Steps
    from specdec_cli.ui.terminal import Terminal

    outcomes = []
    with Steps(max(at_most, 1), "candidates", Terminal(sys.stderr, os.environ), say) as steps:
        for outcome in search:
            outcomes.append(outcome)
            steps.step()
    return outcomes


def _best(shop: "Workshop", outcomes: "list[Outcome]") -> "tuple[Recipe, Figures]":
    """Raises DraftDoesNotPay where not one candidate could be measured."""
    if shop.best is None:
        reasons = [outcome.found for outcome in outcomes if isinstance(outcome.found, str)]
        raise DraftDoesNotPay(
            f"No draft can be made from this model: {reasons[0] if reasons else 'no format is smaller than its own.'}",
            hint="Use a smaller model of the same family (specdec presets), or --draft ngram.",
        )
    return shop.best


def _as_it_is(outcomes: "list[Outcome]") -> "Figures":
    """What a draft is worth before anything is done to it. Raises ModelError if it cannot be measured."""
    found = outcomes[0].found
    if isinstance(found, str):
        raise ModelError(found, hint="Use another draft.")
    return found


def _measured(
    shop: "Workshop", request: "PairRequest", recipe: "Recipe", found: "Figures", n: int, abort: "AbortFlag"
) -> float | None:
    """Drafting with the candidate beside plain decoding: the median over kinds of text. None where that is hopeless.

    Raises TextDiffers.
    """
    if found.predicted < HOPELESS:
        return None
    from specdec_cli.make_draft import run_beside_plain
    from specdec_cli.ui.steps import Steps
    from specdec_cli.ui.terminal import Terminal

    texts = shop.journal.texts
    request = replace(request, draft=shop.make(recipe))
    with Steps(3 * len(texts), f"{recipe} beside plain decoding", Terminal(sys.stderr, os.environ), say) as steps:
        cells = run_beside_plain(request, texts, found.k, n, abort, steps.step)
    if any(cell.worst.verdict == "bug" for cell in cells):
        raise TextDiffers(
            "A text differs from plain decoding's, and no near tie explains it.",
            hint="This is a bug: please report it with the output of specdec audit.",
        )
    return statistics.median(cell.speedup for cell in cells)


def _speed(found: "Figures", speedup: float | None) -> str:
    if speedup is None:
        return f"is expected to run at {found.predicted:.2f} times plain decoding"
    return f"ran at {speedup:.2f} times plain decoding"


def _write(
    shop: "Workshop",
    out: Path,
    best: "tuple[Recipe, Figures]",
    speedup: float | None,
    request: "PairRequest",
    abort: "AbortFlag",
) -> None:
    """The best candidate for good; what it was made with is not needed any more."""
    from specdec_cli.make_draft import metadata, write_draft

    about = metadata(shop.source, *best, speedup, request.sampling.temperature)
    write_draft(shop.make(best[0]), out, about, abort=abort)
    shop.clear()


def _give_up(why: str, keep_anyway: bool) -> None:
    """Raises DraftDoesNotPay, unless the user wants the draft all the same."""
    if keep_anyway:
        say(f"This does not pay here: {why}. It is kept, as asked.")
        return
    raise DraftDoesNotPay(
        f"Nothing was kept, because it does not pay here: {why}.",
        hint="--keep-anyway writes it all the same; specdec bench measures it at length.",
    )


def _show(outcomes: "list[Outcome]", as_json: bool, worth: str) -> None:
    """What was tried and what it is worth, which `worth` explains."""
    from specdec_cli.ui import words
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    if as_json:
        return
    rows = []
    for outcome in outcomes:
        found = outcome.found
        if isinstance(found, str):
            rows.append((words.UNKNOWN,) * 5 + (f"{outcome.recipe}: {found}",))
        else:
            cells = (words.download(found.n_bytes), words.percent(found.agreement), words.percent(found.cost))
            rows.append((*cells, str(found.k), f"{found.predicted:.2f}", str(outcome.recipe)))
    headers = ("SIZE", "RIGHT", "COST", "K", "WORTH", "MADE AS")
    write_table(headers, rows, Terminal(sys.stdout, os.environ), right=" ".join(headers[:-1]))
    print(
        f"\nRIGHT: tokens of the target's texts that it would have drafted. COST: of a token, in the target's.\n{worth}"
    )


def _document(outcomes: "list[Outcome]", best: "Recipe", speedup: float | None, out: Path | None) -> dict[str, Any]:
    candidates = [
        {"made_as": str(o.recipe), **({"error": o.found} if isinstance(o.found, str) else asdict(o.found))}
        for o in outcomes
    ]
    return {"candidates": candidates, "best": str(best), "speedup": speedup, "file": str(out) if out else None}


@contextmanager
def _going_on() -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        say("Stopped. The same command goes on where this one stopped.")
        raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else works in the folder meanwhile. Raises HeldByAnother."""
    from specdec_cli.folders import WORK_LOCK
    from specdec_cli.hub import lock

    with ExitStack() as stack:
        stack.callback(_remove_if_empty, folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock(folder / WORK_LOCK, timeout=0.1))
        except TimeoutError as error:
            raise HeldByAnother(
                "Another process is making a draft from this file, with the same settings.",
                hint="Wait for it, or end it; the work then goes on where it stopped.",
            ) from error
        except OSError as error:
            raise UsageError(
                f"{folder} cannot be written: {error.strerror}.",
                hint="Set SPECDEC_CACHE to a folder that can be written.",
            ) from error
        yield


def _remove_if_empty(folder: Path) -> None:
    from specdec_cli.folders import WORK_LOCK

    if {path.name for path in folder.glob("*")} <= {WORK_LOCK}:
        shutil.rmtree(folder, ignore_errors=True)
