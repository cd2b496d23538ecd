"""`specdec plan`: the memory a pair needs and whether it fits, before any download."""

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.commands.completion import cache_types, drafts, models
from specdec_cli.commands.options import JsonOpt, bytes_in, draft_length, layers, say, stop_waiting, waiting
from specdec_cli.commands.speed import (
    SECONDS,
    Row,
    chances_of,
    documents,
    forecast_rows,
    offers_of,
    placing,
    write_speed,
)
from specdec_cli.errors import UsageError
from specdec_cli.settings import AUTO

if TYPE_CHECKING:
    from specdec_cli.hub.pull import Located, Wanted
    from specdec_cli.models.heads import HeadFacts
    from specdec_cli.planning.placement import Change, Fit, Machine
    from specdec_cli.planning.request import PairRequest

MAX_CHANGES = 5


def plan(
    model: Annotated[
        str, typer.Argument(help="A preset, a GGUF file, or REPO[:FILE|QUANT] on the Hub.", autocompletion=models)
    ],
    *,
    draft: Annotated[
        str | None, typer.Option(help="The draft, in the same forms, or ngram, mtp, none.", autocompletion=drafts)
    ] = None,
    ctx: Annotated[int | None, typer.Option(min=0, help="Context size in tokens, as in run.")] = None,
    ctx_draft: Annotated[
        int | None, typer.Option(min=0, help="Context size of the draft (default: the target's).")
    ] = None,
    kv: Annotated[str, typer.Option(help="KV cache type of the target.", autocompletion=cache_types)] = "f16",
    kv_draft: Annotated[str, typer.Option(help="KV cache type of the draft.", autocompletion=cache_types)] = "f16",
    k: Annotated[
        str, typer.Option("-k", "--k", help="Draft tokens per round; auto: the most that run may pick.")
    ] = AUTO,
    batch: Annotated[int, typer.Option(min=1, help="Prompt tokens per pass.")] = 512,
    ngl: Annotated[str, typer.Option(help="Layers of the target on the GPU: auto, all or a number.")] = "auto",
    ngl_draft: Annotated[str, typer.Option(help="Layers of the draft on the GPU.")] = "auto",
    vram: Annotated[
        str | None, typer.Option(help="Plan for a GPU with this much free memory, such as 8G; 0 for no GPU.")
    ] = None,
    ram: Annotated[str | None, typer.Option(help="Plan for this much free RAM, such as 8G.")] = None,
    speed: Annotated[
        bool,
        typer.Option(
            "--speed",
            help="Forecast tokens/s on this machine, plain and with the draft, in each format that the repository "
            "offers. Measures made-up weights of the same shapes for up to a minute; remembers what it measured.",
        ),
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="With --speed: measure again what is remembered.")] = False,
    as_json: JsonOpt = False,
) -> None:
    """Estimate the memory a pair needs, from its headers alone, and where its layers would go.

    Exit code 5 if it does not fit.
    """
    waiting(f"Reading the headers of {model} ...")
    from specdec_cli.errors import NoNetwork, NotHere, OutOfMemory, ProxyFailed
    from specdec_cli.planning.placement import changes, place
    from specdec_cli.planning.plan import size_up
    from specdec_cli.planning.request import Drafting, PairRequest, Placement
    from specdec_cli.settings import LONGEST_AUTO

    fixed_k = draft_length(k)
    _check_options(draft, speed=speed, again=again, is_elsewhere=vram is not None or ram is not None)
    machine = _machine(bytes_in(vram, "--vram"), bytes_in(ram, "--ram"))
    try:
        target, draft_model = _located(model, draft)
    except (NoNetwork, NotHere, ProxyFailed) as error:
        sizes = _known_sizes(model, draft)
        if sizes is None:
            raise
        stop_waiting()
        say(f"{error} Counting only the weights, with the sizes from the preset.")
        if speed:
            say("The speed is not forecast: that needs the headers.")
        _plan_weights(sizes, machine, as_json=as_json)
        return
    request = PairRequest(
        Path(target.examined.name),
        Drafting("model", LONGEST_AUTO if fixed_k is None else fixed_k, auto=fixed_k is None),
        placement=Placement(n_ctx=ctx, n_ctx_draft=ctx_draft, cache_type=kv, cache_type_draft=kv_draft, n_batch=batch),
    )
    target, draft_model, head = _with_head(target, draft_model, is_own=draft == "mtp")
    sized, sized_draft = size_up(
        request,
        target.examined.facts,
        draft_model.examined.facts if draft_model else None,
        say,
        head=head,
    )
    fit = place(sized, sized_draft, machine, layers(ngl, "--ngl"), layers(ngl_draft, "--ngl-draft"))
    found = [] if fit.fits else changes(sized, sized_draft, machine)[:MAX_CHANGES]
    rows: list[Row] | None = None
    if speed:
        placed = layers(ngl, "--ngl"), layers(ngl_draft, "--ngl-draft")
        drafts_otherwise = head is not None or draft in ("ngram", "lookahead")
        rows = _speed(
            request, model, target, draft_model, machine, placed, drafts_otherwise=drafts_otherwise, again=again
        )
    stop_waiting()
    if as_json:
        document = _document(target, draft_model, fit, found, sized.context.n_ctx)
        print(json.dumps(document | ({"speed": documents(rows)} if rows is not None else {})))
    else:
        _write(target, draft_model, fit, found, sized.context.n_ctx)
        if rows is not None:
            write_speed(rows)
    if not fit.fits:
        raise OutOfMemory(
            "It does not fit.",
            hint="The changes that would make it fit are listed above." if found else "Use a smaller model.",
        )


