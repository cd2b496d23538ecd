"""What is exported: files, drafter and settings of a pair, as this machine runs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specdec_cli.drafters import sources
from specdec_cli.errors import UsageError


@dataclass(frozen=True, slots=True)
class ExportedPair:
    """`name` is what the other engine is to call it. `drafter` is a name from the table of drafters, or two joined with
    +, `draft` the file it needs, if any; `k` the draft length in tokens. None means "as the engine has it".

    `hub_target` and `hub_draft` are the ids of the original models on the Hub, for engines that do not read GGUF.
    """

    name: str
    target: Path
    drafter: str
    draft: Path | None
    k: int
    p_min: float = 0.0
    n_ctx: int | None = None
    threads: int | None = None
    threads_draft: int | None = None
    cache_type: str | None = None
    cache_type_draft: str | None = None
    flash_attention: str | None = None
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    hub_target: str | None = None
    hub_draft: str | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The drafters; none for plain decoding."""
        return tuple(name for name in sources(self.drafter) if name != "none")


@dataclass(frozen=True, slots=True)
class Export:
    """What runs the pair elsewhere: the text, and what its reader should know."""

    text: str
    notes: tuple[str, ...] = ()


def drafts_by_model(pair: ExportedPair, engine: str) -> Path:
    """The draft model's file. Raises UsageError for a pair that drafts in another way, which `engine` cannot do."""
    if pair.sources[-1:] != ("model",) or pair.draft is None:
        raise UsageError(
            f"{engine} takes an ordinary draft model, and this pair drafts by {pair.drafter}.",
            hint="Give a draft model with --draft, or use --to llama-server.",
        )
    return pair.draft
