"""Medusa's heads: small layers on the target's last state, each of which tells a token further ahead.

Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", arXiv 2401.10774.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decode.sampling import Row
from specdec_cli.decode.types import Hidden
from specdec_cli.drafters.medusa.safetensors import read_safetensors
from specdec_cli.errors import ModelError

Matrix = NDArray[np.float32]

FILE_NAME = "medusa_lm_head.safetensors"
"""What published heads are called in their folder."""
_NAME = re.compile(r"(?:.*\.)?(\d+)\.(\d+)\.(?:(linear)\.)?(weight|bias)")
_HINT = "Use heads that were trained for this target."


@dataclass(frozen=True, slots=True)
class Head:
    """Residual blocks x + SiLU(W x + b), each (W [n_embd, n_embd], b [n_embd]), and an output matrix [n, n_embd], None
    where it is the target's."""

    blocks: tuple[tuple[Matrix, Matrix], ...]
    output: Matrix | None = None

    def state(self, state: Hidden) -> Hidden:
        """What the output matrix is to see, from the target's state, both [n_embd]."""
        for weight, bias in self.blocks:
            inner = weight @ state + bias
            state = state + inner / (1 + np.exp(-inner))  # where exp overflows the quotient is 0, as it should be
        return state


class Heads:
    """All heads of a target; head i tells the token i + 1 after the next.

    `shared` is the output matrix [n, n_embd] of heads that have none of their own. Those are asked all at once: it is
    the reading of the matrix that takes the time.
    """

    def __init__(self, heads: tuple[Head, ...], shared: Matrix | None = None) -> None:
        self._heads = heads
        self._shared = shared

    def rows(self, state: Hidden, n: int) -> Iterator[Row]:
        """Logits [n_shared] of the first `n` heads, from the target's state [n_embd]; not numbers if the heads are
        none."""
        heads = self._heads[:n]
        with np.errstate(all="ignore"):
            if self._shared is not None:
                yield from np.array([head.state(state) for head in heads]) @ self._shared.T
            else:
                yield from (head.output @ head.state(state) for head in heads if head.output is not None)


@dataclass(frozen=True, slots=True)
class TargetShape:
    """What heads have to fit: the width of the target's states, and its tokens, padding from `n_shared` on."""

    n_embd: int
    n_shared: int
    n_vocab: int


def read_heads(path: Path, target: TargetShape, target_output: Callable[[], Matrix]) -> Heads:
    """The heads of a safetensors file, or of the one in a folder.

    Tensors are named as published: `{head}.{block}.linear.weight`, `{head}.{block}.linear.bias`, and `{head}.{n_blocks}
    .weight` for the output matrix, with or without something before. Where no head has one, they use the target's,
    `target_output()`, [n_vocab, n_embd]. Raises ModelError for a damaged file, missing tensors, heads of another model.
    """
    path = _file(path)
    parts: dict[int, dict[tuple[int, str], Matrix]] = {}
    for name, tensor in read_safetensors(path).items():
        if found := _NAME.fullmatch(name):
            head, layer, is_block, kind = found.groups()
            parts.setdefault(int(head), {})[int(layer), f"{is_block or 'output'}.{kind}"] = tensor
    if not parts:
        raise ModelError(
            f"{path.name} has no Medusa heads.",
            hint="Tensors should be named 0.0.linear.weight, 0.0.linear.bias, 0.1.weight and so on.",
        )
    if sorted(parts) != list(range(len(parts))):
        raise ModelError(
            f"{path.name} has heads {', '.join(map(str, sorted(parts)))}; some are missing.",
            hint="Use the complete file.",
        )
    is_shared = not any(kind == "output.weight" for part in parts.values() for _, kind in part)
    heads = tuple(_head(path.name, i, parts[i], target, is_shared=is_shared) for i in range(len(parts)))
    return Heads(heads, target_output()[: target.n_shared] if is_shared else None)


def _file(path: Path) -> Path:
    """The file itself, or the one in a folder."""
    if not path.is_dir():
        return path
    files = [path / FILE_NAME] if (path / FILE_NAME).exists() else sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    raise ModelError(
        f"{path} holds {len(files) or 'no'} safetensors files, and none is called {FILE_NAME}.",
        hint="Give the one with the heads.",
    )


def _head(
    name: str, head: int, parts: Mapping[tuple[int, str], Matrix], target: TargetShape, *, is_shared: bool
) -> Head:
    n_blocks = max(layer for layer, _ in parts) + is_shared
    blocks = []
    for block in range(n_blocks):
        weight, bias = (_part(name, head, parts, (block, f"linear.{kind}")) for kind in ("weight", "bias"))
        _check_width(name, head, (*weight.shape, *bias.shape), (target.n_embd,) * 3)
        blocks.append((weight, bias))
    if is_shared:
        return Head(tuple(blocks))
    output = _part(name, head, parts, (n_blocks, "output.weight"))
    _check_width(name, head, output.shape[1:], (target.n_embd,))
    if not target.n_shared <= len(output) <= target.n_vocab:
        raise ModelError(
            f"Head {head} of {name} has {len(output)} tokens; the target has {target.n_vocab}.", hint=_HINT
        )
    return Head(tuple(blocks), np.ascontiguousarray(output[: target.n_shared]))


def _part(name: str, head: int, parts: Mapping[tuple[int, str], Matrix], key: tuple[int, str]) -> Matrix:
    if key not in parts:
        layer, kind = key
        raise ModelError(
            f"{name} has no tensor {head}.{layer}.{kind.removeprefix('output.')}.", hint="Use the complete file."
        )
    return parts[key]


def _check_width(name: str, head: int, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise ModelError(
            f"Head {head} of {name} expects hidden states of width {found[0] if found else 0}; the target's "
            f"have width {expected[0]}.",
            hint=_HINT,
        )
