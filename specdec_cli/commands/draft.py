"""`specdec draft`: makes a draft from the target itself, or a draft cheaper."""

import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.commands.chat import stoppable
from specdec_cli.commands.draft_steps import (
    alone_in,
    best_of,
    check_room_for,
    going_on,
    measured,
    read_texts,
    sizes_of,
    tried,
    workshop,
    write,
)
from specdec_cli.commands.groups import takes_groups
from specdec_cli.commands.help import Command, Commands
from specdec_cli.commands.options import MODEL, SEED, JsonOpt, LogOpt, find, quantize, say, waiting, write_log
from specdec_cli.commands.placement_options import PlacementOptions
from specdec_cli.commands.sampling_options import SamplingOptions
from specdec_cli.errors import DraftDoesNotPay, UsageError
from specdec_cli.outputs import check_outputs
from specdec_cli.signals import raise_on_sigterm
from specdec_cli.terminal_guard import guard_terminal

if TYPE_CHECKING:
    from specdec_cli.bench.prompt_set import BenchPrompt
    from specdec_cli.decode.sampling import SamplingParams
    from specdec_cli.make_draft.candidates import Workshop, Worth
    from specdec_cli.make_draft.recipes import Recipe
    from specdec_cli.make_draft.search import Outcome
    from specdec_cli.planning.request import PairRequest

WORTH = 1.02
"""How much faster a trimmed draft must be expected to make the target, against the draft that it was made from."""

OutOpt = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="The file to write (default: in this folder, named after the source)."),
]
TempOpt = Annotated[float | None, typer.Option(help="Temperature to measure at (default: the preset's, or 0.8).")]
TokensOpt = Annotated[int, typer.Option("-n", min=8, help="Tokens per measured answer.")]
PromptsOpt = Annotated[
    Path | None, typer.Option(help="Prompts to measure on, as in bench (default: one of each kind of text).")
]
KeepOpt = Annotated[bool, typer.Option("--keep-anyway", help="Write the best candidate even if it does not pay.")]

draft_app = typer.Typer(
    add_completion=False,
    help="Make a draft from the target itself, or make a draft cheaper.",
    no_args_is_help=True,
    cls=Commands,
)


@draft_app.command(cls=Command)
@takes_groups
def make(
    model: Annotated[str, MODEL],
    *,
    out: OutOpt = None,
    temp: TempOpt = None,
    n: TokensOpt = 64,
    prompts: PromptsOpt = None,
    keep_anyway: KeepOpt = False,
    sampling: SamplingOptions,
    placement: PlacementOptions,
    as_json: JsonOpt = False,
    log: LogOpt = None,
) -> None:
    """Make a draft from the target itself: fewer bits, a cheaper output matrix, fewer layers.

    Each candidate is measured with the target. The best one is written if it is faster than plain decoding. An
    interrupted run resumes when started again. Exit code 10 if no draft pays.
    """
    guard_terminal()
    raise_on_sigterm()
    waiting(f"Reading {model} ...")
    from specdec_cli.bench.report import PAYS
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.make_draft.search import most_candidates, search, work_folder
    from specdec_cli.models.gguf import read_model
    from specdec_cli.presets.resolve import named_preset, resolve

    files = resolve(model, named_preset(model), "none", quantize, find, say)
    out = _out(out, files.target, "draft")
    check_outputs({"--out": out, "--log": log}, {"MODEL": files.target, "--prompts": prompts})
    write_log(log, files.target)
    request = _request(files.target, sampling.over(files.sampling, temp), sampling, placement)
    headers = read_model(files.target)
    asked = _prompts(prompts)
    abort = AbortFlag()
    folder = work_folder(request, "make", n, asked)
    with stoppable(abort), going_on(), alone_in(folder):
        shop = workshop(request, files.target, folder, abort)
        sizes = sizes_of(files.target)
        check_room_for(shop, out, max((size for size in sizes.values() if size < shop.n_bytes), default=shop.n_bytes))
        read_texts(shop, request, asked, n, abort)
        n_candidates = most_candidates(shop, headers[0], sizes)
        outcomes = tried(search(shop, headers[0], sizes), n_candidates)
        _show(shop, outcomes, as_json, "WORTH: expected speedup over plain decoding, with drafts of K tokens.")
        recipe = best_of(shop, outcomes)
        worth, document = shop.worth(recipe), _document(shop, outcomes, recipe)
        speedup = measured(shop, request, recipe, n, abort)
        pays = speedup is not None and speedup >= PAYS
        if pays or keep_anyway:
            write(shop, out, recipe, speedup, request, abort)
    if as_json:
        print(json.dumps({**document, "speedup": speedup, "file": str(out) if pays or keep_anyway else None}))
    if not pays:
        _give_up(f"the best candidate ({recipe}) {_speed(worth, speedup)}", keep_anyway)
    if not as_json:
        print(f"\nWritten: {out} ({recipe}): {_speed(worth, speedup)} with -k {worth.k}.")
        print(f"Next: specdec run {shlex.quote(model)} --draft {shlex.quote(str(out))} -k {worth.k}")


