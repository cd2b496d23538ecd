"""`specdec list`, `specdec rm`, `specdec verify-files`: the models on this machine."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.commands.options import JsonOpt, say
from specdec_cli.errors import DamagedFile, UsageError

if TYPE_CHECKING:
    from specdec_cli.inventory import Inventory, Stock
    from specdec_cli.presets import Preset

YesOpt = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def list_files(*, as_json: JsonOpt = False) -> None:
    """Show the pairs on this machine and what they take; files that pairs share count once."""
    from specdec_cli.store import disk_bytes
    from specdec_cli.ui import words
    from specdec_cli.ui.table import write_table
    from specdec_cli.ui.terminal import Terminal

    stock = _inventory()
    if as_json:
        print(json.dumps(_document(stock)))
        return
    rows = [
        (
            pair.preset.name,
            words.download(disk_bytes(pair.places)),
            "yes" if pair.is_here else "in part",
            pair.preset.description,
        )
        for pair in stock.pairs
    ]
    rows += [
        (repo, words.download(disk_bytes([place])), "yes", f"{place.name} (no preset)") for repo, place in stock.others
    ]
    if rows:
        write_table(("PAIR", "SIZE", "HERE", "FILES"), rows, Terminal(sys.stdout, os.environ), right="SIZE")
        print(f"\n{words.download(stock.total_bytes)} in all, files that pairs share counted once.")
    else:
        print("No model is here yet. specdec presets lists what specdec pull can bring.")
    if stock.leftovers:
        n_files = words.count(len(stock.leftovers), "unfinished or damaged file")
        print(f"{n_files} ({words.download(disk_bytes(stock.leftovers))}): specdec rm --leftovers deletes them.")


def rm(
    names: Annotated[list[str] | None, typer.Argument(help="Pairs to delete, by their presets' names.")] = None,
    *,
    leftovers: Annotated[bool, typer.Option("--leftovers", help="Delete unfinished and damaged downloads.")] = False,
    yes: YesOpt = False,
) -> None:
    """Delete pairs from this machine. Files that another pair here uses stay."""
    from specdec_cli.inventory import remove_leftovers, remove_pair, stock_of
    from specdec_cli.presets import load_preset
    from specdec_cli.ui import words

    if not names and not leftovers:
        raise UsageError("Nothing was named to delete.", hint="Name a pair (specdec list), or give --leftovers.")
    root = _root()
    presets = [load_preset(name) for name in names or ()]
    for preset in presets:
        stock = stock_of(preset, root)
        if not stock.places:
            say(f"Nothing of {preset.name} is here.")
        elif yes or _agreed(f"Delete {preset.name}?"):
            freed, kept = remove_pair(stock, _whole_others(preset.name))
            say(f"Deleted {preset.name}: {words.download(freed)} freed.")
            for place in kept:
                say(f"{place.name} stays: another pair uses it.")
    if leftovers:
        found = _inventory().leftovers
        if found and (yes or _agreed(f"Delete {words.count(len(found), 'unfinished or damaged file')}?")):
            say(f"{words.download(remove_leftovers(found))} freed.")


def verify_files(
    names: Annotated[list[str] | None, typer.Argument(help="Pairs to check; without any, all GGUF files here.")] = None,
) -> None:
    """Check files against the hashes that the Hub gave; a damaged one is put aside and never used."""
    from specdec_cli.inventory import stock_of, verify
    from specdec_cli.presets import load_preset

    root = _root()
    if names:
        places = {place: None for name in names for place in stock_of(load_preset(name), root).places}
    else:
        stock = _inventory()
        places = {place: None for pair in stock.pairs for place in pair.places} | {
            place: None for _, place in stock.others
        }
    if not places:
        say("There is nothing to check: specdec pull brings models.")
    n_damaged = 0
    for place in places:
        if verify(place, root, say):
            print(f"ok  {place.name}")
        else:
            n_damaged += 1
    if n_damaged:
        raise DamagedFile(f"{n_damaged} of {len(places)} files are damaged.", hint="Pull them again.")


def _whole_others(name: str) -> "list[Stock]":
    """Pairs whose files are needed: one that has been deleted in part holds nothing back."""
    return [stock for stock in _inventory().pairs if stock.preset.name != name and stock.is_here]


def _root() -> Path:
    from specdec_cli.hub import cache_root

    return cache_root()


def _inventory() -> "Inventory":
    from specdec_cli.hub import cache_root
    from specdec_cli.inventory import take_inventory

    return take_inventory(all_presets(), cache_root())


def all_presets() -> "list[Preset]":
    """Every preset that can be read; one that cannot is named, and does not hide the others."""
    from specdec_cli.presets import preset_names, read_preset

    found = []
    for file in preset_names().values():
        try:
            found.append(read_preset(file))
        except UsageError as error:
            say(str(error))
    return found


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("Deleting asks first, and there is nobody to ask.", hint="Give --yes.")
    return typer.confirm(question, err=True)


def _document(stock: "Inventory") -> dict[str, object]:
    from specdec_cli.store import disk_bytes

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
