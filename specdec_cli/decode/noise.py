"""Noise that is a pure function of (seed, position, token id).

Adding independent Gumbel noise to log-probabilities and taking the largest is the same as sampling
(the Gumbel-max trick). Because any token's noise can be computed alone and again, target, draft and
plain decoding see the same noise at the same position, so they choose the same token whenever their
distributions agree well enough, and the text depends on the seed alone: Daliri, Musco, Suresh,
"Coupling without communication and drafter-invariant speculative decoding", arXiv 2408.07978.

Streams other than the Gumbel noise (the draws of `--verify rejection` and `block`) come from the same
hash under another `stream` number, so that no number serves two purposes.
"""

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
# Constants of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB


_FEW = 4096
"""Up to so many tokens, the noise of all of them is cheaper than finding out whose is needed."""
_SAMPLE = 128
"""Every so many-th token is tried first, to have a score that the winner must reach."""
_CHUNK = 16384
"""Tokens hashed at a time: the numbers stay in the processor's cache."""
_STEPS = np.arange(_CHUNK, dtype=np.uint64) * np.uint64(_GAMMA)
_DEEPEST = 255
"""Levels of one nat below the highest score; noise is never above 36.8 nor below -3.6, so the last never wins."""
_SLACK = 1e-3
"""Nats by which a token may miss the bound and still be looked at: far more than float32 rounds."""


def gumbel(seed: int, position: int, tokens: NDArray[np.intp]) -> NDArray[np.float64]:
    """Standard Gumbel noise for each of `tokens` [n] at `position` in the sequence, shape [n].

    Integer arithmetic decides the bits, so they are the same on every platform and numpy version;
    only the last digits of the two logarithms depend on the mathematics library.
    """
    return -np.log(-np.log(uniform(seed, position, tokens)))


def uniform(seed: int, position: int, tokens: NDArray[np.intp], stream: int = 0) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1), both ends excluded, 52 bits each: same arguments as `gumbel`.

    Every `stream` has numbers of its own; the noise is stream 0.
    """
    bits = _mix(np.uint64(_base(seed, position, stream)) + tokens.astype(np.uint64) * np.uint64(_GAMMA))
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def loudest(seed: int, position: int, logits: NDArray[np.float32], temperature: float) -> int:
    """The token with the largest logit / temperature + noise among all of `logits` [n]; of equal ones the lowest.

    The same as taking every token's noise, but the logarithms are taken only of those whose bits can
    still win: a sample of tokens gives a score that the winner reaches, and with it every level of
    logits has a least number of bits. `logits` may hold minus infinity, but not only that, and no NaN.
    """
    if len(logits) <= _FEW:
        return int(_noisy(seed, position, np.arange(len(logits)), logits, temperature).argmax())
    top = int(logits.argmax())
    sample = np.append(np.arange(0, len(logits), _SAMPLE), top)
    reached = float(_noisy(seed, position, sample, logits, temperature).max())
    highest = float(logits[top]) / temperature
    slack = _SLACK + 1e-15 * abs(highest)  # near temperature 0 a float64 rounds scores by more
    needed = reached - highest - slack + np.arange(_DEEPEST + 1.0)
    least_bits, scale, found = _least_bits(needed), np.float32(max(temperature, 1e-30)), []
    for start in range(0, len(logits), _CHUNK):
        part = logits[start : start + _CHUNK]
        levels = (np.minimum(logits[top] - part, _DEEPEST * scale) / scale).astype(np.uint8)
        bits = _first_bits(seed, position, start, len(part))
        found.append(np.flatnonzero(bits >= least_bits[levels]) + start)
    contenders = np.concatenate(found)
    return int(contenders[_noisy(seed, position, contenders, logits, temperature).argmax()])


def _noisy(
    seed: int, position: int, ids: NDArray[np.intp], logits: NDArray[np.float32], temperature: float
) -> NDArray[np.float64]:
    return logits[ids].astype(np.float64) / temperature + gumbel(seed, position, ids)


def _least_bits(noise: NDArray[np.float64]) -> NDArray[np.uint64]:
    """The least that `_first_bits` can be where the noise is at least `noise` [n]: rather too low than too high."""
    with np.errstate(under="ignore"):
        least = np.floor(np.exp(-np.exp(-noise)) * 2.0**31) - 1
    bits: NDArray[np.uint64] = np.maximum(least, 0).astype(np.uint64)
    return bits << np.uint64(33)


def _first_bits(seed: int, position: int, start: int, n: int) -> NDArray[np.uint64]:
    """The hashes of `n` tokens from `start` on. The first 31 bits are right; the last step changes only the others."""
    x: NDArray[np.uint64] = _STEPS[:n] + np.uint64((_base(seed, position, 0) + (start + 1) * _GAMMA) & _MASK)
    shifted = x >> np.uint64(30)
    x ^= shifted
    x *= np.uint64(_MULTIPLY_1)
    np.right_shift(x, np.uint64(27), out=shifted)
    x ^= shifted
    x *= np.uint64(_MULTIPLY_2)
    return x


def _base(seed: int, position: int, stream: int) -> int:
    """Where the numbers of a seed, a position and a stream begin."""
    return _mix_int(_mix_int((seed + stream * _MULTIPLY_2) & _MASK) + position * _GAMMA)


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