@draft_app.command(cls=Command)
@takes_groups
def trim(
    draft: Annotated[Path, typer.Argument(help="The draft's GGUF file.")],
    *,
    target: Annotated[
        Path | None, typer.Option(help="The target it drafts for (default: the untrimmed draft is the reference).")
    ] = None,
    out: OutOpt = None,
    temp: TempOpt = None,
    n: TokensOpt = 64,
    prompts: PromptsOpt = None,
    keep_anyway: KeepOpt = False,
    sampling: SamplingOptions,
    placement: PlacementOptions,
    as_json: JsonOpt = False,
    log: LogOpt = None,
) -> None:
    """Make a draft's output matrix cheaper. With a large vocabulary it is most of a draft token's cost.

    Exit code 10 if no cheaper matrix pays.
    """
    guard_terminal()
    raise_on_sigterm()
    waiting(f"Reading {draft} ...")
    from specdec_cli.decode.sampling import SamplingParams
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.make_draft.recipes import OUTPUT_FORMATS, Recipe, cheaper_outputs
    from specdec_cli.make_draft.search import trims, work_folder
    from specdec_cli.models.gguf import read_model
    from specdec_cli.models.heads import refuse_as_target

    out = _out(out, draft, "trimmed")
    check_outputs({"--out": out, "--log": log}, {"DRAFT": draft, "--target": target, "--prompts": prompts})
    write_log(log, draft, target)
    for file in (draft, target or draft):  # what cannot be a model is told before anything else
        refuse_as_target(read_model(file), file.name)
    request = _request(target or draft, sampling.over(SamplingParams(), temp), sampling, placement)
    asked = _prompts(prompts)
    abort = AbortFlag()
    folder = work_folder(request, f"trim {draft.absolute()}", n, asked)
    with stoppable(abort), going_on(), alone_in(folder):
        shop = workshop(request, draft, folder, abort, alone=target is None)
        if not cheaper_outputs(shop.tensors):
            raise DraftDoesNotPay(
                f"Trimming {draft.name} gains nothing: its output matrix is a small part of it, or as cheap as "
                "it can be.",
                hint="specdec draft make TARGET makes a smaller draft from the target itself.",
            )
        check_room_for(shop, out, shop.n_bytes)
        read_texts(shop, request, asked, n, abort)
        outcomes = tried(trims(shop), len(OUTPUT_FORMATS) + 2)
        meaning = "RIGHT / COST" if target is None else "expected speedup over plain decoding, with drafts of K "
        "tokens"
        _show(shop, outcomes, as_json, f"WORTH: {meaning}.")
        recipe = best_of(shop, outcomes)
        document = _document(shop, outcomes, recipe)
        gain = shop.worth(recipe).speed / shop.worth(Recipe()).speed
        pays = recipe != Recipe() and gain >= WORTH
        keep_anyway = keep_anyway and recipe != Recipe()
        if pays or keep_anyway:
            write(shop, out, recipe, None, request, abort)
    if as_json:
        print(json.dumps({**document, "gain": gain, "file": str(out) if pays or keep_anyway else None}))
    if not pays:
        why = f"the best candidate ({recipe}) is worth {gain:.2f} times the untrimmed draft"
        _give_up(why if recipe != Recipe() else "no candidate beats the draft as it is", keep_anyway)
    if not as_json:
        print(f"\nWritten: {out} ({recipe}): worth {gain:.2f} times the untrimmed draft.")
        if target is not None and shop.worth(recipe).speed < 1:
            print("Plain decoding is still expected to be faster here.")
        model = shlex.quote(str(target)) if target is not None else "TARGET"
        print(f"Next: specdec run {model} --draft {shlex.quote(str(out))}")


