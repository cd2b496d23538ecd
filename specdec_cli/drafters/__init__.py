"""The drafters by name. A new one is a file here and a line in the table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specdec_cli.drafters.head import HeadDrafter
from specdec_cli.drafters.model import ModelDrafter
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.drafters.none import NoDrafter
from specdec_cli.errors import UsageError
from specdec_cli.types import Drafter, Head, Target
from specdec_cli.verify import Rule


@dataclass(frozen=True, slots=True)
class DrafterParts:
    """What a drafter may be built from. `session` is the draft model's, None without one; `head` a trained head's."""

    rule: Rule
    end_tokens: frozenset[int]
    p_min: float
    session: Target | None
    head: Head | None = None


def _model(parts: DrafterParts) -> Drafter:
    if parts.session is None:
        raise UsageError("This drafter needs a draft model.", hint="Give one with --draft PATH.")
    return ModelDrafter(parts.session, parts.rule, parts.end_tokens, p_min=parts.p_min)


def _head(parts: DrafterParts) -> Drafter:
    if parts.head is None:
        raise UsageError("This drafter needs a trained head.", hint="Give one with --draft PATH.")
    return HeadDrafter(parts.head, parts.rule, parts.end_tokens, p_min=parts.p_min)


DRAFTERS: Mapping[str, Callable[[DrafterParts], Drafter]] = {
    "model": _model,
    "ngram": lambda _: NgramDrafter(),
    "none": lambda _: NoDrafter(),
    "eagle3": _head,
    "mtp": _head,
    "dflash": _head,
    "dflash2": _head,
    "dspark": _head,
}