def _check_options(draft: str | None, *, speed: bool, again: bool, is_elsewhere: bool) -> None:
    """Raises UsageError for what cannot be planned, or measured here."""
    if draft is not None and draft.endswith(".safetensors"):
        raise UsageError(
            "plan reads GGUF headers, and Medusa heads have none.",
            hint="In memory they take their size in float32 (twice an F16 file), on top of the target.",
        )
    if speed and is_elsewhere:
        raise UsageError(
            "--speed measures this machine; --vram and --ram plan for another.", hint="Omit --speed, or both of them."
        )
    if again and not speed:
        raise UsageError("--again needs --speed.", hint="Add --speed.")


def _with_head(
    target: "Located", draft: "Located | None", *, is_own: bool
) -> "tuple[Located, Located | None, HeadFacts | None]":
    """Both models as memory counts them, and what the draft is if it is a head, of its own file or the target's."""
    from specdec_cli.models.heads import described, own_head, own_part, read_head, refuse_as_target

    examined, head = target.examined, None
    refuse_as_target(examined.headers, examined.name)
    if is_own:
        head = own_head(examined.headers, examined.name)
        own, rest = own_part(examined.facts, examined.headers)
        target = replace(target, examined=replace(examined, facts=rest))
        draft = replace(target, role="draft", examined=replace(examined, facts=own))
    elif draft is not None:
        theirs = draft.examined
        head = read_head(theirs.headers, examined.headers, theirs.name, theirs.file)
    if head is not None and draft is not None:
        say(described(head, draft.examined.name))
    return target, draft, head


def _speed(
    request: "PairRequest",
    model: str,
    target: "Located",
    draft: "Located | None",
    machine: "Machine",
    placed: tuple[str, str],
    *,
    drafts_otherwise: bool,
    again: bool,
) -> "list[Row]":
    """Forecasts for each format of the target; where a head or lookup drafts, the plain speed alone."""
    from specdec_cli.forecast.costs import Costs
    from specdec_cli.planning.plan import size_up
    from specdec_cli.presets.resolve import looks_like_path
    from specdec_cli.presets.schema import load_preset

    if drafts_otherwise:
        say("What heads and lookup cost and bring is not forecast; the plain speed is.")
        draft = None
    draft_facts = draft.examined.facts if draft is not None else None
    fit = placing(request, draft_facts, machine, placed)
    threads = size_up(request, target.examined.facts, draft_facts, lambda _: None)[0].context.threads
    chances = chances_of(None if looks_like_path(model) else load_preset(model))
    costs = Costs(threads, seconds=SECONDS, again=again)
    return forecast_rows(offers_of(target), draft, fit, costs, chances, machine.free_bytes)


def _located(model: str, draft: str | None) -> "tuple[Located, Located | None]":
    """Both models' headers, from this disk or the Hub."""
    from specdec_cli.drafters import NAMED
    from specdec_cli.hub.client import cache_root, open_hub
    from specdec_cli.hub.pull import Puller
    from specdec_cli.ui.progress import NoProgress

    puller = Puller(open_hub(), cache_root(), NoProgress(say), unreachable=0)
    target, own_draft = _wanted(model)
    wanted_draft = own_draft if draft is None else None
    if draft is not None and draft not in NAMED:
        wanted_draft = _wanted(draft, role="draft")[0]
    return puller.locate(target), puller.locate(wanted_draft) if wanted_draft is not None else None


def _known_sizes(model: str, draft: str | None) -> dict[str, int] | None:
    """Bytes of the weights by role, as a preset tells them; None if it does not, or no preset was named."""
    from specdec_cli.drafters import NAMED
    from specdec_cli.presets.resolve import looks_like_path
    from specdec_cli.presets.schema import load_preset

    if looks_like_path(model) or (draft is not None and draft not in NAMED):
        return None
    preset = load_preset(model)
    sources = {"target": preset.target} | ({"draft": preset.draft} if preset.draft and draft is None else {})
    sizes = {role: source.hub.bytes for role, source in sources.items() if source.hub and source.hub.bytes}
    return sizes if len(sizes) == len(sources) else None


def _plan_weights(sizes: dict[str, int], machine: "Machine", *, as_json: bool) -> None:
    """What can be said without headers. Raises OutOfMemory if the weights alone are too large."""
    from specdec_cli.errors import OutOfMemory
    from specdec_cli.ui import words

    free, total = machine.free_bytes, sum(sizes.values())
    fits = free is None or total <= free
    if as_json:
        print(json.dumps({"weights": sizes, "free": free, "fits": None if fits else False}))
    else:
        parts = ", ".join(f"{role} {words.download(size)}" for role, size in sizes.items())
        of = f" of {words.download(free)} free" if free is not None else ""
        print(f"weights  {words.download(total)}{of} ({parts})")
        if fits:
            print("The weights fit. Cache and buffers come on top; plan again online to count them.")
    if not fits:
        raise OutOfMemory("The weights alone do not fit.", hint="Use a smaller model or quantization.")


