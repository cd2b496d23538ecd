"""How much memory a model will need, and how much of it a device can hold. Arithmetic on header facts."""

from dataclasses import dataclass

from specdec_cli.settings import CACHE_TYPE_BYTES

DEVICE_RESERVE_BYTES = 512 * 2**20
"""Left free on a GPU for its driver, the screen and the compute buffers of a pass."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a GGUF header says about size. `weights_bytes` counts all files of a split model."""

    weights_bytes: int
    n_layers: int
    n_vocab: int
    n_embd: int
    n_params: int
    n_ctx_train: int
    n_head_kv: int
    key_length: int
    value_length: int

    @property
    def n_offloadable(self) -> int:
        """Layers as llama.cpp counts them for offload: the output layer is one more."""
        return self.n_layers + 1


def cache_bytes(facts: ModelFacts, n_ctx: int, cache_type: str) -> int:
    """Bytes of keys and values for `n_ctx` tokens, every layer attending to all of them."""
    per_token = facts.n_layers * facts.n_head_kv * (facts.key_length + facts.value_length)
    return int(per_token * n_ctx * CACHE_TYPE_BYTES[cache_type])


def compute_bytes(facts: ModelFacts, n_ubatch: int, max_rows: int) -> int:
    """A rough figure for one pass: activations of a micro-batch and the rows of logits."""
    return 4 * (n_ubatch * facts.n_embd * 16 + 2 * max_rows * facts.n_vocab)


def total_bytes(facts: ModelFacts, n_ctx: int, cache_type: str, n_ubatch: int, max_rows: int) -> int:
    """Weights, cache and one pass."""
    return facts.weights_bytes + cache_bytes(facts, n_ctx, cache_type) + compute_bytes(facts, n_ubatch, max_rows)


def layers_that_fit(facts: ModelFacts, needed_bytes: int, free_bytes: int) -> int:
    """Layers to offload so that their share of `needed_bytes` stays within the device's free memory."""
    usable = free_bytes - DEVICE_RESERVE_BYTES
    per_layer = max(needed_bytes / facts.n_offloadable, 1)
    return max(0, min(facts.n_offloadable, int(usable / per_layer)))
