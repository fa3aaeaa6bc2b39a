"""Random numbers that are the same on every machine, in every order of tests, with every numpy.

Each group of each family draws from its own Philox stream, keyed by
``SeedSequence([problem.seed, crc32(family name), group index])``: no state is shared, so neither the order of tests nor
xdist changes an input. Only ``random_raw`` is used, whose output numpy guarantees for a bit generator; the methods of
``numpy.random.Generator`` may change between versions (NEP 19).
"""

from __future__ import annotations

import math
import zlib
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics.arrays import Bytes, Float64, frozen

_PIECE = 1 << 15
"""Numbers that are looked up at once, so that their indices stay in the cache of a core."""


@lru_cache(maxsize=64)
def _by_bits(values: bytes) -> Bytes:
    """Return for each 16-bit number the element of ``values`` that it draws; a share of 2^-16 apart from fair."""
    drawn = np.arange(1 << 16, dtype=np.uint32) * np.uint32(len(values)) >> np.uint32(16)
    return frozen(np.take(np.frombuffer(values, np.uint8), drawn))


class Draw:
    """A stream of random arrays. Each call continues the stream, so the order of calls is part of a family.

    Arrays of integers of the shapes in ``blank`` are zeros instead, which takes no time.
    """

    def __init__(self, *, seed: int, family: str, index: int, blank: tuple[tuple[int, ...], ...] = ()) -> None:
        self._blank = frozenset(blank)
        entropy = [seed & (2**64 - 1), zlib.crc32(family.encode()), index]
        self._bits = np.random.Philox(np.random.SeedSequence(entropy))

    def _raw(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        words = -(-count * np.dtype(dtype).itemsize // 8)
        # "<u8" fixes the bytes' order, so that narrower views agree on machines of either byte order.
        return self._bits.random_raw(words).astype("<u8", copy=False).view(np.dtype(dtype).newbyteorder("<"))[:count]

    def below(self, bound: int, shape: tuple[int, ...]) -> Bytes:
        """Draw integers 0..bound-1 as bytes, ``1 <= bound <= 256``; each probability is off by at most 2^-16."""
        return self._elements(bytes(range(bound)), shape)

    def choice(self, codes: tuple[int, ...], shape: tuple[int, ...]) -> Bytes:
        """Draw elements of ``codes`` (at most 256)."""
        return self._elements(bytes(codes), shape)

    def packed(self, codes: tuple[int, ...], shape: tuple[int, int]) -> Bytes:
        """Draw packed E2M1 ``[rows, k // 2]`` with elements of ``codes``; ``shape`` is ``(rows, k // 2)``."""
        drawn = self.choice(codes, shape)
        drawn |= self._elements(bytes(code << 4 & 0xFF for code in codes), shape)
        return drawn

    def _elements(self, values: bytes, shape: tuple[int, ...]) -> Bytes:
        drawn = np.empty(shape, np.uint8)
        if shape in self._blank:
            drawn.fill(values[0])
            return drawn
        table, flat, raw = _by_bits(values), drawn.reshape(-1), self._raw(drawn.size, np.uint16)
        for start in range(0, drawn.size, _PIECE):
            piece = slice(start, start + _PIECE)
            np.take(table, raw[piece], out=flat[piece], mode="clip")  # "raise" buffers the output; no index is outside
        return drawn

    def gaussian(self, shape: tuple[int, ...]) -> Float64:
        """Draw about standard normal numbers from integers only: 64 fair bits counted, and 16 bits of dither.

        Binomial(64, 1/2) has mean 32 and standard deviation 4; the dither fills the steps of 1/4 evenly.
        """
        count = math.prod(shape)
        ones = np.bitwise_count(self._raw(count, np.uint64)).astype(np.float64)
        dither = self._raw(count, np.uint16).astype(np.float64) / 65536 - 0.5
        drawn: Float64 = ((ones - 32 + dither) / 4).reshape(shape)
        return drawn
