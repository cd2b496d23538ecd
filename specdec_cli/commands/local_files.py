"""`specdec list`, `specdec rm`, `specdec verify-files`: the models on this machine."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.commands.completion import presets
from specdec_cli.commands.options import JsonOpt, agreed, say, stop_waiting, waiting
from specdec_cli.errors import DamagedFile, UsageError
from specdec_cli.ui.clean import printable

if TYPE_CHECKING:
    from specdec_cli.hub.inventory import Inventory, Stock
    from specdec_cli.presets.schema import Preset

YesOpt = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def list_files(*, as_json: JsonOpt = False) -> None:
    """Show the pairs on this machine and the disk space they use."""
    waiting("Looking for models ...")
    from specdec_cli.hub.cache import disk_bytes
    from specdec_cli.hub.inventory import draft_work, work_bytes
    from specdec_cli.ui import words
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    stock = _inventory()
    stop_waiting()
    if as_json:
        print(json.dumps(_document(stock)))
        return
    rows = [
        (
            pair.preset.name,
            words.download(disk_bytes(pair.places)),
            "yes" if pair.is_here else "partly",
            pair.preset.description,
        )
        for pair in stock.pairs
    ]
    rows += [
        (repo, words.download(disk_bytes([place])), "yes", f"{place.name} (no preset)") for repo, place in stock.others
    ]
    if rows:
        write_table(("PAIR", "SIZE", "HERE", "FILES"), rows, Terminal(sys.stdout, os.environ), right="SIZE")
        print(f"\n{words.download(stock.total_bytes)} of disk used; files shared by several pairs count once.")
    else:
        print("No models on this machine yet. specdec presets lists the pairs that specdec pull can download.")
    if stock.leftovers:
        n_files = words.count(len(stock.leftovers), "unfinished or damaged file")
        print(f"{n_files} ({words.download(disk_bytes(stock.leftovers))}): specdec rm --leftovers deletes them.")
    if work := draft_work():
        size = words.download(work_bytes(work))
        print(
            f"Unfinished work on {words.count(len(work), 'draft')} ({size}): specdec draft resumes it, "
            "specdec rm --leftovers deletes it."
        )


def rm(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Presets whose files to delete, or repositories (OWNER/NAME), as list shows them.",
            autocompletion=presets,
        ),
    ] = None,
    *,
    leftovers: Annotated[
        bool,
        typer.Option("--leftovers", help="Delete unfinished and damaged downloads, and unfinished work on drafts."),
    ] = False,
    yes: YesOpt = False,
) -> None:
    """Delete pairs from this machine. Files that another pair uses are kept."""
    if not names and not leftovers:
        raise UsageError("Nothing to delete was given.", hint="Give a pair (specdec list shows them), or --leftovers.")
    wanted = {name: _places_of(name) for name in names or ()}
    for name, places in wanted.items():
        if not places:
            say(f"No files of {name} on this machine.")
        elif yes or _agreed(f"Delete {name}?"):
            _remove(name, [place for place in places if place.exists()], _whole_others(set(wanted)))
    if leftovers:
        _remove_leftovers(yes)


def _places_of(name: str) -> Sequence[Path]:
    """The files of a preset, or those of a repository, or made here, that no preset names."""
    from specdec_cli.hub.inventory import stock_of
    from specdec_cli.presets.schema import load_preset

    if "/" in name:
        return [place for repo, place in _inventory().others if repo == name]
    return stock_of(load_preset(name), _root()).places


def _remove(name: str, places: Sequence[Path], others: "Sequence[Stock]") -> None:
    from specdec_cli.hub.inventory import remove_places
    from specdec_cli.ui import words

    freed, kept = remove_places(_root(), places, others)
    if len(kept) < len(places) or not places:
        say(f"Deleted {name}: {words.download(freed)} freed.")
    for place in kept:
        users = [o.preset.name for o in others if any(p.resolve() == place.resolve() for p in o.places)]
        say(f"{place.name} was kept: also used by {' and '.join(users)}.")


def _remove_leftovers(yes: bool) -> None:
    from specdec_cli.hub.inventory import draft_work, remove_draft_work, remove_leftovers
    from specdec_cli.ui import words

    found = _inventory().leftovers
    if found and (yes or _agreed(f"Delete {words.count(len(found), 'unfinished or damaged file')}?")):
        freed, n_kept = remove_leftovers(_root(), found)
        say(f"{words.download(freed)} freed.")
        if n_kept:
            say(f"{words.count(n_kept, 'file')} kept: being downloaded right now.")
    work = draft_work()
    if work and (yes or _agreed(f"Delete the unfinished work on {words.count(len(work), 'draft')}?")):
        freed, n_kept = remove_draft_work(work)
        say(f"{words.download(freed)} freed.")
        if n_kept:
            say(f"{words.count(n_kept, 'folder')} kept: a draft is being made there.")


def verify_files(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Presets to check (default: all GGUF files on this machine).", autocompletion=presets),
    ] = None,
) -> None:
    """Check files against their hashes: the Hub's, or those of models made here. Damaged files are never used again."""
    from specdec_cli.hub.inventory import known_sha256, stock_of, verify
    from specdec_cli.presets.schema import load_preset

    root, stock = _root(), _inventory()
    pairs = [stock_of(load_preset(name), root) for name in names] if names else stock.pairs
    known = {place: pair.sha256.get(place) for pair in pairs for place in pair.places}
    if not names:
        known |= {place: None for _, place in stock.others}
    if not known:
        say("There is nothing to check: specdec pull downloads models.")
    n_damaged = 0
    for place, sha256 in known.items():
        waiting(f"Checking {place.name} ...")
        has_hash = known_sha256(place, root, sha256) is not None
        reason = verify(place, root, sha256)
        stop_waiting()
        if reason is None:
            print(f"ok  {printable(place.name)}" + ("" if has_hash else "  (structure only; no hash is known)"))
        else:
            say(reason)
            n_damaged += 1
    if n_damaged:
        raise DamagedFile(
            f"{n_damaged} of {len(known)} files are damaged.",
            hint="Pull them again; what was made here is made again when it is used.",
        )


