"""Noise that is a pure function of (seed, position, token id).

Adding independent Gumbel noise to log-probabilities and taking the largest is the same as sampling
(the Gumbel-max trick). Because any token's noise can be computed alone and again, target, draft and
plain decoding see the same noise at the same position, so they choose the same token whenever their
distributions agree well enough, and the text depends on the seed alone: Daliri, Musco, Suresh,
"Coupling without communication and drafter-invariant speculative decoding", arXiv 2408.07978.
"""

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
# Constants of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB


def gumbel(seed: int, position: int, tokens: NDArray[np.intp]) -> NDArray[np.float64]:
    """Standard Gumbel noise for each of `tokens` [n] at `position` in the sequence, shape [n].

    Integer arithmetic decides the bits, so they are the same on every platform and numpy version;
    only the last digits of the two logarithms depend on the mathematics library.
    """
    return -np.log(-np.log(uniform(seed, position, tokens)))


def uniform(seed: int, position: int, tokens: NDArray[np.intp]) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1), both ends excluded, 52 bits each: same arguments as `gumbel`."""
    stream = _mix_int(_mix_int(seed & _MASK) + position * _GAMMA)
    bits = _mix(np.uint64(stream) + tokens.astype(np.uint64) * np.uint64(_GAMMA))
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _mix_int(x: int) -> int:
    """SplitMix64's finaliser on one number: every input bit reaches every output bit."""
    x = (x + _GAMMA) & _MASK
    x = ((x ^ (x >> 30)) * _MULTIPLY_1) & _MASK
    x = ((x ^ (x >> 27)) * _MULTIPLY_2) & _MASK
    return x ^ (x >> 31)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The same on an array [n]; unsigned overflow wraps, as it must."""
    x = x + np.uint64(_GAMMA)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MULTIPLY_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MULTIPLY_2)
    return x ^ (x >> np.uint64(31))
