"""Order of the 16-byte units of a tensor map's box in shared memory.

Rules and their sources:

- The box lies in shared memory as dense rows of ``box[0]`` elements, dimension 0 innermost. Where a row is narrower
  than the swizzle's span, each row begins a new span and the rest of the span is not written; the transaction counts
  the bytes of the box only (measured on an H200 for the 32- and 64-byte spans).
- Each 16-byte unit then moves to the address that the swizzle makes of its own *absolute* shared address: bits 4-6 ^=
  bits 7-9 (128 B), 4-5 ^= 7-8 (64 B), 4 ^= 7 (32 B). Measured on an H200 at offsets 0, 128, 256, 640 and 1,024. With
  32-byte atoms bits 5-6 ^= 7-8, with 64-byte atoms bit 6 ^= 7 (PTX ISA, tables of "Swizzling Modes"). The variant with
  an 8-byte flip, which the ISA only draws, is unsupported.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.tensormap import Swizzle, SwizzleAtomicity, TensorMap


class SwizzleRule(NamedTuple):
    """A swizzle ``a ^ ((a >> shift) & mask)`` of a shared address, which repeats after ``period`` bytes."""

    shift: int
    mask: int
    period: int


SWIZZLES = {
    (Swizzle.NONE, SwizzleAtomicity.B16): SwizzleRule(0, 0, 16),
    (Swizzle.B32, SwizzleAtomicity.B16): SwizzleRule(3, 0x10, 256),
    (Swizzle.B64, SwizzleAtomicity.B16): SwizzleRule(3, 0x30, 512),
    (Swizzle.B128, SwizzleAtomicity.B16): SwizzleRule(3, 0x70, 1024),
    (Swizzle.B128, SwizzleAtomicity.B32): SwizzleRule(2, 0x60, 512),
    (Swizzle.B128, SwizzleAtomicity.B64): SwizzleRule(1, 0x40, 256),
}


def swizzle(address: Any, tensor_map: TensorMap) -> Any:
    """Return an absolute shared address (or an array of them) after the map's swizzle."""
    rule = SWIZZLES[tensor_map.swizzle, tensor_map.swizzle_atomicity]
    return address ^ ((address >> rule.shift) & rule.mask)


class BoxOrder:
    """Order of a box's 16-byte units in shared memory.

    Args:
        tensor_map: The map, whose swizzle applies.
        phase: The destination's offset in a period of the swizzle, which the order depends on.
        offsets: Bytes from the box's first row in global memory to each of its rows.
        inner, row, pitch: See ``TmaTile``.

    Attributes:
        units: By unit of the box in row-major order, its unit relative to the destination.
        footprint: Bytes from the destination to the end of the last unit.
        source: By unit of the destination, the unit of global memory relative to the box's first byte; None where the
            box does not fill the footprint (it is narrower than the swizzle's span).
    """

    def __init__(
        self, tensor_map: TensorMap, phase: int, offsets: NDArray[np.intp], *, inner: int, row: int, pitch: int
    ) -> None:
        across = row // 16
        count = offsets.size * across
        lines = np.arange(offsets.size, dtype=np.intp) * (pitch // 16)
        linear = (lines[:, None] + np.arange(across, dtype=np.intp)).ravel() * 16 + phase
        units: NDArray[np.intp] = (swizzle(linear, tensor_map) - phase) >> 4
        self.units = units
        self.footprint = (int(units.max()) + 1) * 16
        self.source: NDArray[np.intp] | None = None
        if self.footprint == count * 16 and int(units.min()) == 0 and row == inner:
            source = np.empty(count, np.intp)
            inside = np.arange(inner // 16, dtype=np.intp)
            source[units] = (offsets[:, None] // 16 + inside[None, :]).ravel()
            self.source = source
