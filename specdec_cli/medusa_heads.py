"""Medusa's heads: small layers on the target's last state, each of which tells a token further ahead.

Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", arXiv 2401.10774.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdec_cli.errors import ModelError
from specdec_cli.safetensors import read_safetensors
from specdec_cli.types import Hidden

Matrix = NDArray[np.float32]

FILE_NAME = "medusa_lm_head.safetensors"
"""What published heads are called in their folder."""
_NAME = re.compile(r"(?:.*\.)?(\d+)\.(\d+)\.(?:(linear)\.)?(weight|bias)")
_HINT = "Use heads that were trained for this target."


@dataclass(frozen=True, slots=True)
class Head:
    """Residual blocks x + SiLU(W x + b), each (W [n_embd, n_embd], b [n_embd]), and an output matrix [n, n_embd]."""

    blocks: tuple[tuple[Matrix, Matrix], ...]
    output: Matrix

    def logits(self, state: Hidden) -> NDArray[np.float32]:
        """Logits [n] from the target's state [n_embd]."""
        for weight, bias in self.blocks:
            inner = weight @ state + bias
            with np.errstate(over="ignore", under="ignore"):  # far from 0 the quotient is 0, or what it should be
                state = state + inner / (1 + np.exp(-inner))
        logits: NDArray[np.float32] = self.output @ state
        return logits


@lru_cache(maxsize=1)
def read_heads(path: Path, *, n_embd: int, n_shared: int, n_vocab: int) -> tuple[Head, ...]:
    """The heads of a safetensors file, or of the one in a folder; head i tells the token i + 1 after the next.

    `n_embd` is the width of the target's states; of `n_vocab` tokens those from `n_shared` on are padding. Tensors are
    named as published: `{head}.{block}.linear.weight`, `{head}.{block}.linear.bias`, `{head}.{n_blocks}.weight`, with
    or without something before. The last heads read are kept, for those who ask again and again. Raises ModelError for
    a damaged file, missing tensors, and heads of another model.
    """
    path = _file(path)
    parts: dict[int, dict[tuple[int, str], Matrix]] = {}
    for name, tensor in read_safetensors(path).items():
        if found := _NAME.fullmatch(name):
            head, layer, is_block, kind = found.groups()
            parts.setdefault(int(head), {})[int(layer), f"{is_block or 'output'}.{kind}"] = tensor
    if not parts:
        raise ModelError(
            f"{path.name} holds no Medusa head.",
            hint="Its tensors should be called 0.0.linear.weight, 0.0.linear.bias, 0.1.weight and so on.",
        )
    if sorted(parts) != list(range(len(parts))):
        raise ModelError(
            f"{path.name} has heads {', '.join(map(str, sorted(parts)))}, which leaves some out.",
            hint="Use the whole file.",
        )
    target = _Target(n_embd, n_shared, n_vocab)
    return tuple(_head(path.name, i, parts[i], target) for i in range(len(parts)))


@dataclass(frozen=True, slots=True)
class _Target:
    """What heads have to fit."""

    n_embd: int
    n_shared: int
    n_vocab: int


def _file(path: Path) -> Path:
    """The file itself, or the one in a folder."""
    if not path.is_dir():
        return path
    files = [path / FILE_NAME] if (path / FILE_NAME).exists() else sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    raise ModelError(
        f"{path} holds {len(files) or 'no'} safetensors files, and none is called {FILE_NAME}.",
        hint="Name the one that has the heads.",
    )


def _head(name: str, head: int, parts: Mapping[tuple[int, str], Matrix], target: _Target) -> Head:
    n_blocks = max(layer for layer, _ in parts)
    blocks = []
    for block in range(n_blocks):
        weight, bias = (_part(name, head, parts, (block, f"linear.{kind}")) for kind in ("weight", "bias"))
        _check_width(name, head, (*weight.shape, *bias.shape), (target.n_embd,) * 3)
        blocks.append((weight, bias))
    output = _part(name, head, parts, (n_blocks, "output.weight"))
    _check_width(name, head, output.shape[1:], (target.n_embd,))
    if not target.n_shared <= len(output) <= target.n_vocab:
        raise ModelError(
            f"Head {head} of {name} knows {len(output)} tokens, and the target has {target.n_vocab}.", hint=_HINT
        )
    return Head(tuple(blocks), np.ascontiguousarray(output[: target.n_shared]))


def _part(name: str, head: int, parts: Mapping[tuple[int, str], Matrix], key: tuple[int, str]) -> Matrix:
    if key not in parts:
        layer, kind = key
        raise ModelError(
            f"{name} has no tensor {head}.{layer}.{kind.removeprefix('output.')}.", hint="Use the whole file."
        )
    return parts[key]


def _check_width(name: str, head: int, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise ModelError(
            f"Head {head} of {name} is for states of {found[0] if found else 0} numbers, and the target's have "
            f"{expected[0]}.",
            hint=_HINT,
        )
