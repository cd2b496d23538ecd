"""The drafters by name. A new one is a file here and a line in the table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import UsageError
from specdec_cli.ngram_store import NgramStore
from specdec_cli.types import Drafter, Target
from specdec_cli.verify import Rule


@dataclass(frozen=True, slots=True)
class DrafterParts:
    """What a drafter may be built from. `session` is the draft model's, None without one; `store` holds earlier texts
    where they are to be copied from."""

    rule: Rule
    end_tokens: frozenset[int]
    p_min: float
    session: Target | None
    store: NgramStore | None = None


def _model(parts: DrafterParts) -> Drafter:
    if parts.session is None:
        raise UsageError("This drafter needs a draft model.", hint="Give one with --draft PATH.")
    return ModelDrafter(parts.session, parts.rule, parts.end_tokens, p_min=parts.p_min)


DRAFTERS: Mapping[str, Callable[[DrafterParts], Drafter]] = {
    "model": _model,
    "ngram": lambda parts: NgramDrafter(store=parts.store),
    "none": lambda _: NoDrafter(),
}
COPYING = frozenset({"ngram"})
"""Those that can copy from a store of earlier texts."""
