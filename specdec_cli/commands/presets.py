"""`specdec presets`: lists the named pairs."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.commands.completion import presets
from specdec_cli.commands.help import Command, Commands
from specdec_cli.commands.local_files import all_presets
from specdec_cli.commands.options import JsonOpt, stop_waiting, waiting

if TYPE_CHECKING:
    from specdec_cli.planning.placement import Machine
    from specdec_cli.presets.schema import ModelSource, Preset


class _ByName(Commands):
    """`presets NAME` is `presets show NAME`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        found = super().shell_complete(ctx, incomplete)
        return [*found, *self.commands["show"].params[0].shell_complete(ctx, incomplete)]


presets_app = typer.Typer(
    add_completion=False,
    help="List the named pairs; with NAME, show one of them.",
    invoke_without_command=True,
    cls=_ByName,
    subcommand_metavar="[NAME]",
)

_SHARE_OF_BUFFERS = 1.15
"""Weights are most of what a model needs; cache and buffers of 4,096 tokens add about so much."""


@presets_app.callback()
def list_presets(
    context: typer.Context,
    *,
    speed: Annotated[
        bool,
        typer.Option(
            "--speed",
            help="Forecast tokens/s of the presets that are on this machine, plain and with drafts. Takes up to a "
            "minute; specdec plan NAME --speed does the same for one that is not here.",
        ),
    ] = False,
    as_json: JsonOpt = False,
) -> None:
    """List all presets: size, whether they fit in free memory, and whether they are on this machine."""
    if context.invoked_subcommand is not None:
        return
    waiting("Looking at presets and memory ...")
    from specdec_cli.planning.plan import machine_now
    from specdec_cli.ui import words
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    machine = machine_now()
    free = machine.free_bytes
    found = sorted(
        (_row(preset, free) for preset in all_presets()),
        key=lambda row: (not row["here"], row["bytes"] is None, row["bytes"] or 0, row["name"]),
    )
    if speed:
        _add_speeds(found, machine)
    stop_waiting()
    if as_json:
        print(json.dumps({"presets": found}))
        return
    yes_no = {True: "yes", False: "no", None: "?"}
    rows = [
        (
            row["name"],
            ("~" if row["estimated"] else "") + words.download(row["bytes"]) if row["bytes"] else "?",
            yes_no[row["fits"]],
            yes_no[row["here"]],
            *([_speed(row["speed"])] if speed else []),
            row["description"] + (" [gated]" if row["gated"] else ""),
        )
        for row in found
    ]
    headers = ("NAME", "SIZE", "FITS", "HERE", *(["TOKENS/S"] if speed else []), "PAIR")
    write_table(headers, rows, Terminal(sys.stdout, os.environ), right="SIZE")
    if speed:
        print("\nTOKENS/S are forecast: plain, and with drafts at the acceptance reported of the preset, or 0.7.")
    print("\nSizes with ~ are estimates. FITS is a guess from the size alone; specdec plan NAME works it out.")
    print("Details: specdec presets NAME.")


@presets_app.command(cls=Command)
def show(
    name: Annotated[str, typer.Argument(help="The preset's name.", autocompletion=presets)], *, as_json: JsonOpt = False
) -> None:
    """Show everything known about a preset, and what is not confirmed."""
    from specdec_cli.presets.schema import load_preset
    from specdec_cli.ui.clean import printable

    preset = load_preset(name)
    if as_json:
        print(json.dumps(asdict(preset)))
        return
    for label, text in _facts(preset):
        print(printable(f"{label:14}{text}"))


def _add_speeds(rows: list[dict[str, Any]], machine: "Machine") -> None:
    """What can be measured in time of those that are here and fit; None for the others."""
    from specdec_cli.commands.speed import SECONDS, speed_here
    from specdec_cli.forecast.costs import Costs
    from specdec_cli.planning.machine import usable_cores
    from specdec_cli.presets.schema import load_preset

    costs = Costs(usable_cores(), seconds=SECONDS)
    with waiting() as line:
        for row in rows:
            row["speed"] = None
            if row["here"] and row["fits"] is not False:
                line.show(f"Measuring {row['name']} ...")
                found = speed_here(load_preset(row["name"]), machine, costs)
                row["speed"] = None if found is None else asdict(found)