def _request(
    target: Path, params: "SamplingParams", sampling: SamplingOptions, placement: PlacementOptions
) -> "PairRequest":
    from specdec_cli.planning.request import Drafting, PairRequest

    drafting = Drafting("none", k=1, force=True)
    return PairRequest(target, drafting, sampling.asked(params, seed=SEED), placement.asked())


def _out(out: Path | None, source: Path, what: str) -> Path:
    """Where the draft is to lie. Raises UsageError for a place that is taken."""
    from specdec_cli.models.gguf import parts_of

    stem = source.stem if len(parts_of(source.name)) == 1 else source.stem.rpartition("-of-")[0].rpartition("-")[0]
    out = out or Path(f"{stem}-{what}.gguf")
    if os.path.lexists(out):
        raise UsageError(f"{out} already exists.", hint="Give another file with --out, or delete this one.")
    return out


def _prompts(file: Path | None) -> "list[BenchPrompt]":
    """The user's own, or one of each kind. Raises UsageError."""
    from specdec_cli.bench.prompt_set import SHIPPED, read_prompts

    if file is not None:
        return read_prompts(file)
    return list({prompt.kind: prompt for prompt in reversed(read_prompts(SHIPPED))}.values())


def _speed(worth: "Worth", speedup: float | None) -> str:
    if speedup is None:
        return f"is expected to run at {worth.speed:.2f} times plain decoding"
    return f"ran at {speedup:.2f} times plain decoding"


def _give_up(why: str, keep_anyway: bool) -> None:
    """Raises DraftDoesNotPay, unless the user wants the draft all the same."""
    if keep_anyway:
        say(f"This draft does not pay here: {why}. It was kept (--keep-anyway).")
        return
    raise DraftDoesNotPay(
        f"No draft was kept, because none pays here: {why}.",
        hint="--keep-anyway writes it regardless; specdec bench measures it in detail.",
    )


def _show(shop: "Workshop", outcomes: "list[Outcome]", as_json: bool, meaning: str) -> None:
    """What was tried and what it is worth, which `meaning` explains."""
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
            worth = shop.worth(outcome.recipe)
            k = str(worth.k) if worth.k else words.UNKNOWN
            rows.append((*cells, k, f"{worth.speed:.2f}", str(outcome.recipe)))
    headers = ("SIZE", "RIGHT", "COST", "K", "WORTH", "MADE AS")
    write_table(headers, rows, Terminal(sys.stdout, os.environ), right=" ".join(headers[:-1]))
    print(
        "\nRIGHT: share of the target's tokens that it drafts correctly. COST: of a draft token, relative to "
        "a target token."
    )
    print(meaning)


def _document(shop: "Workshop", outcomes: "list[Outcome]", best: "Recipe") -> dict[str, Any]:
    def one(outcome: "Outcome") -> dict[str, Any]:
        if isinstance(outcome.found, str):
            return {"made_as": str(outcome.recipe), "error": outcome.found}
        return {"made_as": str(outcome.recipe), **asdict(outcome.found), "worth": asdict(shop.worth(outcome.recipe))}

    return {"candidates": [one(outcome) for outcome in outcomes], "best": str(best)}
