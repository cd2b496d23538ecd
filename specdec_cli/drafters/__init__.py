"""The drafters by name. A new one is a file here and a line in the table.

Imports: decode, models.
Called by: presets, planning, generation, bench, audit, export, serve, commands, __init__.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from specdec_cli.decode.coupled import Rule
from specdec_cli.decode.types import Drafter, Head, HiddenStates, Target
from specdec_cli.drafters.cross.drafter import Crossing, SharedTokensDrafter, TextDrafter
from specdec_cli.drafters.head import HeadDrafter
from specdec_cli.drafters.lookahead import LookaheadDrafter
from specdec_cli.drafters.medusa.drafter import MedusaDrafter
from specdec_cli.drafters.medusa.heads import Heads
from specdec_cli.drafters.mixed import MixedDrafter, Turns
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.drafter import LEAST_CHANCE, LEAST_CHANCE_IF_WEIGHED, NgramDrafter
from specdec_cli.drafters.ngram.predicted import PredictedText
from specdec_cli.drafters.ngram.store import NgramStore
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import UsageError


@dataclass(frozen=True, slots=True)
class DrafterParts:
    """What a drafter may be built from. `session` is the draft model's, None without one, `target` the target's;
    `head` is a trained head's, `heads` are Medusa's; `turns` says which of several sources to ask, None if nobody
    does; `store` holds earlier texts where they are to be copied from, `predicted` the text that the answer is said to
    repeat, none if it is empty. `crossing` translates for a draft model with another vocabulary.
    """

    rule: Rule
    end_tokens: frozenset[int]
    p_min: float
    session: Target | None
    target: HiddenStates | None = None
    head: Head | None = None
    heads: Heads | None = None
    turns: Turns | None = None
    store: NgramStore | None = None
    predicted: tuple[int, ...] = ()
    crossing: Crossing | None = None


def _model(parts: DrafterParts) -> Drafter:
    if parts.session is None:
        raise UsageError("This drafter needs a draft model.", hint="Give one with --draft PATH.")
    if parts.crossing is not None:
        way = TextDrafter if parts.crossing.by_text and parts.rule.keeps_text else SharedTokensDrafter
        return way(parts.session, parts.crossing, parts.rule, parts.end_tokens, p_min=parts.p_min)
    return ModelDrafter(parts.session, parts.rule, parts.end_tokens, p_min=parts.p_min)


def _ngram(parts: DrafterParts) -> Drafter:
    """Where costs decide how much of a draft is verified, it need not be likely as a whole."""
    least_chance = LEAST_CHANCE if parts.turns is None else LEAST_CHANCE_IF_WEIGHED
    predicted = PredictedText(parts.predicted) if parts.predicted else None
    return NgramDrafter(
        least_chance=least_chance, store=parts.store, predicted=predicted, most_forced=parts.rule.law.longest_forced
    )


def _medusa(parts: DrafterParts) -> Drafter:
    if parts.target is None or parts.heads is None:
        raise UsageError("This drafter needs heads.", hint="Give them with --draft FILE.safetensors.")
    return MedusaDrafter(parts.target, parts.heads, parts.rule, parts.end_tokens)


def _head(name: str, parts: DrafterParts) -> Drafter:
    if parts.head is None:
        raise UsageError("This drafter needs a trained head.", hint="Give one with --draft PATH.")
    if parts.head.name != name:
        raise UsageError(f"The trained head is {parts.head.name}, not {name}.", hint="Use its own name, or model.")
    return HeadDrafter(parts.head, parts.rule, parts.end_tokens, p_min=parts.p_min)


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """What the rest of the program must know of a drafter.

    `file` is the role of the file that it reads, "" for none. `is_named` says that `--draft` can name it, since it
    needs no file beside the target's. `copies` says that it drafts what a text has said before, `reads_store` that it
    copies from earlier texts and a predicted one, too. `heeds_p_min` is for those that end a draft before a token they
    are not sure enough of, `after_lookup` for those that cost so much that lookup is worth a try first. `has_trees`
    needs room for branches beside the text, and makes every pass wide.
    """

    make: Callable[[DrafterParts], Drafter]
    file: Literal["draft", "heads", ""] = ""
    is_named: bool = False
    copies: bool = False
    reads_store: bool = False
    heeds_p_min: bool = False
    after_lookup: bool = False
    has_trees: bool = False


def _trained(name: str, *, is_named: bool = False, after_lookup: bool = False) -> DrafterKind:
    make = partial(_head, name)
    return DrafterKind(make, "draft", is_named=is_named, heeds_p_min=True, after_lookup=after_lookup)


DRAFTERS: Mapping[str, DrafterKind] = {
    "lookahead": DrafterKind(
        lambda parts: LookaheadDrafter(parts.rule.law.n_shared), is_named=True, copies=True, has_trees=True
    ),
    "medusa": DrafterKind(_medusa, "heads", after_lookup=True),
    "model": DrafterKind(_model, "draft", heeds_p_min=True, after_lookup=True),
    "ngram": DrafterKind(_ngram, is_named=True, copies=True, reads_store=True),
    "none": DrafterKind(lambda _: NoDrafter(), is_named=True),
    "eagle3": _trained("eagle3"),
    "mtp": _trained("mtp", is_named=True, after_lookup=True),
    "dflash": _trained("dflash"),
    "dflash2": _trained("dflash2"),
    "dspark": _trained("dspark"),
}
NAMED = tuple(sorted(name for name, kind in DRAFTERS.items() if kind.is_named))
"""What `--draft` can name instead of a model file."""


def kinds(name: str) -> tuple[DrafterKind, ...]:
    """Of all who may draft under this name."""
    return tuple(DRAFTERS[source] for source in sources(name))


def make_drafter(name: str, parts: DrafterParts) -> Drafter:
    """A drafter of the table, or two of them that take turns: `ngram+model`. Raises UsageError."""
    first, *second = (kind.make(parts) for kind in kinds(name))
    return MixedDrafter(first, second[0], parts.turns) if second else first


def with_lookup(name: str) -> str:
    """The drafter that takes turns with lookup, if it is one that costs more than lookup does."""
    return f"{NgramDrafter.name}+{name}" if name in DRAFTERS and DRAFTERS[name].after_lookup else name


def sources(name: str) -> tuple[str, ...]:
    """Who may draft under this name: one drafter, or two that take turns."""
    return tuple(name.split("+", 1))
