"""Steps shared by `draft make` and `draft trim`: work folder, texts, candidates, final measurement."""

import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_cli.commands.options import loading, say, stop_waiting, text_differs, waiting
from specdec_cli.errors import DraftDoesNotPay, HeldByAnother, Interrupted, ModelError, UsageError

if TYPE_CHECKING:
    from specdec_cli.bench.prompt_set import BenchPrompt
    from specdec_cli.llama.abort import AbortFlag
    from specdec_cli.make_draft.candidates import Figures, Text, Workshop
    from specdec_cli.make_draft.recipes import Recipe
    from specdec_cli.make_draft.search import Outcome
    from specdec_cli.planning.request import PairRequest

HOPELESS = 0.8
"""An expected speed over plain decoding below which nothing is run to see."""


def workshop(
    request: "PairRequest", source: Path, folder: Path, abort: "AbortFlag", *, alone: bool = False
) -> "Workshop":
    from specdec_cli.make_draft.candidates import Workshop, beside_itself, expected
    from specdec_cli.make_draft.search import measure
    from specdec_cli.models.gguf import read_model
    from specdec_cli.planning.machine import usable_cores

    def figures(path: Path) -> "Figures":
        return measure(_drafting_with(path, request, folder), shop.journal.texts, abort)

    tensors = [tensor for header in read_model(source) for tensor in header.tensors]
    judge = beside_itself if alone else expected
    shop = Workshop(
        source, tensors, folder, figures, judge, threads=request.placement.threads or usable_cores(), abort=abort
    )
    return shop


def _drafting_with(draft: Path, request: "PairRequest", folder: Path) -> "PairRequest":
    """A candidate below the work folder needs no trial: a process of its own opened it when it was written."""
    trust = request.placement.trust or draft.parent == folder
    return replace(
        request, drafting=replace(request.drafting, draft=draft), placement=replace(request.placement, trust=trust)
    )


def sizes_of(source: Path) -> dict[str, int]:
    """Bytes that the weights take in each format that a draft can have."""
    from specdec_cli.llama.quantize import Changes, changed_bytes
    from specdec_cli.make_draft.recipes import DRAFT_FORMATS

    return {name: changed_bytes(source, Changes(name)) for name in DRAFT_FORMATS}


def check_room_for(shop: "Workshop", out: Path, candidate: int) -> None:
    """For two candidates at once, the best so far and the one that is being made, and for the draft."""
    from specdec_cli.make_draft.candidates import check_room
    from specdec_cli.make_draft.recipes import is_tied

    at_once = 4 if is_tied(shop.tensors) else 2  # an output matrix of its own is put together from two files
    places = [(shop.folder, at_once * candidate), (out.absolute().parent, candidate)]
    check_room(places)


def read_texts(
    shop: "Workshop", request: "PairRequest", prompts: "list[BenchPrompt]", n: int, abort: "AbortFlag"
) -> None:
    """Have the target's own answers, one for each kind of text, and see what its layers do. Raises ModelError."""
    if shop.journal.texts:
        say("Resuming earlier work.")
        return
    from time import perf_counter

    from specdec_cli.bench.measure import Bench
    from specdec_cli.bench.tasks import as_tasks
    from specdec_cli.generation.pair import open_pair
    from specdec_cli.make_draft.search import answers, seen_angles
    from specdec_cli.ui.steps import Steps
    from specdec_cli.ui.terminal import Terminal

    texts: list[Text] = []
    line = waiting(loading(request.target))
    with open_pair(request, say=say, abort=abort) as pair:
        if not pair.target.session.can_rewind:
            raise ModelError(
                f"{request.target.name} cannot undo tokens (a recurrent or hybrid model).",
                hint="No draft can speed it up here.",
            )
        line.show("Reading the prompts ...")
        tasks = as_tasks(pair, prompts, n, say)
        line.hide()
        measuring = Bench(pair, request.sampling.params, n, perf_counter)
        with Steps(len(tasks), "target answers", Terminal(sys.stderr, os.environ), say) as steps:
            for text in answers(measuring, tasks, request.sampling.params.temperature):
                texts.append(text)
                steps.step()
        if not texts:
            raise ModelError(
                f"{request.target.name} answers no prompt with more than one token.",
                hint="Use a model that generates text.",
            )
        shop.journal.angles = seen_angles(pair.target, texts)
    shop.journal.texts = texts
    shop.save()


