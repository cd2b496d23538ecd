"""`specdec pull`: downloads a pair from the Hub, checked from its headers before the weights."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.commands.completion import presets
from specdec_cli.commands.options import JsonOpt, agreed, find, say, stop_waiting, waiting
from specdec_cli.errors import Interrupted, UsageError
from specdec_cli.signals import raise_on_sigterm

STALL_SECONDS = 30.0
LONGEST_STALL_SECONDS = 86_400.0

if TYPE_CHECKING:
    from specdec_cli.hub.pull import Judged, Located, Wanted
    from specdec_cli.presets.schema import Preset


def pull(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Presets to download (specdec presets lists them).", autocompletion=presets),
    ] = None,
    *,
    target: Annotated[
        str | None,
        typer.Option(help="Instead of a preset: REPO[:FILE|QUANT]\\[@REVISION] of the target, or a local file."),
    ] = None,
    draft: Annotated[str | None, typer.Option(help="The same for the draft.")] = None,
    save: Annotated[str | None, typer.Option(help="Save the pair as your own preset with this name.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Download even if tokenizers differ, or memory or disk space is short.")
    ] = False,
    stall: Annotated[
        float,
        typer.Option(min=1, max=LONGEST_STALL_SECONDS, help="Give up on a silent connection after this many seconds."),
    ] = STALL_SECONDS,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show errors only.")] = False,
    as_json: JsonOpt = False,
) -> None:
    """Download a pair from the Hugging Face Hub.

    Tokenizers, memory, licence and disk space are checked from the headers before any weights are downloaded. An
    interrupted pull resumes when run again. Files are kept in the Hub's own cache (HF_HUB_CACHE).
    """
    raise_on_sigterm()
    if not quiet:
        waiting(f"Looking for {' '.join(names or [target or ''])} ...")
    if bool(names) == bool(target or draft):
        raise UsageError(
            "No preset given." if not names else "A preset already has a target and a draft.",
            hint="Give a preset (specdec presets lists them), or --target REPO:QUANT and --draft REPO:QUANT.",
        )
    if save is not None and names:
        raise UsageError("--save is for pairs given with --target and --draft.", hint="Omit it.")
    if names:
        from specdec_cli.presets.schema import load_preset

        presets = [load_preset(name) for name in names]  # all of them, before the first byte of one
        results = [pull_preset(preset, force=force, stall=stall, quiet=quiet or as_json) for preset in presets]
    else:
        results = [_pull_own(target, draft, save, force=force, stall=stall, quiet=quiet or as_json)]
    if as_json:
        print(json.dumps({"pairs": results}))


def pull_preset(preset: "Preset", *, force: bool, stall: float, quiet: bool) -> dict[str, Any]:
    """Bring what a preset names."""
    from specdec_cli.hub.pull import Wanted
    from specdec_cli.presets.schema import ModelSource

    sources = {"target": preset.target, "draft": preset.draft}

    def wanted(role: str, source: ModelSource) -> Wanted:
        return Wanted(role, Path(source.path).expanduser() if source.path else None, source.hub)

    given = [wanted(role, source) for role, source in sources.items() if source is not None and source.derive is None]
    if all(w.hub is None for w in given):
        _tell(f"{preset.name} needs no download: its models are local, or made on this machine.", quiet)
        return {"name": preset.name, "files": []}
    _tell(f"{preset.name}: {preset.description}. Licence: {preset.licence}.", quiet)
    for warning in filter(None, (preset.note, preset.unconfirmed)):
        _tell(warning, quiet)
    models, paths = _bring(given, force=force, stall=stall, quiet=quiet, cross=preset.cross)
    _tell(f"Next: specdec run {preset.name}", quiet)
    return _result(preset.name, models, paths)


def _pull_own(target: str | None, draft: str | None, save: str | None, **options: Any) -> dict[str, Any]:
    from specdec_cli.drafters import NAMED
    from specdec_cli.hub.pull import wanted_model
    from specdec_cli.presets.schema import check_new_name, save_preset

    if target is None:
        raise UsageError("--draft needs --target.", hint="Give the model it should draft for.")
    if draft in NAMED:
        raise UsageError(f"--draft {draft} needs no download.", hint="Omit it.")
    if save is not None:
        check_new_name(save)
    given = [wanted_model(role, text) for role, text in (("target", target), ("draft", draft)) if text is not None]
    models, paths = _bring(given, **options)
    if save is not None:
        file = save_preset(
            save, [m.source for m in models], [m.remote.info.licence if m.remote else None for m in models]
        )
        _tell(f"Saved as {file}. Next: specdec run {save}", options["quiet"])
    else:
        draft_option = f" --draft {shlex.quote(str(paths[1]))}" if len(paths) > 1 else ""
        _tell(f"Next: specdec run {shlex.quote(str(paths[0]))}{draft_option}", options["quiet"])
    return _result(save, models, paths)


def _tell(text: str, quiet: bool) -> None:
    if not quiet:
        say(text)


def _bring(
    wanted: "list[Wanted]", *, force: bool, stall: float, quiet: bool, cross: bool = False
) -> "tuple[tuple[Located, ...], list[Path]]":
    from specdec_cli.hub.client import cache_root, open_hub
    from specdec_cli.hub.pull import Puller
    from specdec_cli.planning.plan import machine_now
    from specdec_cli.ui.progress import open_progress
    from specdec_cli.ui.terminal import Terminal

    hub = open_hub(stall_seconds=stall)
    stop_waiting()
    try:
        with open_progress(Terminal(sys.stderr, os.environ), quiet=quiet, say=say) as progress:
            puller = Puller(hub, cache_root(), progress)
            progress.note("Reading headers ...")
            models = tuple(puller.locate(w) for w in wanted)
            judged = puller.judge(models, machine_now(), force=force, cross=cross)
            for line in _verdict(judged):
                progress.note(line)
            progress.expect(judged.to_fetch)
            return models, [puller.fetch(m) for m in models]
    except (KeyboardInterrupt, Interrupted):
        _tell("Stopped. Run the same command again to resume.", quiet)
        raise


def _verdict(judged: "Judged") -> list[str]:
    """What was found before the weights come, a line each."""
    from specdec_cli.models.tokenizer_check import one_line
    from specdec_cli.ui import words

    lines = []
    for model in judged.models:
        remote = model.remote
        where = f"{remote.info.repo}, {words.download(remote.files.size)}" if remote else "already downloaded"
        licence = f", licence {remote.info.licence}" if remote and remote.info.licence else ""
        lines.append(f"{model.role}: {model.examined.name} ({where}{licence})")
    if judged.report is not None:
        lines.append(one_line(judged.report))
    need, fit = judged.fit.ram + judged.fit.gpu, judged.fit
    free = fit.machine.free_bytes
    verdict = "fits" if fit.fits else "DOES NOT FIT"
    of = f"{words.download(free)} free: {verdict}" if free is not None else "an unknown amount"
    lines.append(f"memory: about {words.download(need)} of {of}")
    lines.append(f"to download: {words.download(judged.to_fetch)}" if judged.to_fetch else "nothing to download")
    return lines


def _result(name: str | None, models: "tuple[Located, ...]", paths: "list[Path]") -> dict[str, Any]:
    from dataclasses import asdict

    files = [
        {"role": model.role, "path": str(path), "hub": asdict(model.hub) if model.hub is not None else None}
        for model, path in zip(models, paths, strict=True)
    ]
    return {"name": name, "files": files}


def offer_to_pull(preset: "Preset", draft: str | None) -> None:
    """Ask whether to fetch what a preset lacks, if there is somebody to ask. Does nothing else."""
    from dataclasses import replace

    from specdec_cli.presets.schema import hub_files

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if draft is not None:  # the user brings another
        preset = replace(preset, draft=None)
    missing = [file for file in hub_files(preset) if find(file) is None]
    if not missing:
        return
    from specdec_cli.hub.client import is_offline
    from specdec_cli.ui import words

    if is_offline():
        return
    sizes = sum(file.bytes or 0 for file in missing)
    size = f" ({words.download(sizes)})" if sizes else ""
    if agreed(f"{preset.name} is not on this machine yet. Download it now{size}?", default=True):
        pull_preset(preset, force=False, stall=STALL_SECONDS, quiet=False)
