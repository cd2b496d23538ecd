"""The search for the best draft made from the target, and the metadata written into it."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from specdec_cli.bench.measure import Bench, Cell, Extent, Setting, Task, plain_like
from specdec_cli.bench.prompt_set import BenchPrompt
from specdec_cli.generation.pair import OpenModel, open_pair
from specdec_cli.llama.abort import AbortFlag
from specdec_cli.llama.layer_outputs import layer_outputs
from specdec_cli.llama.quantize import Changes, Value
from specdec_cli.llama.session import LlamaSession
from specdec_cli.llama.versions import versions
from specdec_cli.make_draft.agreement import ROWS, agreements, chances
from specdec_cli.make_draft.candidates import Figures, Text, Workshop, write_changed
from specdec_cli.make_draft.layer_choice import Angles, angles
from specdec_cli.make_draft.recipes import Recipe, cheaper_outputs, fewer_layers, formats_worth_trying, is_tied
from specdec_cli.models.gguf import GgufHeader
from specdec_cli.paths import draft_folder
from specdec_cli.planning.machine import processor
from specdec_cli.planning.request import PairRequest

LONGEST_DRAFT = 8
"""Draft tokens that costs and chances are measured for."""
MOST_FAILURES = 3
"""Candidates with fewer layers in a row that were no better than the best before them."""
LEAST_CANDIDATES, LONGEST_HOPELESS, NEARLY = 3, 30.0, 0.9
"""After so many candidates and seconds the search ends if none is expected at `NEARLY` the speed of plain decoding:
expectations are off by a tenth at most, and what comes later is less likely than what came first."""
CHEAPEST_OUTPUT = "Q4_0"
_SEEN_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Outcome:
    """A recipe and what came of it: figures, or why there are none."""

    recipe: Recipe
    found: Figures | str


def work_folder(request: PairRequest, what: str, n_tokens: int, prompts: Sequence[BenchPrompt]) -> Path:
    """Where the work on a model lies: of this file and these settings, and of no others."""
    files = [p for p in (request.target, request.drafting.draft) if p is not None]
    stats = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    # The same models give the same figures, however they were let in.
    placement = replace(request.placement, require_gpu=False, mlock=False, trust=False)
    how = [str(request.sampling), str(placement)]
    facts = [what, stats, how, n_tokens, [prompt.turns for prompt in prompts], versions(), processor()]
    digest = hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:16]
    return draft_folder() / f"{files[-1].stem[:60]}-{digest}"


def answers(measuring: Bench, tasks: Sequence[Task], temperature: float) -> Iterator[Text]:
    """The target's own answers, by plain decoding."""
    plain = plain_like(Setting("model", 1, temperature))
    for task in tasks:
        ids = measuring.run(task, plain).ids
        if len(ids) > 1:
            yield Text(task.kind, task.ids, ids)


def seen_angles(target: OpenModel, texts: Sequence[Text]) -> Angles:
    """How much each layer turns the residual stream, over a beginning of the first texts."""
    tokens = [token for text in texts for token in (*text.prompt, *text.answer)][:_SEEN_TOKENS]
    outputs = layer_outputs(target.model, tokens[: target.context.n_ctx], threads=target.context.threads)
    return angles(outputs, target.facts.n_layers)


def _with_drafts_of(k: int, request: PairRequest) -> PairRequest:
    return replace(request, drafting=replace(request.drafting, k=k))


def measure(request: PairRequest, texts: Sequence[Text], abort: AbortFlag) -> Figures:
    """Costs of both models of `request` side by side, and the draft's choices on the target's `texts`.

    Raises ModelError, OutOfMemory, VocabularyMismatch, Interrupted.
    """
    with open_pair(_with_drafts_of(LONGEST_DRAFT, request), say=lambda _: None, abort=abort) as pair:
        if pair.draft is None:
            raise ValueError("nothing is measured without a draft")
        rows = replace(pair.draft.context, max_rows=min(ROWS, pair.draft.context.n_ubatch))
        with LlamaSession(pair.draft.model, rows, abort=abort) as session:
            agree = [agreements(session, pair.rule, text.prompt, text.answer) for text in texts]
        first = texts[0]
        context = len(first.prompt) + len(first.answer) // 2
        tokens = [token for text in texts for token in (*text.prompt, *text.answer)]
        measuring = Bench(pair, request.sampling.params, 1, time.perf_counter)
        curve = measuring.cost_curve(tokens, context, LONGEST_DRAFT + 1, request.sampling.params.temperature)
        share = sum(map(sum, agree)) / sum(map(len, agree))
        table = tuple(tuple(chances(agree, k)) for k in range(1, LONGEST_DRAFT + 1))
        times = tuple(curve.target[width] for width in range(1, LONGEST_DRAFT + 2))
        return Figures(pair.draft.facts.weights_bytes, share, table, curve.draft, times)


