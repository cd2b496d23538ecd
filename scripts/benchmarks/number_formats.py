"""Matrices of signs, of numbers that keep the size of a vector, and of zeros, in the formats of planted shapes.

A matrix is written as its bytes, shape [rows, bytes of a row]. Rows are multiples of 64.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

BLOCK = 32
_NIBBLES_SPREAD, _BYTES_SPREAD = 4.6, 74.0
"""Standard deviation of the whole numbers from -8 to 7, and of those from -128 to 127."""
_BF16_ONE = 127 << 7


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """`block_bytes` are those of BLOCK numbers.

    `signs` makes `size` and -size of 1 and 0, shape [rows, columns]; `random` draws [rows, columns] that keep the
    size of a vector, about.
    """

    kind: GGMLQuantizationType
    block_bytes: int
    signs: Callable[[Bytes, float], Bytes]
    random: Callable[[int, int, np.random.Generator], Bytes]

    def row_bytes(self, n: int) -> int:
        return n // BLOCK * self.block_bytes

    def zeros(self, n_out: int, n_in: int) -> Bytes:
        return np.zeros((n_out, self.row_bytes(n_in)), np.uint8)


def _blocks(n_out: int, n_in: int, n_bytes: int, scale: float) -> Bytes:
    """Blocks of `n_bytes` that begin with their scale in half precision."""
    matrix = np.empty((n_out, n_in // BLOCK, n_bytes), np.uint8)
    matrix[:, :, :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return matrix


def _q4_0_signs(bits: Bytes, size: float) -> Bytes:
    n, width = bits.shape
    matrix = _blocks(n, width, 18, size)
    halves = bits.reshape(n, width // BLOCK, 2, BLOCK // 2)
    nibbles = 7 + 2 * halves  # 8 is zero, so these are -1 and 1
    matrix[:, :, 2:] = nibbles[:, :, 0] | nibbles[:, :, 1] << 4
    return matrix.reshape(n, -1)


def _q4_0_random(n_out: int, n_in: int, rng: np.random.Generator) -> Bytes:
    matrix = _blocks(n_out, n_in, 18, 1 / (_NIBBLES_SPREAD * np.sqrt(n_in)))
    matrix[:, :, 2:] = rng.integers(0, 256, (n_out, n_in // BLOCK, 16), np.uint8)
    return matrix.reshape(n_out, -1)


def _q8_0_signs(bits: Bytes, size: float) -> Bytes:
    n, width = bits.shape
    matrix = _blocks(n, width, 34, size)
    matrix[:, :, 2:] = (2 * bits.astype(np.int8) - 1).view(np.uint8).reshape(n, width // BLOCK, BLOCK)
    return matrix.reshape(n, -1)


def _q8_0_random(n_out: int, n_in: int, rng: np.random.Generator) -> Bytes:
    matrix = _blocks(n_out, n_in, 34, 1 / (_BYTES_SPREAD * np.sqrt(n_in)))
    matrix[:, :, 2:] = rng.integers(0, 256, (n_out, n_in // BLOCK, BLOCK), np.uint8)
    return matrix.reshape(n_out, -1)


def _bf16_signs(bits: Bytes, size: float) -> Bytes:
    positive = np.float32(size).view(np.uint32) >> 16
    numbers = positive.astype(np.uint16) | (1 - bits.astype(np.uint16)) << 15
    return numbers.view(np.uint8)


def _bf16_random(n_out: int, n_in: int, rng: np.random.Generator) -> Bytes:
    """Either sign, and magnitudes from one power of two to the next."""
    drawn = rng.integers(0, 256, (n_out, n_in), np.uint8).astype(np.uint16)
    exponent = _BF16_ONE - (round(np.log2(n_in) / 2) << 7)
    return ((drawn & 0x80) << 8 | exponent | drawn & 0x7F).astype(np.uint16).view(np.uint8)


FORMATS = {
    "Q4_0": NumberFormat(GGMLQuantizationType.Q4_0, 18, _q4_0_signs, _q4_0_random),
    "Q8_0": NumberFormat(GGMLQuantizationType.Q8_0, 34, _q8_0_signs, _q8_0_random),
    "BF16": NumberFormat(GGMLQuantizationType.BF16, 64, _bf16_signs, _bf16_random),
}
