"""Which layers of a model are tried, so that what they cost tells what all of them cost.

Layers of one model may differ: a mixture of experts often begins with dense layers, a hybrid has attention in every
fourth, and a quantiser gives some layers better formats. The structure of a layer (names and shapes) is kept where it
is, because llama.cpp derives it from the layer's number; formats are free, and are chosen to be those of all layers in
their proportions.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from specdec_cli.models.gguf import GgufHeader, TensorInfo, tensors_of

MOST_LAYER_BYTES = 10**9
"""Of layers that are tried: more than any processor caches, and read in a tenth of a second."""
ENOUGH_LAYERS = 6
"""Beside an output matrix as large as two layers or three, as it often is, their difference from one layer is then
known about as well as the time for measuring allows; with two layers it is half as sure."""
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor without its place: `shape` as ggml orders it (a row's length first), its format and its bytes."""

    shape: tuple[int, ...]
    type: str
    n_bytes: int


Layer = dict[str, Matrix]
"""Tensors of a layer by what follows its number in their names."""


@dataclass(frozen=True, slots=True)
class Layers:
    """A model's tensors: those of each layer that writes text, and by name those beside the layers."""

    outer: Layer
    layers: tuple[Layer, ...]

    def bytes_of(self, layers: Sequence[Layer]) -> int:
        return sum(matrix.n_bytes for layer in layers for matrix in layer.values())


@dataclass(frozen=True, slots=True)
class Cut:
    """The layers of a model to try. `few` begin `many`; empty where `many` are all there are.

    A pass of the whole model costs what one of `many` does, and `scale` times what `many` cost more than `few`.
    """

    few: tuple[Layer, ...]
    many: tuple[Layer, ...]
    scale: float


def layers_of(headers: Sequence[GgufHeader]) -> Layers:
    """Of all parts of a model. Layers that only predict further tokens (MTP) are left out."""
    first = headers[0]
    n_layers = max(first.number("block_count") - first.number("nextn_predict_layers"), 1)
    outer: Layer = {}
    layers: list[Layer] = [{} for _ in range(n_layers)]
    for tensor in tensors_of(headers):
        found = _LAYER.match(tensor.name)
        if found is None:
            outer[tensor.name] = _matrix(tensor)
        elif int(found[1]) < n_layers:
            layers[int(found[1])][found[2]] = _matrix(tensor)
    return Layers(outer, tuple(layers))


def _matrix(tensor: TensorInfo) -> Matrix:
    return Matrix(tensor.shape, tensor.type, tensor.n_bytes)


def cut(model: Layers, *, room: int | None = None, whole: bool = True) -> Cut:
    """The layers to try: MOST_LAYER_BYTES of them, or, in `room` bytes of memory, ENOUGH_LAYERS; at least two.

    Without `whole` they are never all in one.
    """
    layers = model.layers
    if len(layers) == 1 or (whole and model.bytes_of(layers) <= MOST_LAYER_BYTES):
        return Cut((), layers, 0.0)
    n_few, n_many = _ends(model, room or 0)
    few, more = layers[:n_few], _in_proportion(layers, n_few, n_many)
    rest = model.bytes_of(layers) - model.bytes_of(few) - model.bytes_of(more)
    return Cut(few, few + more, rest / max(model.bytes_of(more), 1))


def _ends(model: Layers, room: int) -> tuple[int, int]:
    """How many layers few and many are: what lies between is to be like all that come after, and then much."""
    kinds = [_structure(layer) for layer in model.layers]
    n_most = 2
    while n_most < len(kinds):
        n_bytes = model.bytes_of(model.layers[: n_most + 1])
        has_room = n_most < ENOUGH_LAYERS and n_bytes + 2 * _layer_bytes(model.outer) <= room
        if n_bytes > MOST_LAYER_BYTES and not has_room:
            break
        n_most += 1
    pairs = [(few, many) for many in range(2, n_most + 1) for few in range(1, many)]
    return min(pairs, key=lambda ends: (_difference(kinds[ends[0] : ends[1]], kinds[ends[1] :]), -ends[1], ends[0]))


def _structure(layer: Layer) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted((name, matrix.shape) for name, matrix in layer.items()))


def _difference(some: Sequence[object], others: Sequence[object]) -> float:
    """Between the shares that kinds have of two lists: 0 for the same, 2 for nothing in common."""
    if not others:
        return 0.0
    a, b = Counter(some), Counter(others)
    return round(sum(abs(a[kind] / len(some) - b[kind] / len(others)) for kind in a | b), 9)


def _in_proportion(layers: Sequence[Layer], begin: int, end: int) -> tuple[Layer, ...]:
    """Layers from `begin` to `end`, each with the formats of one of its structure, so that all formats have a share."""
    chosen: dict[int, Layer] = {}
    kinds = [_structure(layer) for layer in layers]
    for kind in set(kinds[begin:end]):
        places = [i for i in range(begin, end) if kinds[i] == kind]
        alike = sorted((layer for layer, its in zip(layers, kinds, strict=True) if its == kind), key=_layer_bytes)
        for j, place in enumerate(places):
            chosen[place] = alike[(2 * j + 1) * len(alike) // (2 * len(places))]
    return tuple(chosen[i] for i in range(begin, end))


def _layer_bytes(layer: Layer) -> int:
    return sum(matrix.n_bytes for matrix in layer.values())
