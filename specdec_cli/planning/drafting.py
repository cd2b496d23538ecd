"""Who drafts, how long and by which rule: decided here, and nowhere else."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from specdec_cli.decode.coupled import SharedNoise
from specdec_cli.drafters import NAMED, kinds, sources, with_lookup
from specdec_cli.drafters.lookahead import DEFAULT_WINDOW
from specdec_cli.drafters.ngram.drafter import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.planning.profile import Profile
from specdec_cli.planning.request import Drafting
from specdec_cli.presets.resolve import Resolved
from specdec_cli.settings import AUTO, LONGEST_AUTO, LONGEST_WITH_STATES, USUAL_K

WIDEST_LOOKAHEAD = 31
"""Tokens beside the first in a pass of lookahead."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The wishes of a user. None means "choose": `k` then by measured cost, `p_min` as the preset has it."""

    k: int | None = None
    p_min: float | None = None
    lookup: bool = True
    verify: str = "coupled"
    strict: bool = False
    ngram_store: Path | None = None
    predict: Path | None = None
    force: bool = False


def decide(asked: Asked, files: Resolved, profile: Profile | None, longest: int) -> Drafting:
    """For one run with these files. A pass holds at most `longest` draft tokens.

    What the user asked for comes first, then the `profile` of bench --tune, then the preset. A profile that cannot go
    with the options is left out, and a length that the user did not give is cut to what a pass can hold: neither may
    make an error of a command that is right. Where the text depends on where drafts end (every rule but "coupled"),
    the length must not be left to measured costs.
    """
    profile = profile if profile is not None and suits(profile, asked) else None
    drafter = _drafter(asked, files, profile)
    if asked.predict is not None:
        drafter = NgramDrafter.name if drafter == NoDrafter.name else with_lookup(drafter)
    k = asked.k if asked.k is not None else _tuned_length(asked, files, profile, longest)
    longest = min(1 if drafter == NoDrafter.name else LONGEST_AUTO, longest)
    if k is None and asked.lookup and profile is None:
        drafter = with_lookup(drafter)
    if asked.k is None and 0 in (k, longest):
        drafter = _without_file(drafter)
    # A drafter that does not pay is not loaded.
    draft, head = (None, None) if drafter in NAMED else (files.draft, files.head)
    return Drafting(
        drafter=drafter,
        k=longest if k is None else k,
        draft=draft,
        head=head,
        auto=k is None and drafter != NoDrafter.name and longest > 0,
        p_min=_p_min(asked, files, profile),
        ngram_store=asked.ngram_store,
        predict=asked.predict,
        verify=asked.verify,
        strict=asked.strict,
        force=asked.force,
        cross=files.cross,
    )


def with_lookup_at_least(files: Resolved, asked: Asked) -> Resolved:
    """With n-gram lookup where nothing else drafts: for who does not know yet what will be asked of the pair, and
    whether it comes with a text that the answer repeats."""
    if files.drafter != NoDrafter.name or not asked.lookup or asked.verify != SharedNoise.name:
        return files
    return replace(files, drafter=NgramDrafter.name)


def suits(profile: Profile, asked: Asked) -> bool:
    """Whether what was tuned can go with these options."""
    drafters = kinds(profile.drafter)
    if asked.strict and any(kind.has_trees for kind in drafters):
        return False
    copies = asked.lookup and any(kind.reads_store for kind in drafters)
    if (asked.ngram_store is not None or asked.predict is not None) and not copies:
        return False
    return not (asked.k and profile.drafter == NoDrafter.name)


def _tuned_length(asked: Asked, files: Resolved, profile: Profile | None, longest: int) -> int | None:
    """The length where the user gave none; None where measured costs choose it."""
    if profile is not None and profile.k != AUTO:
        return min(profile.k, longest)
    if asked.verify == SharedNoise.name:
        return None
    preset_k = files.preset.k if files.preset is not None else None
    return min(preset_k or USUAL_K, longest)


def _without_file(drafter: str) -> str:
    """What is left of it where nothing is drafted: no model or head is read for that."""
    return next((name for name in sources(drafter) if name == NgramDrafter.name), NoDrafter.name)


def _drafter(asked: Asked, files: Resolved, profile: Profile | None) -> str:
    if profile is None:
        return files.drafter
    tuned = profile.drafter if asked.lookup else profile.drafter.removeprefix(f"{NgramDrafter.name}+")
    return files.drafter if tuned == NgramDrafter.name and not asked.lookup else tuned


def _p_min(asked: Asked, files: Resolved, profile: Profile | None) -> float:
    preset_p_min = files.preset.p_min if files.preset is not None else None
    wishes = (asked.p_min, profile.p_min if profile is not None else None, preset_p_min)
    return next((wish for wish in wishes if wish is not None), 0.0)


def for_several(files: Resolved, drafters: Iterable[str], longest: int, *, auto: bool = False) -> Drafting:
    """To try these drafters one after another with one open pair, and drafts of at most `longest` tokens.

    MTP layers are read with the weights. Lookahead needs more sequences; its passes are wide, and texts are compared at
    the widths of passes.
    """
    trees = any(_has_trees(name) for name in drafters)
    return Drafting(
        drafter="mtp" if files.drafter == "mtp" else NoDrafter.name,
        k=max(longest, WIDEST_LOOKAHEAD if trees else 0),
        draft=files.draft,
        head=files.head,
        auto=auto,
        trees=trees,
        several=True,
        force=True,
        cross=files.cross,
    )


def longest_draft(drafting: Drafting, *, has_states: bool) -> int:
    """Draft tokens of a round that a context must have room for; a target with states keeps one for each of them."""
    is_chosen = drafting.auto and not drafting.several  # of several, some have fixed lengths
    return min(drafting.k, LONGEST_WITH_STATES) if is_chosen and has_states else drafting.k


def n_branches(drafting: Drafting) -> int:
    """Leaves of a tree beside the text that a context must have room for."""
    return DEFAULT_WINDOW if drafting.trees or _has_trees(drafting.drafter) else 0


def _has_trees(drafter: str) -> bool:
    return any(kind.has_trees for kind in kinds(drafter))
