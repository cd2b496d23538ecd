"""Which layers of a model can be dropped with the least harm.

A layer that hardly turns the residual stream is hardly missed. How far apart the stream is before and after a block of
layers, as an angle at each token, orders the blocks of a length (Gromov et al., "The unreasonable ineffectiveness of
the deeper layers", arXiv 2403.17887); the same for single layers picks scattered ones (Men et al., "ShortGPT", arXiv
2403.03853). One pass over a text tells all of it.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_cli.models.gguf import ArrayInfo, GgufHeader

Angles = Sequence[Sequence[float]]
"""Mean angle, as a share of half a turn, between the stream before layer i and before layer j, shape [n + 1, n + 1]
for n layers; the row and column of 0 are unknown (not a number), and so is whatever was not seen."""

_PERIODS = {
    "afmoe": 4, "cohere2": 4, "cohere2moe": 4, "exaone-moe": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6,
    "gemma3n": 5, "gpt-oss": 2, "llama4": 4, "olmo2": 4, "plamo3": 8, "smallthinker": 4,
}  # fmt: skip
"""After how many layers the pattern of sliding windows repeats where the file does not say (llama.cpp's src/models)."""
_PATTERN = "attention.sliding_window_pattern"
_BY_LAYER_NUMBER = ("full_attention_interval", "interleave_moe_layer_step", "moe_every_n_layers")


def angles(outputs: Mapping[int, NDArray[np.float32]], n_layers: int) -> Angles:
    """From the stream after each layer, [tokens, n_embd] by the layer's number."""
    found = [[math.nan] * (n_layers + 1) for _ in range(n_layers + 1)]
    units = {layer + 1: _units(states) for layer, states in outputs.items() if layer < n_layers}
    for i, before in units.items():
        for j, after in units.items():
            if i <= j and before.shape == after.shape:
                cosines = np.clip((before * after).sum(axis=1), -1.0, 1.0)
                found[i][j] = found[j][i] = float(np.arccos(cosines).mean()) / math.pi
    return found


def _units(states: NDArray[np.float32]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(states, axis=1, keepdims=True)
    units: NDArray[np.float64] = states / np.maximum(lengths, 1e-12)
    return units


def droppable(header: GgufHeader, n_layers: int) -> range:
    """Layers that may be left out: never the first, nor dense ones before experts, the last, or heads after it."""
    first = max(header.number("leading_dense_block_count"), 1)
    return range(first, n_layers - header.number("nextn_predict_layers") - 1)


def lists_layers(header: GgufHeader, n_layers: int) -> bool:
    """Whether the file lists anything layer by layer: llama.cpp holds such lists against the number of layers, and
    its quantiser leaves them as they are."""
    prefix = f"{header.architecture}."
    lengths = [
        value.length if isinstance(value, ArrayInfo) else len(value)
        for key, value in header.metadata.items()
        if key.startswith(prefix) and isinstance(value, (ArrayInfo, tuple))
    ]
    return n_layers in lengths


def period(header: GgufHeader) -> int | None:
    """Blocks of this many layers can be left out without those after them changing their kind; None if unknown.

    llama.cpp tells a layer's kind (a sliding window, another rope, experts) from its number, so that what follows a
    block of another length would be computed wrongly.
    """
    periods = [header.number(key, 1) for key in _BY_LAYER_NUMBER]
    if header.number("attention.sliding_window"):
        own = header.metadata.get(f"{header.architecture}.{_PATTERN}", _PERIODS.get(header.architecture))
        if not isinstance(own, int) or own < 1:
            return None
        periods.append(own)
    return math.lcm(*(max(p, 1) for p in periods))


def block(found: Angles, allowed: range, n: int) -> tuple[int, ...]:
    """The `n` layers in a row that turn the stream least; the last ones allowed where nothing was seen."""
    starts = range(allowed.start, allowed.stop - n + 1)
    seen = [start for start in starts if not math.isnan(found[start][start + n])]
    if not starts:
        return ()
    start = min(seen, key=lambda i: found[i][i + n]) if seen else starts[-1]
    return tuple(range(start, start + n))


def scattered(found: Angles, allowed: range, n: int) -> tuple[int, ...]:
    """The `n` layers that each turn the stream least, in order; fewer where fewer were seen."""
    seen = [layer for layer in allowed if not math.isnan(found[layer][layer + 1])]
    return tuple(sorted(sorted(seen, key=lambda i: found[i][i + 1])[:n]))
