"""How models are opened: plain values, checked once, with the defaults in one place."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specdec_cli.errors import UsageError

CACHE_TYPE_BYTES: Mapping[str, float] = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Cache types that llama.cpp takes for keys and values, with bytes per element (block formats included)."""

FORMATS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q2_K")
"""Number formats that a model file can be copied in."""

FlashAttention = Literal["auto", "on", "off"]

DEFAULT_CONTEXT = 4096
"""Tokens of context when `--ctx` is not given; a model trained for fewer gets its own length."""
AUTO: Literal["auto"] = "auto"
"""Draft length by measured cost."""
Length = int | Literal["auto"]
"""Draft tokens of a round: a fixed number, or as many as measured costs say are worth it."""
LONGEST_AUTO = 16
"""Most draft tokens of a round whose length is chosen by measured cost."""
LONGEST_FORCED = 32
"""Most tokens of a round that a grammar forces: rows of logits are kept for each of them."""
USUAL_K = 4
"""Draft tokens of a round where the text depends on it, so that a seed repeats the text."""
LONGEST_WITH_STATES = 8
"""The same for a target with recurrent layers, which keeps a state for every draft token."""
MAX_CHECKPOINTS = 16
"""Most checkpoints of a recurrent state that a draft model keeps, each of the size of the state."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter of this `file`, by its hash, and how much of it is added to the weights."""

    file: str
    sha256: str
    scale: float = 1.0

    def __str__(self) -> str:
        return f"{self.sha256[:16]} x {self.scale:g}"


@dataclass(frozen=True, slots=True)
class ControlVector:
    """Directions of this `file`, by its hash, that are added to what the layers `first` to `last` give, counted from 1;
    without `last` to the last one."""

    file: str
    sha256: str
    scale: float = 1.0
    first: int = 1
    last: int | None = None

    def __str__(self) -> str:
        return f"{self.sha256[:16]} x {self.scale:g} in layers {self.first} to {self.last or 'the last'}"


@dataclass(frozen=True, slots=True)
class Adapters:
    """Those of a target and of its draft; only targets have control vectors."""

    target: tuple[Adapter, ...] = ()
    draft: tuple[Adapter, ...] = ()
    control: tuple[ControlVector, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model file and where its layers go. `gpu_layers` of -1 means all of them.

    `adapters` are added to its weights, `control` vectors to what its layers give, in every context. `is_head` is one
    that cannot write alone; `with_mtp` loads the layers that predict further tokens as well. Without `repack` weights
    stay as they lie in the file, which is slower and takes no copies of them.
    """

    path: Path
    gpu_layers: int = 0
    devices: tuple[str, ...] = ()
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    mmap: bool = True
    mlock: bool = False
    is_head: bool = False
    with_mtp: bool = False
    repack: bool = True
    adapters: tuple[Adapter, ...] = ()
    control: tuple[ControlVector, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """One evaluation context.

    `max_rows` is the most rows of logits asked for in one pass (k + 1), `branches` the most leaves of a tree beside the
    text, `max_back` the most tokens that are regularly taken back at once (None: `max_rows` - 1; a draft works token by
    token, and has k). No pass for logits is wider than `max_rows`, unless `wider_passes` may save others.
    """

    n_ctx: int = DEFAULT_CONTEXT
    n_batch: int = 512
    n_ubatch: int = 512
    threads: int = 1
    cache_type: str = "f16"
    flash_attention: FlashAttention = "auto"
    max_rows: int = 1
    max_back: int | None = None
    wider_passes: bool = True
    branches: int = 0

    @property
    def n_back(self) -> int:
        """Tokens that must be taken back without starting over."""
        return self.max_rows - 1 if self.max_back is None else self.max_back

    @property
    def n_checkpoints(self) -> int:
        """Checkpoints where a memory can only be taken back to such: for the end of the prompt, and for a target
        before its last pass, for a draft before each of its tokens."""
        if self.n_back == 0:
            return 0
        return 1 + (1 if self.max_rows > 1 else min(self.n_back, MAX_CHECKPOINTS))

    def __post_init__(self) -> None:
        if self.cache_type not in CACHE_TYPE_BYTES:
            raise UsageError(
                f"Invalid cache type: {self.cache_type!r}.", hint=f"Use one of {', '.join(CACHE_TYPE_BYTES)}."
            )
        if not 1 <= self.n_ubatch <= self.n_batch:
            raise UsageError(
                f"--ubatch ({self.n_ubatch}) must be between 1 and --batch ({self.n_batch}).",
                hint="Omit both to use the defaults.",
            )
        if self.max_rows > self.n_ubatch:
            raise UsageError(
                f"A draft of {self.max_rows - 1} tokens does not fit in a pass of {self.n_ubatch} tokens (--ubatch).",
                hint=f"Use -k {self.n_ubatch - 1} or less, or a larger --ubatch.",
            )