def _whole_others(names: set[str]) -> "list[Stock]":
    """Pairs whose files are needed: those without one of these names, but for what was deleted in part."""
    return [stock for stock in _inventory().pairs if stock.preset.name not in names and stock.is_here]


def _root() -> Path:
    from specdec_cli.hub.client import cache_root

    return cache_root()


def _inventory() -> "Inventory":
    from specdec_cli.hub.inventory import take_inventory

    return take_inventory(all_presets(), _root())


def all_presets() -> "list[Preset]":
    """Every preset that can be read; one that cannot is named, and does not hide the others."""
    from specdec_cli.presets.schema import preset_names, read_preset, unread_files

    for file in unread_files():
        say(f"{file} is not read: presets are YAML files called NAME.yaml.")
    found = []
    for file in preset_names().values():
        try:
            found.append(read_preset(file))
        except UsageError as error:
            say(str(error))
    return found


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("Deleting needs confirmation, and standard input is not a terminal.", hint="Give --yes.")
    return agreed(question, default=False)


def _document(stock: "Inventory") -> dict[str, object]:
    from specdec_cli.hub.cache import disk_bytes

    return {
        "pairs": [
            {
                "name": pair.preset.name,
                "complete": pair.is_here,
                "bytes": disk_bytes(pair.places),
                "files": [str(place) for place in pair.places],
            }
            for pair in stock.pairs
        ],
        "others": [{"repo": repo, "bytes": disk_bytes([place]), "file": str(place)} for repo, place in stock.others],
        "leftovers": [str(place) for place in stock.leftovers],
        "total_bytes": stock.total_bytes,
    }
