"""What a pair is opened with, in groups: who drafts, the sampling, where the models go."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specdec_cli.decode.sampling import SamplingParams
from specdec_cli.settings import Adapters, FlashAttention
from specdec_cli.structured.source import GrammarSource


@dataclass(frozen=True, slots=True)
class Drafting:
    """Who drafts, how long and by which rule.

    `drafter` is a name from the table of drafters, or two of them joined with +. With `several`, others are
    tried one after another, with lengths of their own, and `drafter` is what has to be opened with the weights.
    `draft` is the file of a draft model or trained head, `head` that of Medusa heads. `k` is the length of drafts in
    tokens, with `auto` the longest that measured costs may choose. With `trees`, passes have room for lookahead's
    n-grams, whichever drafter is asked. `predict` is the file of a text that the answer will mostly repeat. `force`
    opens a draft that is not smaller than its target. With `cross` the draft may have another vocabulary.
    """

    drafter: str = "none"
    k: int = 0
    draft: Path | None = None
    head: Path | None = None
    auto: bool = False
    p_min: float = 0.0
    ngram_store: Path | None = None
    predict: Path | None = None
    verify: str = "coupled"
    strict: bool = False
    trees: bool = False
    several: bool = False
    force: bool = False
    cross: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. `banned` and `bias` name token ids; `grammar` is what the text keeps to."""

    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    ignore_end: bool = False
    banned: tuple[int, ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    grammar: GrammarSource | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where both models go, and how they use memory and threads. None means "choose"; sizes are in tokens.

    Numbers of GPU layers are "auto", "all" or digits. What ends in `_draft` follows the target's unless it is given.
    Without `repack` the target's weights stay as they lie in the file. With `trust` files are opened without a trial in
    a process of its own.
    """

    gpu_layers: str = "auto"
    gpu_layers_draft: str = "auto"
    devices: tuple[str, ...] = ()
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    rpc: tuple[str, ...] = ()
    require_gpu: bool = False
    repack: bool = True
    mmap: bool = True
    mlock: bool = False
    trust: bool = False
    flash_attention: FlashAttention = "auto"
    cache_type: str = "f16"
    cache_type_draft: str = "f16"
    n_ctx: int | None = None
    n_ctx_draft: int | None = None
    n_batch: int = 512
    n_ubatch: int | None = None
    threads: int | None = None
    threads_draft: int | None = None

    @property
    def longest_draft(self) -> int:
        """Draft tokens that one pass can hold, beside the token before them."""
        return (self.n_ubatch or self.n_batch) - 1


@dataclass(frozen=True, slots=True)
class PairRequest:
    """A target, and how it is to be drafted for, sampled and placed."""

    target: Path
    drafting: Drafting = field(default_factory=Drafting)
    sampling: Sampling = field(default_factory=Sampling)
    placement: Placement = field(default_factory=Placement)
    adapters: Adapters = field(default_factory=Adapters)

    def as_settings(self) -> dict[str, Any]:
        """All of it in one flat mapping, as documents and traces tell it."""
        sampling = asdict(self.sampling)
        params = sampling.pop("params")
        return {
            "target": self.target,
            **asdict(self.drafting),
            "sampling": params,
            **sampling,
            **asdict(self.placement),
            "lora": [asdict(adapter) for adapter in self.adapters.target],
            "control_vector": [asdict(vector) for vector in self.adapters.control],
            "lora_draft": [asdict(adapter) for adapter in self.adapters.draft],
        }
