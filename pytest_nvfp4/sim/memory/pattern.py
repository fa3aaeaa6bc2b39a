"""The shape of one access of a warp: its lanes' addresses relative to the first, and what that shape costs.

A kernel's accesses repeat a few shapes at many places, so everything that follows from the shape alone (bounds, whether
two lanes meet, sectors, bank conflicts) is worked out once and found again by the bytes of the relative addresses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes

__all__ = ["Pattern", "pattern_of"]


class Pattern:
    """``size`` bytes at each of the active lanes' addresses.

    Attributes:
        active: The lanes, ascending.
        offsets: Bytes from the lowest address, by active lane.
        low: The lowest address less the first active lane's (0 or negative).
        span: Bytes from the lowest address to the end of the highest.
        aligned: Every offset is a multiple of ``size``; then ``index`` counts items of ``size`` bytes.
        dense: The lanes' items lie one after the other, in order.
        same: All lanes have one address.
        distinct: Number of different addresses.
    """

    __slots__ = (
        "_sectors", "_wavefronts", "active", "aligned", "dense", "distinct", "index", "items", "low", "offsets", "same",
        "size", "span",
    )  # fmt: skip

    def __init__(self, relative: NDArray[Any], mask: int, size: int) -> None:
        signed = relative.view(np.int64 if relative.itemsize == 8 else np.int32).astype(np.int64)
        self.active = np.array(lanes.lanes(mask), np.intp)
        self.size = size
        self.low = int(signed.min())
        self.offsets = signed - self.low
        self.span = int(self.offsets.max()) + size
        self.aligned = not (self.offsets % size).any()
        self.index = self.offsets // size
        self.items = self.span // size
        self.dense = self.aligned and bool((self.index == np.arange(self.index.size)).all())
        self.same = self.span == size
        self.distinct = len(np.unique(self.offsets))
        self._sectors: dict[int, int] = {}
        self._wavefronts: dict[int, tuple[int, int]] = {}

    @property
    def bytes_touched(self) -> int:
        """Different bytes."""
        return self.distinct * self.size

    @property
    def least_sectors(self) -> int:
        """32-byte sectors that would hold those bytes if they lay together."""
        return -(-self.bytes_touched // 32)

    def sectors(self, low: int) -> int:
        """32-byte sectors touched when the lowest address is ``low``."""
        residue = low & 31
        found = self._sectors.get(residue)
        if found is None:
            first = (self.offsets + residue) >> 5
            last = (self.offsets + residue + self.size - 1) >> 5
            found = self._sectors[residue] = len(np.union1d(first, last))
        return found

    def wavefronts(self, low: int) -> tuple[int, int]:
        """Passes through the 32 banks of 4 bytes that a shared access takes, and the fewest it could take.

        A pass serves a whole warp for items of up to 4 bytes, half a warp for 8 and a quarter for 16 (the rule of the
        CUDA C++ Programming Guide's "Shared Memory" of compute capability 5.x and on; lanes that name one word share
        it). Part of the warp that has no active lane takes no pass.
        """
        residue = low & 127
        found = self._wavefronts.get(residue)
        if found is None:
            lanes_a_pass = 32 // max(1, self.size // 4)
            words = max(1, self.size // 4)
            total = least = 0
            for start in range(0, 32, lanes_a_pass):
                here = (self.active >= start) & (self.active < start + lanes_a_pass)
                if not here.any():
                    continue
                first = (self.offsets[here] + residue) >> 2
                word = np.unique(first[:, None] + np.arange(words))
                total += int(np.bincount(word & 31).max())
                least += 1
            found = self._wavefronts[residue] = (total, least)
        return found


@lru_cache(maxsize=1 << 14)
def _pattern(relative: bytes, mask: int, size: int) -> Pattern:
    wide = len(relative) // mask.bit_count()
    return Pattern(np.frombuffer(relative, np.uint64 if wide == 8 else np.uint32), mask, size)


def pattern_of(address: NDArray[Any], mask: int, size: int) -> tuple[int, Pattern]:
    """The first active lane's address, and the pattern, of an array of 32 addresses (uint32 or uint64)."""
    if mask != lanes.FULL:
        address = address[lanes.bools(mask)]
    base = address[0]
    return int(base), _pattern((address - base).tobytes(), mask, size)
