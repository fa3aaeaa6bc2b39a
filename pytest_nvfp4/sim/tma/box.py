"""One box of a tensor: its bytes in global memory, and copies of them to and from shared memory.

Rules and their sources:

- An element outside the tensor (negative coordinates included) reads as zero and is not written; it counts towards the
  bytes of the transaction (measured on an H200). The NaN fill puts 0x7FF7 into every 16 bits, so that an f32 is
  0x7FF77FF7 (measured on an H200 for f16, bf16, f32 and f64; not documented).
- Addresses are taken modulo 2**64: coordinate times stride may wrap around, so that a dimension with an invented extent
  ends where one of several sequences does. Source: Triton's ``ragged_tma`` and kernels that do the same.
- Coordinates count elements, packed 4-bit ones too; a first coordinate in the middle of a byte is unsupported.
- Packed 4-bit elements (``.b4x16``) are copied as they are, two a byte; padded ones take 16 bytes for 16 elements (PTX
  ISA, "Padding and alignment of the sub-byte types").
- A ``tf32`` map rounds fp32 to the nearest-even tf32 on its way to shared memory (PTX ISA, "Tensor Dimension, size
  and format"; CUTLASS depends on it; measured on an H200), and a NaN to 0x7FFFE000 (measured); stores through it change
  nothing. An ``f32.ftz`` map changes nothing either way, subnormals included (measured on an H200).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.tensormap import OobFill
from pytest_nvfp4.finding import UNWRITTEN_SOURCE
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.memory.globals import GlobalMemory, Region
from pytest_nvfp4.sim.memory.shared import SharedMemory
from pytest_nvfp4.sim.tma.box_order import BoxOrder
from pytest_nvfp4.sim.tma.tile import TmaTile

_UNIT = np.dtype("V16")
_PADDING = 0xA5
"""Byte that stands for undefined padding."""
_NAN_FILL = np.uint16(0x7FF7)
_ADDRESSES = (1 << 64) - 1


@dataclass(slots=True, eq=False)
class TmaBox:
    """One box of a tensor.

    Attributes:
        region, offset: Region of global memory, and offset of the box's first byte in it; None if wholly outside.
        cut: For each dimension the bytes (dimension 0) or elements of the box inside the tensor; None if all are.
    """

    tile: TmaTile
    region: Region | None
    offset: int
    cut: tuple[slice, ...] | None

    def unwritten(self, what: str, *, kind: str = UNWRITTEN_SOURCE) -> Fault | None:
        """Return the fault of reading a byte inside the tensor that was never written, if that is tracked."""
        region = self.region
        if region is None or region.initialised is None or self.view(region.initialised).all():
            return None
        offsets, size = self.rows()
        rows = (region.unwritten(at, size, what=what, kind=kind) for at in offsets.tolist())
        return next(fault for fault in rows if fault is not None)

    def view(self, array: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return a view of the bytes inside the tensor: dimensions outermost first, dimension 0 in bytes.

        Args:
            array: An array with one item for each byte of the region; default: the region's data.
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
        """Return all bytes of the box in row-major order, with the fill value outside the tensor."""
        tile = self.tile
        if self.cut is None:
            data = self.view().ravel()
        else:
            shape = (*reversed(tile.counts[1:]), tile.inner)
            if tile.map.oob_fill is OobFill.NAN:
                full = np.full((*shape[:-1], tile.inner // 2), _NAN_FILL).view(np.uint8)
            else:
                full = np.zeros(shape, np.uint8)
            if self.region is not None:
                full[tuple(reversed(self.cut))] = self.view()
            data = full.ravel()
        return _rounded(data) if tile.convert else data

    def load(self, order: BoxOrder, shared: SharedMemory, index: int) -> None:
        """Copy the box to shared memory."""
        size = order.footprint
        units = shared.data[index : index + size].view(_UNIT)
        tile = self.tile
        if order.source is None:
            data = self.dense() if tile.row == tile.inner else _padded(self.dense(), tile)
            units[order.units] = data.view(_UNIT)
            shared.written[index : index + size].reshape(-1, 16)[order.units] = True
            return
        if self.cut is None and not tile.convert:
            assert self.region is not None
            source = self.region.data[self.offset : self.offset + tile.span].view(_UNIT)
            source.take(order.source, out=units, mode="clip")
        else:
            units[order.units] = self.dense().view(_UNIT)
        shared.written[index : index + size] = True

    def reserve(self, order: BoxOrder, shared: SharedMemory, index: int) -> None:
        """Mark the bytes of the box in shared memory as written, without copying it."""
        written = shared.written[index : index + order.footprint]
        if order.source is None:
            written.reshape(-1, 16)[order.units] = True
        else:
            written[:] = True

    def inside(self, values: NDArray[Any]) -> NDArray[Any]:
        """Select from one value for each byte of the box (row-major) those inside the tensor, shaped as ``view``."""
        tile = self.tile
        shaped = values.reshape((*reversed(tile.counts[1:]), tile.inner))
        return shaped if self.cut is None else shaped[tuple(reversed(self.cut))]

    @property
    def inside_bytes(self) -> int:
        """Number of bytes inside the tensor."""
        if self.region is None:
            return 0
        if self.cut is None:
            return self.tile.bytes
        return prod(part.stop - part.start for part in self.cut)

    @property
    def inner_rows(self) -> int:
        """Number of rows inside the tensor along dimension 1, which are equally spaced."""
        if self.tile.map.rank == 1:
            return 1
        return self.tile.counts[1] if self.cut is None else self.cut[1].stop - self.cut[1].start

    def rows(self) -> tuple[NDArray[np.intp], int]:
        """Return the offsets in the region of the rows inside the tensor, and the bytes of each."""
        tile = self.tile
        if self.cut is None:
            return tile.row_offsets + self.offset, tile.inner
        offsets = np.full(1, self.offset, np.intp)
        for part, pitch in zip(self.cut[1:], tile.pitches, strict=True):
            along = np.arange(part.stop - part.start, dtype=np.intp) * pitch
            offsets = (along[:, None] + offsets[None, :]).ravel()
        return offsets, self.cut[0].stop - self.cut[0].start


def box_at(
    tile: TmaTile, coordinates: tuple[int, ...], memory: GlobalMemory, *, write: bool, what: str
) -> TmaBox:  # fmt: skip
    """Return the box at signed coordinates. All of its elements inside the tensor must lie in one region.

    Raises:
        Fault: ``tensor map``: the map describes memory outside every tensor; ``read-only``.
        Unsupported: a first coordinate inside a byte.
    """
    address = tile.map.address
    first = coordinates[0]
    if first * tile.bits % 8:
        raise Unsupported(f"{what}: first coordinate {first} of 4-bit elements, in the middle of a byte")
    if tile.row != tile.inner and first % 128:
        raise Fault(
            "tensor map",
            f"{what}: first coordinate {first}, which must be a multiple of 128 with {tile.map.element_type.name}",
        )
    if write and min(coordinates) < 0:
        raise Fault(
            "tensor map",
            f"{what}: coordinates {coordinates}; they must not be negative in a copy from shared memory (PTX ISA, "
            "'Restriction on Tensor Copy instructions')",
        )
    address += first * tile.bits // 8
    limits = tile.limits
    inside = 0 <= first <= limits[0]
    if inside:
        strides = tile.map.strides
        for dimension in range(1, len(limits)):
            coordinate = coordinates[dimension]
            if coordinate < 0 or coordinate > limits[dimension]:
                inside = False
                break
            address += coordinate * strides[dimension - 1]
    if inside:
        return _box(tile, address, tile.span, None, memory, write=write, what=what)
    return _partial_box(tile, coordinates, memory, write=write, what=what)


def _partial_box(
    tile: TmaTile, coordinates: tuple[int, ...], memory: GlobalMemory, *, write: bool, what: str
) -> TmaBox:  # fmt: skip
    """Return a box that is partly or wholly outside the tensor."""
    cut: list[slice] = []
    address = tile.map.address
    span = 0
    for dimension, coordinate in enumerate(coordinates):
        step = 1 if dimension == 0 else tile.map.element_strides[dimension]
        low = max(0, -(coordinate // step))
        high = max(low, min(tile.counts[dimension], (tile.map.dims[dimension] - 1 - coordinate) // step + 1))
        if dimension == 0:
            cut.append(slice(low * tile.bits // 8, (high * tile.bits + 7) // 8))
            address += (coordinate + low) * tile.bits // 8
            span += cut[0].stop - cut[0].start
        else:
            cut.append(slice(low, high))
            address += (coordinate + low * step) * tile.map.strides[dimension - 1]
            span += (high - low - 1) * tile.pitches[dimension - 1]
    if any(part.start >= part.stop for part in cut):
        return TmaBox(tile, None, 0, tuple(cut))
    return _box(tile, address, span, tuple(cut), memory, write=write, what=what)


def _box(
    tile: TmaTile, address: int, span: int, cut: tuple[slice, ...] | None, memory: GlobalMemory, *, write: bool,
    what: str,
) -> TmaBox:  # fmt: skip
    """Return the box whose elements inside the tensor cover ``span`` bytes from ``address`` on."""
    address &= _ADDRESSES
    try:
        region = memory.region(address, span, write=write, what=what)
    except Fault as fault:
        if fault.kind != "out-of-bounds":
            raise
        raise Fault(
            "tensor map",
            f"{fault.message}; the tensor map is {tile.map.describe()}",
            hint="the map's address, sizes or strides do not describe the tensor that was allocated",
        ) from None
    return TmaBox(tile, region, address - region.start, cut)


def outside_text(coordinates: tuple[int, ...], tensor: str, extents: tuple[int, ...]) -> str:
    """Return the words for a box wholly outside its tensor, whose name is empty if it is unknown."""
    name = f"{tensor}, " if tensor else ""
    sizes = " x ".join(map(str, extents))
    return f"at coordinates {coordinates} lies wholly outside its tensor ({name}{sizes} in the tensor map)"


def gather4(boxes: list[TmaBox], order: BoxOrder, shared: SharedMemory, index: int) -> None:
    """Copy the rows of ``tile::gather4``, one box each, to shared memory."""
    data = np.concatenate([box.dense() for box in boxes])
    size = order.footprint
    shared.data[index : index + size].view(_UNIT)[order.units] = data.view(_UNIT)
    shared.written[index : index + size].reshape(-1, 16)[order.units] = True


def gathered(units: NDArray[np.uint8], order: BoxOrder) -> NDArray[np.uint8]:
    """Return a copy of the bytes of shared memory from a box's address on, in the box's row-major order."""
    return units.view(_UNIT)[order.units].view(np.uint8)


def _padded(data: NDArray[np.uint8], tile: TmaTile) -> NDArray[np.uint8]:
    """Return 16 packed elements in each unit; the rest of the unit is undefined and becomes ``_PADDING``."""
    packed = data.reshape(-1, 2 * tile.bits)
    wide = np.full((packed.shape[0], 16), _PADDING, np.uint8)
    wide[:, : packed.shape[1]] = packed
    return wide.reshape(-1)


def _rounded(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return fp32 values as a tf32 map delivers them: rounded to nearest even at bit 13."""
    bits = data.view(np.uint32)
    rounded = (bits + 0x0FFF + (bits >> 13 & 1)) & 0xFFFF_E000
    nan = (bits & 0x7FFF_FFFF) > 0x7F80_0000
    return np.where(nan, 0x7FFF_E000, rounded).astype(np.uint32).view(np.uint8)