def tried(search: "Iterator[Outcome]", at_most: int) -> "list[Outcome]":
    """All candidates, with a bar. Raises SpecdecError."""
    from specdec_cli.ui.steps import Steps
    from specdec_cli.ui.terminal import Terminal

    outcomes = []
    stop_waiting()
    with Steps(max(at_most, 1), "candidates", Terminal(sys.stderr, os.environ), say) as steps:
        for outcome in search:
            outcomes.append(outcome)
            steps.step()
    return outcomes


def best_of(shop: "Workshop", outcomes: "list[Outcome]") -> "Recipe":
    """Raises DraftDoesNotPay where not one candidate could be measured."""
    if shop.best is None:
        reasons = [outcome.found for outcome in outcomes if isinstance(outcome.found, str)]
        raise DraftDoesNotPay(
            f"No draft can be made from this model: {reasons[0] if reasons else 'no format is smaller than its own.'}",
            hint="Use a smaller model of the same family (specdec presets), or --draft ngram.",
        )
    return shop.best


def measured(shop: "Workshop", request: "PairRequest", recipe: "Recipe", n: int, abort: "AbortFlag") -> float | None:
    """Drafting with the candidate vs. plain decoding: the median over kinds of text. None where that is hopeless.

    Raises TextDiffers.
    """
    worth = shop.worth(recipe)
    if worth.speed < HOPELESS:
        return None
    from specdec_cli.make_draft.search import run_beside_plain
    from specdec_cli.ui.steps import Steps
    from specdec_cli.ui.terminal import Terminal

    texts = shop.journal.texts
    request = _drafting_with(shop.make(recipe), request, shop.folder)
    with Steps(3 * len(texts), f"{recipe} vs. plain decoding", Terminal(sys.stderr, os.environ), say) as steps:
        cells = run_beside_plain(request, texts, worth.k, n, abort, steps.step)
    if any(cell.worst.verdict == "bug" for cell in cells):
        raise text_differs("the output of specdec audit")
    return statistics.median(cell.speedup for cell in cells)


def write(
    shop: "Workshop", out: Path, recipe: "Recipe", speedup: float | None, request: "PairRequest", abort: "AbortFlag"
) -> None:
    """The best candidate for good; what it was made with is not needed any more."""
    from specdec_cli.make_draft.search import metadata, write_draft

    about = metadata(shop, recipe, speedup, request.sampling.params.temperature)
    write_draft(shop.make(recipe), out, about, abort=abort)
    shop.clear()


@contextmanager
def going_on() -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        say("Stopped. Run the same command again to resume.")
        raise


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Nobody else works in the folder meanwhile. Raises HeldByAnother."""
    from specdec_cli.hub.client import lock
    from specdec_cli.paths import WORK_LOCK

    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock(folder / WORK_LOCK, timeout=0.1))
        except TimeoutError as error:
            raise HeldByAnother(
                "Another process is making a draft from this file, with the same settings.",
                hint="Wait for it to finish, or stop it; this command then resumes its work.",
            ) from error
        except OSError as error:
            raise UsageError(
                f"Cannot write to {folder}: {error.strerror}.",
                hint="Set SPECDEC_CACHE to a writable folder.",
            ) from error
        stack.callback(_remove_if_empty, folder)  # before the lock is given back
        yield


def _remove_if_empty(folder: Path) -> None:
    from specdec_cli.paths import WORK_LOCK

    if {path.name for path in folder.glob("*")} <= {WORK_LOCK}:
        shutil.rmtree(folder, ignore_errors=True)
