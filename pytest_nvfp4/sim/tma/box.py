"""One box of a tensor: its bytes, and copying them to shared memory and back.

Rules, and where they come from:

- An element outside the tensor reads as zero and is not written; it counts towards the bytes of the transaction
  (measured on an H200). The NaN fill puts 0x7FF7 into every 16 bits, so that an f32 is 0x7FF77FF7 (measured on an H200
  for f16, bf16, f32 and f64; documented nowhere).
- Packed 4-bit elements (``.b4x16``) are copied as they lie, two a byte; padded ones take 16 bytes for 16 elements (PTX
  ISA, "Padding and alignment of the sub-byte types").
- A ``tf32`` map rounds fp32 to the nearest-even tf32 on its way to shared memory (PTX ISA, "Tensor Dimension, size
  and format"; CUTLASS relies on it; measured on an H200), and a NaN to 0x7FFFE000 (measured); stores through it change
  nothing. An ``f32.ftz`` map changes nothing either way, subnormals included (measured on an H200).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.tensormap import OobFill
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.shared import SharedMemory
from pytest_nvfp4.sim.tma.box_order import BoxOrder

if TYPE_CHECKING:
    from pytest_nvfp4.sim.tma.tile import TmaTile

__all__ = ["TmaBox", "gather4", "gathered"]

_UNIT = np.dtype("V16")
_PADDING = 0xA5
_NAN_FILL = np.uint16(0x7FF7)


class TmaBox:
    """One box of a tensor: where its elements inside the tensor lie.

    Attributes:
        region, offset: The region of global memory and the offset of its first byte inside; None if wholly outside.
        cut: By dimension, which of the box's bytes (dimension 0) or elements lie inside; None if all of them do.
    """

    __slots__ = ("cut", "offset", "region", "tile")

    def __init__(self, tile: TmaTile, region: Region | None, offset: int, cut: tuple[slice, ...] | None) -> None:
        self.tile = tile
        self.region = region
        self.offset = offset
        self.cut = cut

    def check_initialised(self, what: str) -> None:
        """Raise Fault if was never written a byte inside the tensor (of a region that keeps track)."""
        region = self.region
        assert region is not None
        assert region.initialised is not None
        if not self.view(region.initialised).all():
            offsets, size = self.rows()
            missing = next(
                offset for offset in offsets.tolist() if not region.initialised[offset : offset + size].all()
            )
            missing += int(np.argmin(region.initialised[missing : missing + size]))
            raise Fault(
                "uninitialised",
                f"{what}: reads {region.say(region.start + missing)}, which was never written",
                hint="fill the tensor before the launch, or write it before it is read",
            )

    def view(self, array: NDArray[Any] | None = None) -> NDArray[Any]:
        """The bytes inside the tensor, in place: dimensions outermost first, dimension 0 in bytes.

        Args:
            array: An array with one item a byte of the region, instead of the region's data.
        """
        tile = self.tile
        assert self.region is not None
        base = self.region.data if array is None else array
        if self.cut is None:
            shape = (*reversed(tile.counts[1:]), tile.inner)
        else:
            shape = tuple(part.stop - part.start for part in reversed(self.cut))
        return np.ndarray(shape, base.dtype, base, self.offset, (*reversed(tile.pitches), 1))

    def dense(self) -> NDArray[np.uint8]:
        """All bytes of the box in its own order, the fill where it is outside the tensor."""
        tile = self.tile
        if self.cut is None:
            found = self.view().ravel()
        else:
            shape = (*reversed(tile.counts[1:]), tile.inner)
            if tile.map.oob_fill is OobFill.NAN:
                full = np.full((*shape[:-1], tile.inner // 2), _NAN_FILL).view(np.uint8)
            else:
                full = np.zeros(shape, np.uint8)
            if self.region is not None:
                full[tuple(reversed(self.cut))] = self.view()
            found = full.ravel()
        return _rounded(found) if tile.convert else found

    def load(self, plan: BoxOrder, shared: SharedMemory, index: int) -> None:
        """Copy the box to shared memory."""
        size = plan.footprint
        units = shared.data[index : index + size].view(_UNIT)
        tile = self.tile
        if tile.row != tile.inner:
            _pad(units, plan, self.dense(), tile)
            shared.written[index : index + size].reshape(-1, 16)[plan.order] = True
            return
        if plan.source is None:
            units[plan.order] = self.dense().view(_UNIT)
            shared.written[index : index + size].reshape(-1, 16)[plan.order] = True
            return
        if self.cut is None and not tile.convert:
            assert self.region is not None
            source = self.region.data[self.offset : self.offset + tile.span].view(_UNIT)
            source.take(plan.source, out=units, mode="clip")
        else:
            units[plan.order] = self.dense().view(_UNIT)
        shared.written[index : index + size] = True

    def inside(self, values: NDArray[Any]) -> NDArray[Any]:
        """Of one value a byte of the box in its own order, those inside the tensor, shaped as ``view``."""
        tile = self.tile
        shaped = values.reshape((*reversed(tile.counts[1:]), tile.inner))
        return shaped if self.cut is None else shaped[tuple(reversed(self.cut))]

    @property
    def inside_bytes(self) -> int:
        """Bytes inside the tensor."""
        if self.region is None:
            return 0
        if self.cut is None:
            return self.tile.bytes
        return prod(part.stop - part.start for part in self.cut)

    @property
    def inner_rows(self) -> int:
        """Rows inside the tensor along dimension 1, which lie at one distance."""
        if self.tile.map.rank == 1:
            return 1
        return self.tile.counts[1] if self.cut is None else self.cut[1].stop - self.cut[1].start

    def rows(self) -> tuple[NDArray[np.intp], int]:
        """Offsets in the region of the rows inside the tensor, and bytes of each."""
        tile = self.tile
        if self.cut is None:
            return tile.row_offsets + self.offset, tile.inner
        offsets = np.full(1, self.offset, np.intp)
        for part, pitch in zip(self.cut[1:], tile.pitches, strict=True):
            along = np.arange(part.stop - part.start, dtype=np.intp) * pitch
            offsets = (along[:, None] + offsets[None, :]).ravel()
        return offsets, self.cut[0].stop - self.cut[0].start


def gather4(boxes: list[TmaBox], plan: BoxOrder, shared: SharedMemory, index: int) -> None:
    """Copy the rows of ``tile::gather4``, one box each, to shared memory."""
    data = np.concatenate([box.dense() for box in boxes])
    size = plan.footprint
    shared.data[index : index + size].view(_UNIT)[plan.order] = data.view(_UNIT)
    shared.written[index : index + size].reshape(-1, 16)[plan.order] = True


def gathered(units: NDArray[np.uint8], plan: BoxOrder) -> NDArray[np.uint8]:
    """The bytes of shared memory from a box's address on, in the box's own order (a copy)."""
    return units.view(_UNIT)[plan.order].view(np.uint8)


def _pad(units: NDArray[Any], plan: BoxOrder, data: NDArray[np.uint8], tile: TmaTile) -> None:
    """16 packed elements to each unit; what follows them in it is undefined, and gets a pattern that shows."""
    packed = data.reshape(-1, 2 * tile.bits)
    wide = np.full((packed.shape[0], 16), _PADDING, np.uint8)
    wide[:, : packed.shape[1]] = packed
    units[plan.order] = wide.reshape(-1).view(_UNIT)


def _rounded(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """fp32 as a tf32 map delivers it."""
    bits = data.view(np.uint32)
    rounded = (bits + 0x0FFF + (bits >> 13 & 1)) & 0xFFFF_E000
    nan = (bits & 0x7FFF_FFFF) > 0x7F80_0000
    return np.where(nan, 0x7FFF_E000, rounded).astype(np.uint32).view(np.uint8)