def _wanted(model: str, role: str = "target") -> "tuple[Wanted, Wanted | None]":
    """What a word means: a preset (with its draft), a file, a model of the Hub."""
    from specdec_cli.commands.options import quantize
    from specdec_cli.hub.pull import Wanted, wanted_model
    from specdec_cli.presets.resolve import looks_like_path, model_file
    from specdec_cli.presets.schema import ModelSource, load_preset

    if looks_like_path(model):
        return wanted_model(role, model), None
    preset = load_preset(model)

    def wanted(role: str, source: ModelSource) -> Wanted:
        return Wanted(role, hub=source.hub) if source.hub else Wanted(role, path=model_file(source, quantize, say))

    return wanted(role, preset.target), wanted("draft", preset.draft) if preset.draft else None


def _machine(vram: int | None, ram: int | None) -> "Machine":
    from specdec_cli.planning.placement import Gpu
    from specdec_cli.planning.plan import machine_now

    machine = machine_now()
    if vram is not None:
        machine = replace(machine, gpus=(Gpu("GPU", vram),) if vram else ())
    return machine if ram is None else replace(machine, ram_bytes=ram)


def _write(target: "Located", draft: "Located | None", fit: "Fit", found: "list[Change]", n_ctx: int) -> None:
    from specdec_cli.ui import words
    from specdec_cli.ui.clean import printable
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    models = [(target, fit.target, fit.layers)]
    if draft is not None and fit.draft is not None:
        models.append((draft, fit.draft, fit.draft_layers))
    rows = []
    for model, need, n_layers in models:
        sizes = (
            need.weights + need.gpu_weights,
            need.cache + need.gpu_cache,
            need.compute + need.gpu_compute,
            need.tokenizer,
        )
        rows.append(
            (
                model.role,
                *(words.download(n) for n in (*sizes, need.ram, need.gpu)),
                f"{n_layers} of {model.examined.facts.n_offloadable}",
            )
        )
    for model, _, _ in models:
        print(printable(f"{model.role + ':':8}{model.examined.name}"))
    headers = ("", "WEIGHTS", "CACHE", "BUFFERS", "TOKENIZER", "RAM", "GPU", "LAYERS")
    print()
    write_table(headers, rows, Terminal(sys.stdout, os.environ), right=" ".join(headers[1:-1]))
    print()
    for line in _verdict(fit, found, n_ctx):
        print(printable(line))


def _verdict(fit: "Fit", found: "list[Change]", n_ctx: int) -> list[str]:
    from specdec_cli.ui import words

    ram = words.download(fit.machine.ram_bytes) if fit.machine.ram_bytes is not None else "unknown"
    lines = [
        f"context  {n_ctx} tokens",
        f"memory   {words.download(fit.ram)} of {ram} free (including specdec itself){_mark(fit.fits_ram)}",
    ]
    for gpu in fit.machine.gpus:
        used, free = words.download(fit.on_gpu(gpu)), words.download(gpu.free_bytes)
        lines.append(f"{gpu.name:8} {used} of {free} free{_mark(fit.fits_gpu)}")
    if fit.machine.gpus:
        draft_layers = f" --ngl-draft {fit.draft_layers}" if fit.draft is not None else ""
        lines.append(f"layers   --ngl {fit.layers}{draft_layers}")
    if fit.target.copies:
        copies = fit.target.copies + (fit.draft.copies if fit.draft is not None else 0)
        lines.append(f"         + {words.download(copies)} of file cache, which the system can reclaim")
    if fit.fits:
        return [*lines, "It fits."]
    return [
        *lines,
        "It does not fit." + (" What would fit:" if found else ""),
        *(f"  - {change.text}" for change in found),
    ]


def _mark(fits: bool) -> str:
    return "" if fits else "  TOO LITTLE"


def _document(
    target: "Located", draft: "Located | None", fit: "Fit", found: "list[Change]", n_ctx: int
) -> dict[str, Any]:
    def one(model: "Located", need: Any, n_layers: int) -> dict[str, Any]:
        return {"file": model.examined.name, "gpu_layers": n_layers, **asdict(need), "ram": need.ram, "gpu": need.gpu}

    return {
        "context": n_ctx,
        "fits": fit.fits,
        "ram_needed": fit.ram,
        "ram_free": fit.machine.ram_bytes,
        "gpu_needed": fit.gpu,
        "gpus": [{"name": gpu.name, "free": gpu.free_bytes, "used": fit.on_gpu(gpu)} for gpu in fit.machine.gpus],
        "target": one(target, fit.target, fit.layers),
        "draft": one(draft, fit.draft, fit.draft_layers) if draft is not None else None,
        "changes": [change.text for change in found],
    }
