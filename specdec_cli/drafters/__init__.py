"""The drafters by name. A new one is a file here and a line in the table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from specdec_cli.decode.coupled import Rule
from specdec_cli.decode.types import Drafter, Head, HiddenStates, Target
from specdec_cli.drafters.head import HeadDrafter
from specdec_cli.drafters.lookahead import LookaheadDrafter
from specdec_cli.drafters.medusa.drafter import MedusaDrafter
from specdec_cli.drafters.medusa.heads import Heads
from specdec_cli.drafters.mixed import MixedDrafter, Turns
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram.drafter import LEAST_CHANCE, LEAST_CHANCE_IF_WEIGHED, NgramDrafter
from specdec_cli.drafters.ngram.store import NgramStore
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import UsageError


@dataclass(frozen=True, slots=True)
class DrafterParts:
    """What a drafter may be built from. `session` is the draft model's, None without one, `target` the target's;
    `head` is a trained head's, `heads` are Medusa's; `turns` says which of several sources to ask, None if nobody
    does; `store` holds earlier texts where they are to be copied from.
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


def _model(parts: DrafterParts) -> Drafter:
    if parts.session is None:
        raise UsageError("This drafter needs a draft model.", hint="Give one with --draft PATH.")
    return ModelDrafter(parts.session, parts.rule, parts.end_tokens, p_min=parts.p_min)


def _ngram(parts: DrafterParts) -> Drafter:
    """Where costs decide how much of a draft is verified, it need not be likely as a whole."""
    least_chance = LEAST_CHANCE if parts.turns is None else LEAST_CHANCE_IF_WEIGHED
    return NgramDrafter(least_chance=least_chance, store=parts.store)


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


DRAFTERS: Mapping[str, Callable[[DrafterParts], Drafter]] = {
    "lookahead": lambda parts: LookaheadDrafter(parts.rule.law.n_shared),
    "medusa": _medusa,
    "model": _model,
    "ngram": _ngram,
    "none": lambda _: NoDrafter(),
    "eagle3": partial(_head, "eagle3"),
    "mtp": partial(_head, "mtp"),
    "dflash": partial(_head, "dflash"),
    "dflash2": partial(_head, "dflash2"),
    "dspark": partial(_head, "dspark"),
}
_DEARER = frozenset({"model", "mtp", "medusa"})
"""Those beside which lookup is worth a try first."""
HEED_P_MIN = frozenset({"model", "eagle3", "mtp", "dflash", "dflash2", "dspark"})
"""Those that end a draft before a token that they are not sure enough of."""
COPYING = frozenset({"ngram"})
"""Those that can copy from a store of earlier texts."""


def make_drafter(name: str, parts: DrafterParts) -> Drafter:
    """A drafter of the table, or two of them that take turns: `ngram+model`. Raises UsageError."""
    first, *second = (DRAFTERS[source](parts) for source in sources(name))
    return MixedDrafter(first, second[0], parts.turns) if second else first


def with_lookup(name: str) -> str:
    """The drafter that takes turns with lookup, if it is one that costs more than lookup does."""
    return f"{NgramDrafter.name}+{name}" if name in _DEARER else name


def sources(name: str) -> tuple[str, ...]:
    """Who may draft under this name: one drafter, or two that take turns."""
    return tuple(name.split("+", 1))
