"""Parts of a llama in PyTorch, with the weights as a GGUF has them."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional


class Rope:
    """Turns neighbouring values of each head by their position: llama.cpp's "norm" RoPE."""

    def __init__(self, head_size: int, base: float, n_positions: int) -> None:
        turns = base ** (-torch.arange(0, head_size, 2).float() / head_size)
        angles = torch.outer(torch.arange(n_positions).float(), turns)
        self._cos, self._sin = angles.cos(), angles.sin()

    def __call__(self, heads: Tensor, first: int = 0) -> Tensor:
        """`heads`: [..., positions, head size], the first of them at position `first`."""
        n = heads.shape[-2]
        cos, sin = (t[first : first + n].to(heads.dtype) for t in (self._cos, self._sin))
        even, odd = heads[..., 0::2], heads[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Norm(nn.Module):
    """RMS norm, always in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), (x.shape[-1],), self.weight, self._epsilon)


class FeedForward(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(size, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def heads_of(x: Tensor, n_head: int) -> Tensor:
    """[batch, positions, heads * size] as [batch, heads, positions, size]."""
    return x.unflatten(-1, (n_head, -1)).transpose(1, 2)


def load(module: nn.Module, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Set the parameters named; the others stay."""
    own = dict(module.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            own[name].copy_(torch.from_numpy(weight))


def rate(done: float, peak: float, warm_up: float = 0.03) -> float:
    """Learning rate when `done` of the training (0 to 1) is over: up in a line, then down along a cosine."""
    if done < warm_up:
        return peak * (0.05 + 0.95 * done / warm_up)
    return peak * (0.03 + 0.97 * (1 + math.cos(math.pi * min(1.0, (done - warm_up) / (1 - warm_up)))) / 2)
