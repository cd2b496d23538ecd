"""The drafters by name. A new one is a file here and a line in the table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.types import Drafter, Target
from specdec_cli.verify import SharedNoise


@dataclass(frozen=True, slots=True)
class DrafterParts:
    """What a drafter may be built from. `open_session` loads the draft model on first use."""

    rule: SharedNoise
    end_tokens: frozenset[int]
    p_min: float
    open_session: Callable[[], Target]


DRAFTERS: Mapping[str, Callable[[DrafterParts], Drafter]] = {
    "model": lambda parts: ModelDrafter(parts.open_session(), parts.rule, parts.end_tokens, p_min=parts.p_min),
    "ngram": lambda _: NgramDrafter(),
    "none": lambda _: NoDrafter(),
}