def search(shop: Workshop, header: GgufHeader, sizes: Mapping[str, int]) -> Iterator[Outcome]:
    """Try recipes, the next ones chosen by what those before were worth.

    First number formats (`sizes` has what the weights take in each), then a cheaper output matrix for the best of
    them, then fewer layers for the best of all, until that has failed MOST_FAILURES times in a row. A search that has
    found nothing that may pay ends after LONGEST_HOPELESS seconds.
    """
    began = time.perf_counter()
    for n, outcome in enumerate(_candidates(shop, header, sizes), 1):
        yield outcome
        is_late = n >= LEAST_CANDIDATES and time.perf_counter() - began > LONGEST_HOPELESS
        if is_late and (shop.best is None or shop.worth(shop.best).speed < NEARLY):
            return


def _candidates(shop: Workshop, header: GgufHeader, sizes: Mapping[str, int]) -> Iterator[Outcome]:
    for name in formats_worth_trying(sizes, shop.n_bytes):
        yield _tried(shop, Recipe(name))
    if cheaper_outputs(shop.tensors):
        base = _best(shop)
        yield _tried(shop, replace(base, output=CHEAPEST_OUTPUT))
        if is_tied(shop.tensors):
            yield _tried(shop, replace(base, own_output=CHEAPEST_OUTPUT))
    failures = 0
    for without in fewer_layers(header, shop.journal.angles or ()):
        recipe = replace(_best(shop), without=without)
        yield _tried(shop, recipe)
        failures = 0 if shop.best == recipe else failures + 1
        if failures == MOST_FAILURES:
            return


def most_candidates(shop: Workshop, header: GgufHeader, sizes: Mapping[str, int]) -> int:
    """How many `search` can come to."""
    n_formats, n_layers = (
        len(formats_worth_trying(sizes, shop.n_bytes)),
        len(list(fewer_layers(header, angles({}, header.number("block_count"))))),
    )
    n_outputs = (1 + is_tied(shop.tensors)) * bool(cheaper_outputs(shop.tensors))
    return n_formats + n_outputs + n_layers


def trims(shop: Workshop) -> Iterator[Outcome]:
    """The draft as it is, then with cheaper output matrices."""
    yield _tried(shop, Recipe())
    for name in cheaper_outputs(shop.tensors):
        yield _tried(shop, Recipe(output=name))
    if is_tied(shop.tensors):
        yield _tried(shop, Recipe(own_output=CHEAPEST_OUTPUT))


def _tried(shop: Workshop, recipe: Recipe) -> Outcome:
    return Outcome(recipe, shop.try_out(recipe))


def _best(shop: Workshop) -> Recipe:
    return shop.best or Recipe()


def run_beside_plain(
    request: PairRequest, texts: Sequence[Text], k: int, n_tokens: int, abort: AbortFlag, step: Callable[[], None]
) -> list[Cell]:
    """Plain decoding and drafting by turns on the prompts of `texts`; `step` is called after each answer."""
    setting = Setting("model", k, request.sampling.params.temperature)
    with open_pair(_with_drafts_of(k, request), say=lambda _: None, abort=abort) as pair:
        measuring = Bench(pair, request.sampling.params, n_tokens, time.perf_counter)
        tasks = [Task(text.kind, text.prompt) for text in texts]
        measuring.warm_up(tasks[0], [setting])
        for _ in measuring.measure(Extent(tasks, 1, n_tokens), [setting]):
            step()
        return list(measuring.cells.values())


def metadata(shop: Workshop, recipe: Recipe, speedup: float | None, temperature: float) -> dict[str, Value]:
    """What a made draft says of itself, as GGUF keys; `speedup` is None where it was not run."""
    found, worth = shop.figures(recipe), shop.worth(recipe)
    facts: dict[str, Value] = {
        "source": shop.source.name,
        "source_bytes": min(shop.source.stat().st_size, 2**32 - 1),
        "method": str(recipe),
        "agreement": found.agreement,
        "cost": found.cost,
        "temperature": float(temperature),
        "date": date.today().isoformat(),
        "processor": processor(),
    }
    if worth.k:  # measured with a target
        facts |= {"acceptance": found.acceptance(worth.k), "k": worth.k, "expected_speedup": worth.speed}
    if speedup is not None:
        facts["measured_speedup"] = speedup
    return {f"specdec.draft.{name}": value for name, value in facts.items()}


def write_draft(candidate: Path, out: Path, about: Mapping[str, Value], *, abort: AbortFlag) -> None:
    """The candidate under its name for good, with what there is to say about it. Raises ModelError, DiskFull."""
    write_changed(candidate, out, Changes(metadata=about), threads=1, abort=abort)
