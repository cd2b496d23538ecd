"""What drafts can be made from a model without training: number formats, output matrices, fewer layers."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specdec_cli.llama.quantize import Changes
from specdec_cli.make_draft.layer_choice import Angles, block, droppable, lists_layers, period, scattered
from specdec_cli.models.gguf import TENSOR_TYPES, GgufHeader, TensorInfo

DRAFT_FORMATS = ("Q8_0", "Q4_0", "Q2_K")
"""Number formats to try for a whole model."""
OUTPUT_FORMATS = ("Q8_0", "Q4_0")
"""And for an output matrix alone; every width of a model can have them. Q5_0 has slow kernels (docs/log.md)."""
SMALLER = 0.9
"""What a candidate may take of the bytes that are there now: with more it cannot be worth its time."""
LARGE_OUTPUT = 0.15
"""From this share of the weights on an output matrix is worth being made cheaper."""
SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2)
"""Of the layers, to leave out."""

_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a draft is made: None leaves a format unchanged. `output` is that of the output matrix, which is the token
    embedding where the model has none of its own; `own_output` gives it one, and the embedding stays what it is.
    `without` are layers to leave out, ascending."""

    file_type: str | None = None
    output: str | None = None
    without: tuple[int, ...] = ()
    own_output: str | None = None

    @property
    def key(self) -> str:
        """A name for files and journals."""
        output = f"-output-{self.output}" if self.output else ""
        output += f"-own-output-{self.own_output}" if self.own_output else ""
        without = f"-without-{spans(self.without).replace(', ', '.')}" if self.without else ""
        return f"{self.file_type or 'same'}{output}{without}"

    def __str__(self) -> str:
        words = [self.file_type] if self.file_type else []
        words += [f"output {self.output}"] if self.output else []
        words += [f"separate output {self.own_output}"] if self.own_output else []
        words += [f"without layers {spans(self.without)}"] if self.without else []
        return ", ".join(words) or "unchanged"

    def changes(self, tensors: Sequence[TensorInfo]) -> Changes:
        """What the quantiser is to do with a model of these tensors."""
        if self.output is None:
            return Changes(self.file_type, (), self.without, self.own_output)
        output = output_matrix(tensors).name
        types = [(_exactly(output), self.output)]
        if self.file_type is None:  # the quantiser changes all or nothing: tell it what each has now
            names = [(self._new_name(t.name), t) for t in tensors if t.name != output]
            types += [(_exactly(name), tensor.type) for name, tensor in names if name is not None]
        return Changes(self.file_type or "Q8_0", tuple(types), self.without)

    def _new_name(self, name: str) -> str | None:
        """What a tensor is called once layers before it are left out; None if it is left out itself."""
        found = _LAYER.match(name)
        if found is None:
            return name
        layer = int(found[1])
        if layer in self.without:
            return None
        return f"blk.{layer - sum(i < layer for i in self.without)}.{name[found.end() :]}"


def output_matrix(tensors: Sequence[TensorInfo]) -> TensorInfo:
    """The matrix that makes logits: a tensor of its own, or the token embedding."""
    by_name = {tensor.name: tensor for tensor in tensors}
    return by_name.get("output.weight") or by_name["token_embd.weight"]


def is_tied(tensors: Sequence[TensorInfo]) -> bool:
    """Whether the token embedding makes the logits."""
    return output_matrix(tensors).name != "output.weight"


def formats_worth_trying(sizes: Mapping[str, int], n_bytes: int) -> list[str]:
    """Of the formats whose weights would take `sizes` bytes, those that leave enough of `n_bytes` away, and only one
    of those that come out alike: where a model's width does not fit a format llama.cpp takes another one."""
    found: list[str] = []
    for name, size in sizes.items():
        if size < SMALLER * n_bytes and all(size < SMALLER * sizes[other] for other in found):
            found.append(name)
    return found


def cheaper_outputs(tensors: Sequence[TensorInfo]) -> list[str]:
    """Formats that make the output matrix smaller; none where it is a small part of the model."""
    matrix, n_bytes = output_matrix(tensors), sum(tensor.n_bytes for tensor in tensors)
    if matrix.n_bytes < LARGE_OUTPUT * n_bytes:
        return []
    bits = {name: size / elements for name, elements, size in TENSOR_TYPES.values()}
    return [name for name in OUTPUT_FORMATS if bits[name] < SMALLER * bits.get(matrix.type, 0)]


def fewer_layers(header: GgufHeader, angles: Angles) -> Iterator[tuple[int, ...]]:
    """Layers to leave out: an eighth of them, a quarter and so on; in a row, one by one, and the last ones.

    The last ones may go in any number, since nothing comes after them.
    """
    n_layers = header.number("block_count")
    step, allowed, seen = period(header), droppable(header, n_layers), set[tuple[int, ...]]()
    if lists_layers(header, n_layers):
        return
    for share in SHARES:
        ways = []
        if step is not None:
            n = max(round(n_layers * share / step), 1) * step
            ways += [(n, block(angles, allowed, n))] + ([(n, scattered(angles, allowed, n))] if step == 1 else [])
        if not header.number("nextn_predict_layers"):
            n = max(round(n_layers * share), 1)
            ways.append((n, tuple(range(max(n_layers - n, allowed.start), n_layers))))
        for n, layers in ways:
            if len(layers) == n and layers not in seen:
                seen.add(layers)
                yield layers


def spans(layers: Sequence[int]) -> str:
    """Numbers as people write them: 3-5, 9."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def _exactly(name: str) -> str:
    return f"^{re.escape(name)}$"
