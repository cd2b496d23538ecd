"""Estimates the memory of a model, and the share that moves to a GPU with its layers. Arithmetic only.

The figures follow llama.cpp's own buffers (llama-model.cpp, llama-kv-cache.cpp, llama-context.cpp);
scripts/benchmarks/memory.py holds them against the resident size of loaded models, docs/benchmarks.md has the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdec_cli.settings import CACHE_TYPE_BYTES, ContextSettings

DEVICE_RESERVE_BYTES = 512 * 2**20
"""Left free on a GPU for its driver and the screen."""
PROGRAM_BYTES = 60 * 10**6
"""Python and llama.cpp themselves."""
_TOKEN_BYTES = 160
_MERGE_BYTES = 190
"""What llama.cpp's tokenizer keeps for each token and each merge."""
_COPIES = 2
"""Of the states of a model that keeps snapshots: what lies further back."""
_CELLS = 256
"""Caches come in steps of so many tokens."""

_REPACKED: Mapping[str, frozenset[str]] = {
    "AVX2": frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}),
    "AVX512": frozenset({"Q2_K"}),
    "AMX_INT8": frozenset({"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}),
    "DOTPROD": frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0"}),
}
"""Formats that llama.cpp's CPU kernels want in another order (ggml-cpu/repack.cpp, amx/amx.cpp), by what the
processor can do."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What GGUF headers say about size, all files of a split model together. Sizes are bytes.

    By layer: `layer_bytes` of weights, `cache_elements` of keys and values for one token, `state_bytes` that a
    recurrent layer keeps whatever the context; `keeps_snapshots` if its architecture can keep earlier states too.
    `output_bytes` is what the output layer takes on a GPU: a matrix of its own, or, if it is tied to the embedding, a
    second copy of that. `format_bytes` are the layers' matrices by number format. `hidden_bytes` are kept of another
    model's hidden states.
    """

    weights_bytes: int
    n_layers: int
    n_vocab: int
    n_embd: int
    n_params: int
    n_ctx_train: int
    n_ff: int = 0
    n_head: int = 1
    n_merges: int = 0
    has_window: bool = False
    output_bytes: int = 0
    is_tied: bool = False
    layer_bytes: tuple[int, ...] = ()
    cache_elements: tuple[int, ...] = ()
    state_bytes: tuple[int, ...] = ()
    keeps_snapshots: bool = False
    format_bytes: Mapping[str, int] = field(default_factory=dict)
    hidden_bytes: int = 0

    @property
    def n_offloadable(self) -> int:
        """Layers as llama.cpp counts them for offload: the output layer is one more."""
        return self.n_layers + 1


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one model in one context, on the processor's side and on the GPUs'.

    `copies` are weights that llama.cpp keeps in another order for its CPU kernels; the mapped file they came from
    stays resident until the system wants the room, so they do not count as needed.
    """

    weights: int
    cache: int
    compute: int
    tokenizer: int
    gpu_weights: int = 0
    gpu_cache: int = 0
    gpu_compute: int = 0
    copies: int = 0

    @property
    def ram(self) -> int:
        """What has to be there for it to run without swapping."""
        return self.weights + self.cache + self.compute + self.tokenizer

    @property
    def resident(self) -> int:
        """What the system shows while there is no lack of memory."""
        return self.ram + self.copies

    @property
    def gpu(self) -> int:
        return self.gpu_weights + self.gpu_cache + self.gpu_compute


def need(
    facts: ModelFacts, context: ContextSettings, gpu_layers: int = 0, repacked: frozenset[str] = frozenset()
) -> Need:
    """Memory of a model with `gpu_layers` of its layers offloaded (-1: all), the last ones first as llama.cpp does.

    `repacked` are the formats that this processor's kernels reorder (`repacked_formats`).
    """
    n_gpu = facts.n_offloadable if gpu_layers < 0 else min(gpu_layers, facts.n_offloadable)
    first = facts.n_offloadable - n_gpu  # of the layers on the GPU; the output layer is the last
    gpu_weights = sum(facts.layer_bytes[first:]) + (facts.output_bytes if n_gpu else 0)
    gone = sum(facts.layer_bytes[first:]) + (facts.output_bytes if n_gpu and not facts.is_tied else 0)
    on_cpu = max(facts.weights_bytes - gone, 0)
    cache = _cache_by_layer(facts, context)
    compute = compute_bytes(facts, context)
    share = first / max(facts.n_layers, 1) if n_gpu else 1.0
    return Need(
        weights=on_cpu,
        cache=sum(cache[:first]),
        compute=(compute if n_gpu < facts.n_offloadable else context.max_rows * facts.n_vocab * 4) + facts.hidden_bytes,
        tokenizer=_TOKEN_BYTES * facts.n_vocab + _MERGE_BYTES * facts.n_merges,
        gpu_weights=gpu_weights,
        gpu_cache=sum(cache[first:]),
        gpu_compute=compute if n_gpu else 0,
        copies=int(share * sum(n for name, n in facts.format_bytes.items() if name in repacked)),
    )


def cache_bytes(facts: ModelFacts, context: ContextSettings) -> int:
    """Keys and values of the whole context, and the states of recurrent layers with what is kept to take tokens back.

    A sliding window saves nothing here: drafts and earlier turns are taken back at any distance, so every layer keeps
    the whole context (llama.cpp's swa_full).
    """
    return sum(_cache_by_layer(facts, context))


def _cache_by_layer(facts: ModelFacts, context: ContextSettings) -> list[int]:
    cells = _padded(context.n_ctx)
    per_element = CACHE_TYPE_BYTES[context.cache_type]
    states = facts.state_bytes or (0,) * len(facts.cache_elements)
    kept = 1 + context.n_checkpoints
    if facts.keeps_snapshots and context.max_rows > 1:
        kept = 1 + context.n_back + _COPIES
    return [int(n * cells * per_element) + kept * state for n, state in zip(facts.cache_elements, states, strict=True)]


def compute_bytes(facts: ModelFacts, context: ContextSettings) -> int:
    """Buffers of one pass (activations or logits, whichever is more, and masks), and the logits handed out."""
    activations = 4 * context.n_ubatch * (2 * facts.n_ff + 7 * facts.n_embd)
    logits = 4 * context.max_rows * facts.n_vocab
    masks = 2 * context.n_ubatch * _padded(context.n_ctx) * (2 if facts.has_window else 1)
    scores = 4 * context.n_ubatch * _padded(context.n_ctx) * facts.n_head if context.flash_attention == "off" else 0
    return max(activations, logits) + scores + masks + logits


def _padded(n_ctx: int) -> int:
    return -(-n_ctx // _CELLS) * _CELLS


def layers_that_fit(facts: ModelFacts, context: ContextSettings, free_bytes: int) -> int:
    """Most layers whose weights, cache and buffers stay within a GPU's free memory, a reserve left over."""
    usable = free_bytes - DEVICE_RESERVE_BYTES
    n = facts.n_offloadable
    while n > 0 and need(facts, context, n).gpu > usable:
        n -= 1
    return n


def repacked_formats(features: str) -> frozenset[str]:
    """Formats reordered on a processor with these features, as llama.cpp prints them ("AVX2 = 1 | ...")."""
    able = {part.split("=")[0].strip().split(" ")[-1] for part in features.split("|") if part.strip().endswith("= 1")}
    return frozenset().union(*(formats for feature, formats in _REPACKED.items() if feature in able))