def _speed(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    if not found["k"]:
        return f"{found['plain']:.1f}"
    return f"{found['plain']:.1f}, {found['tokens_per_second']:.1f} with k {found['k']}"


def _row(preset: "Preset", free: int | None) -> dict[str, Any]:
    from specdec_cli.hub.client import cache_root
    from specdec_cli.hub.inventory import stock_of
    from specdec_cli.presets.schema import hub_files

    files = hub_files(preset)
    about_target, _, about_draft = preset.description.partition(", drafted by ")
    models = [(preset.target, about_target), (preset.draft, about_draft)]
    sizes = [_size(source, about) for source, about in models if source is not None]
    size = sum(found[0] for found in sizes if found is not None) if None not in sizes else None
    is_made = all(_own_file(source) is not None for source, _ in models if source is not None and source.hub is None)
    return {
        "name": preset.name,
        "bytes": size,
        "estimated": size is not None and any(found is not None and found[1] for found in sizes),
        "fits": _fits(size, free),
        "here": is_made and stock_of(preset, cache_root()).is_here,
        "gated": any(file.gated for file in files),
        "unconfirmed": preset.unconfirmed is not None,
        "description": preset.description,
    }


def _size(source: "ModelSource", about: str) -> tuple[int, bool] | None:
    """Bytes of a model, and whether they are estimated; None if nothing is known."""
    from specdec_cli.presets.sizes import estimated_bytes

    if source.hub is not None and source.hub.bytes is not None:
        return source.hub.bytes, False
    if (file := _own_file(source)) is not None:
        return file.stat().st_size, False
    if source.derive is not None:
        name = f"{source.derive.file.split('.')[0]}-{source.derive.quantize}"
    else:
        name = source.hub.file if source.hub is not None else str(source.path)
    size = estimated_bytes(name.rpartition("/")[2], about)
    return None if size is None else (size, True)


def _own_file(source: "ModelSource") -> Path | None:
    """A model that is no file of the Hub's, where it is on this machine already."""
    from specdec_cli.presets.derive import derived_path
    from specdec_cli.presets.resolve import derived_folder

    if source.path is not None:
        path = Path(source.path).expanduser()
    elif source.derive is not None:
        path = derived_path(source.derive, derived_folder())
    else:
        return None
    return path if path.is_file() else None


def _fits(size: int | None, free: int | None) -> bool | None:
    return None if size is None or free is None else size * _SHARE_OF_BUFFERS <= free


def _facts(preset: "Preset") -> list[tuple[str, str]]:
    rows = [("name", preset.name), ("pair", preset.description), ("licence", preset.licence)]
    rows += [("chat format", preset.chat)] if preset.chat else []
    for role, source in (("target", preset.target), ("draft", preset.draft)):
        rows += [(role if i == 0 else "", line) for i, line in enumerate(_source(source))] if source is not None else []
    rows += (
        [("draft length", f"{preset.k} (where lengths are fixed; bench tries it too)")] if preset.k is not None else []
    )
    rows += [("p-min", f"{preset.p_min:g}")] if preset.p_min is not None else []
    rows += [("sampling", str(preset.sampling))]
    rows += [("note", preset.note)] if preset.note else []
    rows += [("unconfirmed", preset.unconfirmed)] if preset.unconfirmed else []
    for report in preset.reports:
        acceptance = f"{report.acceptance:.0%} accepted" if report.acceptance is not None else None
        k = f"k {report.k}" if report.k is not None else None
        rows.append(("reported", ", ".join(filter(None, (report.hardware, k, acceptance, report.speed)))))
        rows.append(("", f"source: {report.source}"))
    if not preset.reports and preset.name != "demo":
        rows.append(("reported", "no published figures for this pair"))
    return rows


def _source(source: "ModelSource") -> list[str]:
    from specdec_cli.ui import words

    if source.hub is None:
        return [
            source.path or f"made here from the package {source.derive.package}" if source.derive else str(source.path)
        ]
    file = source.hub
    lines = [f"{file.repo}: {file.file}", f"revision {file.revision}{'' if file.is_pinned else ' (not pinned)'}"]
    size = words.download(file.bytes) if file.bytes else "size unknown"
    lines.append(f"{size}, sha256 {file.sha256 or 'unknown'}{', gated' if file.gated else ''}")
    return lines
