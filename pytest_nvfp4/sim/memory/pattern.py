"""Pattern of a warp's access: its lanes' addresses relative to the first, and the cost of that pattern.

A kernel's accesses repeat a few patterns at many addresses. Everything that depends on the pattern alone (bounds,
coinciding lanes, sectors, bank conflicts) is therefore computed once and cached by the bytes of the relative addresses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes


class Wavefronts(NamedTuple):
    """Passes through the shared-memory banks: taken, and the fewest possible."""

    taken: int
    least: int


ONE_PASS = Wavefronts(1, 1)


class Pattern:
    """``size`` bytes at each of the active lanes' addresses.

    Attributes:
        active, mask: Active lanes, ascending, and as a bit mask.
        offsets: Bytes from the lowest address, by active lane.
        low: Lowest address minus the first active lane's (0 or negative).
        span: Bytes from the lowest address to the end of the highest item.
        aligned: Whether every offset is a multiple of ``size``.
        index: Offsets in items of ``size`` bytes, if aligned.
        dense: Whether the lanes' items are contiguous and in lane order.
        same: Whether all lanes have one address.
        distinct: Number of distinct addresses.
    """

    __slots__ = (
        "_sectors", "_wavefronts", "active", "aligned", "dense", "distinct", "index", "items", "low", "mask", "offsets",
        "same", "size", "span",
    )  # fmt: skip

    def __init__(self, relative: NDArray[Any], mask: int, size: int) -> None:
        signed = relative.view(np.int64 if relative.itemsize == 8 else np.int32).astype(np.int64)
        self.mask = mask
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
        self._wavefronts: dict[int, Wavefronts] = {}

    @property
    def bytes_touched(self) -> int:
        """Number of distinct bytes."""
        return self.distinct * self.size

    @property
    def least_sectors(self) -> int:
        """Number of 32-byte sectors if those bytes were contiguous."""
        return -(-self.bytes_touched // 32)

    def sectors(self, low: int) -> int:
        """Return the number of 32-byte sectors touched if the lowest address is ``low``."""
        residue = low & 31
        sectors = self._sectors.get(residue)
        if sectors is None:
            first = (self.offsets + residue) >> 5
            last = (self.offsets + residue + self.size - 1) >> 5
            sectors = self._sectors[residue] = len(np.union1d(first, last))
        return sectors

    def wavefronts(self, low: int) -> Wavefronts:
        """Return the passes of a shared access through the 32 banks of 4 bytes if the lowest address is ``low``.

        A pass serves a whole warp for items of up to 4 bytes, half a warp for 8 and a quarter for 16 (CUDA C++
        Programming Guide, "Shared Memory" of compute capability 5.x and later). Within a pass, the bank with the most
        distinct words sets the number of wavefronts; lanes that access one word share it. A part of the warp without
        an active lane takes no pass.
        """
        residue = low & 127
        passes = self._wavefronts.get(residue)
        if passes is None:
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
            passes = self._wavefronts[residue] = Wavefronts(total, least)
        return passes


@lru_cache(maxsize=1 << 14)
def _pattern(relative: bytes, mask: int, size: int) -> Pattern:
    wide = len(relative) // mask.bit_count()
    return Pattern(np.frombuffer(relative, np.uint64 if wide == 8 else np.uint32), mask, size)


def pattern_of(address: NDArray[Any], mask: int, size: int) -> tuple[int, Pattern]:
    """Return the first active lane's address and the pattern of 32 addresses (uint32 or uint64)."""
    if mask != lanes.FULL:
        address = address[lanes.bools(mask)]
    base = address[0]
    return int(base), _pattern((address - base).tobytes(), mask, size)
