"""Where in shared memory the 16-byte units of a tensor map's box lie.

Rules, and where they come from:

- The box lies in shared memory as dense rows of ``box[0]`` elements, dimension 0 innermost; where a row is narrower
  than the swizzle's span, each begins a span of its own and the rest of that is left as it was, while the bytes of the
  transaction are the box's (measured on an H200 for the 32- and 64-byte spans).
- Then each 16-byte chunk goes to the address that the swizzle makes of its own *absolute* shared address: bits 4-6 ^=
  bits 7-9 (128 B), 4-5 ^= 7-8 (64 B), 4 ^= 7 (32 B). Measured on an H200 at offsets 0, 128, 256, 640 and 1,024. With
  32-byte atoms bits 5-6 ^= 7-8, with 64-byte atoms bit 6 ^= 7 (the tables of PTX ISA, "Swizzling Modes"). The 8-byte
  flip is drawn there only, and is unsupported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.tensormap import Swizzle, SwizzleAtomicity, TensorMap

if TYPE_CHECKING:
    from pytest_nvfp4.sim.tma.tile import TmaTile

__all__ = ["SWIZZLES", "BoxOrder", "swizzle"]

SWIZZLES = {
    (Swizzle.NONE, SwizzleAtomicity.B16): (0, 0, 16),
    (Swizzle.B32, SwizzleAtomicity.B16): (3, 0x10, 256),
    (Swizzle.B64, SwizzleAtomicity.B16): (3, 0x30, 512),
    (Swizzle.B128, SwizzleAtomicity.B16): (3, 0x70, 1024),
    (Swizzle.B128, SwizzleAtomicity.B32): (2, 0x60, 512),
    (Swizzle.B128, SwizzleAtomicity.B64): (1, 0x40, 256),
}
"""By swizzle and atom: right shift and mask of ``a ^ ((a >> shift) & mask)``, and the pattern's period in bytes."""


def swizzle(address: Any, tensor_map: TensorMap) -> Any:
    """The shared address (or array of them) that the map's swizzle makes of an absolute shared address."""
    shift, mask, _ = SWIZZLES[tensor_map.swizzle, tensor_map.swizzle_atomicity]
    return address ^ ((address >> shift) & mask)


class BoxOrder:
    """How the 16-byte units of a box are ordered in shared memory.

    Args:
        tile: The box's rows, and the map's swizzle.
        phase: The destination's place in a period of the swizzle, which the order depends on.
        offsets: Bytes from the box's first row in global memory to each of its rows.

    Attributes:
        order: By unit of the box in its own (row-major) order, its unit relative to the destination.
        footprint: Bytes from the destination to the end of the last unit.
        source: By unit of the destination, the unit of global memory relative to the box's first byte; None where the
            destination's units are not exactly the first ones (a box narrower than the swizzle's span).
    """

    __slots__ = ("footprint", "order", "source")

    def __init__(self, tile: TmaTile, phase: int, offsets: NDArray[np.intp]) -> None:
        across = tile.row // 16
        units = offsets.size * across
        lines = np.arange(offsets.size, dtype=np.intp) * (tile.pitch // 16)
        linear = (lines[:, None] + np.arange(across, dtype=np.intp)).ravel() * 16 + phase
        order: NDArray[np.intp] = (swizzle(linear, tile.map) - phase) >> 4
        self.order = order
        self.footprint = (int(order.max()) + 1) * 16
        self.source: NDArray[np.intp] | None = None
        if self.footprint == units * 16 and int(order.min()) == 0 and tile.row == tile.inner:
            source = np.empty(units, np.intp)
            inside = np.arange(tile.inner // 16, dtype=np.intp)
            source[order] = (offsets[:, None] // 16 + inside[None, :]).ravel()
            self.source = source
