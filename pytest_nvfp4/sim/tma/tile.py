"""Which bytes of global memory a tensor map's box puts where in shared memory, and back.

Rules, and where they come from:

- A box of ``box[i]`` elements a dimension holds ``ceil(box[i] / elementStride[i])`` of them, every
  ``elementStride[i]``-th one (CUDA driver API, ``cuTensorMapEncodeTiled``). In dimension 0 the stride must be 1
  without interleave (PTX ISA, "Traversal-Stride").
- The box lies in shared memory as dense rows of ``box[0]`` elements, dimension 0 innermost; where a row is narrower
  than the swizzle's span, each begins a span of its own and the rest of that is left as it was, while the bytes of the
  transaction are the box's (measured on an H200 for the 32- and 64-byte spans). Then each 16-byte chunk
  goes to the address that the swizzle makes of its own *absolute* shared address: bits 4-6 ^= bits 7-9 (128 B), 4-5
  ^= 7-8 (64 B), 4 ^= 7 (32 B). Measured on an H200 at offsets 0, 128, 256, 640 and 1,024. With 32-byte atoms bits 5-6
  ^= 7-8, with 64-byte atoms bit 6 ^= 7 (the tables of PTX ISA, "Swizzling Modes"). The 8-byte flip is drawn there
  only, and is unsupported.
- An element outside the tensor reads as zero and is not written; negative coordinates are outside; it counts towards
  the bytes of the transaction (measured on an H200). The NaN fill puts 0x7FF7 into every 16 bits, so that an f32 is
  0x7FF77FF7 (measured on an H200 for f16, bf16, f32 and f64; documented nowhere).
- The first coordinate times the element's size must be a multiple of 16 bytes: an H200 stops with an illegal
  instruction at every load and store (measured) where it is none, whatever the element's type (u8, f16, u32 and u64
  tried) and the width of the box (16 and 64 bytes); no document says so. `aligned` makes it a fault for compute
  capability 9.0, reductions included, which are stores that were not tried. No B200 was asked: for other
  architectures it is reported as ``unaligned-box``, which is worth a word and no error, and the box is copied.
  Prefetches were not tried, and are not judged.
- Addresses are taken modulo 2**64: coordinate times stride may run round, so that a dimension with a made-up extent
  ends where one of several sequences does. Rests on Triton's ``ragged_tma`` and on kernels that do the same.
- Packed 4-bit elements (``.b4x16``) are copied as they lie, two a byte (PTX ISA, "Padding and alignment of the
  sub-byte types"); coordinates count elements, and a first coordinate in the middle of a byte is unsupported.
- A ``tf32`` map rounds fp32 to the nearest-even tf32 on its way to shared memory (PTX ISA, "Tensor Dimension, size
  and format"; CUTLASS relies on it; measured on an H200), and a NaN to 0x7FFFE000 (measured); stores through it change
  nothing. An ``f32.ftz`` map changes nothing either way, subnormals included (measured on an H200).
- Addresses and strides are multiples of 16 bytes, the inner extent of a box is too, and fits the swizzle's span; the
  destination is a multiple of 128 (CUDA driver API; PTX ISA, "cp.async.bulk.tensor").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.memory.globals import GlobalMemory, Region
from pytest_nvfp4.sim.memory.shared import SharedMemory
from pytest_nvfp4.toolchain.tensormap import (
    ElementType,
    Interleave,
    OobFill,
    Swizzle,
    SwizzleAtomicity,
    TensorMap,
    TensorMapError,
    decode,
)

__all__ = ["ALIGN", "Box", "Plan", "Tile", "aligned", "gather4", "gathered", "swizzle", "tile_of"]

ALIGN = 128
"""Bytes that a box's shared address must be a multiple of."""
_UNIT = np.dtype("V16")
_PADDING = 0xA5
_CHUNK_BITS = 128
"""What a box's first coordinate must be a multiple of on an H200."""
_MEASURED = (9, 0)
"""Its compute capability."""
_NAN_FILL = np.uint16(0x7FF7)
_ADDRESSES = (1 << 64) - 1
_MAP_BYTES = 64
"""Bytes of a tensor map that carry meaning."""

# (swizzle, atom): right shift and mask of `a ^ ((a >> shift) & mask)`, and the pattern's period in bytes.
_SWIZZLES = {
    (Swizzle.NONE, SwizzleAtomicity.B16): (0, 0, 16),
    (Swizzle.B32, SwizzleAtomicity.B16): (3, 0x10, 256),
    (Swizzle.B64, SwizzleAtomicity.B16): (3, 0x30, 512),
    (Swizzle.B128, SwizzleAtomicity.B16): (3, 0x70, 1024),
    (Swizzle.B128, SwizzleAtomicity.B32): (2, 0x60, 512),
    (Swizzle.B128, SwizzleAtomicity.B64): (1, 0x40, 256),
}


def swizzle(address: Any, tensor_map: TensorMap) -> Any:
    """The shared address (or array of them) that the map's swizzle makes of an absolute shared address."""
    shift, mask, _ = _SWIZZLES[tensor_map.swizzle, tensor_map.swizzle_atomicity]
    return address ^ ((address >> shift) & mask)


class Plan:
    """How the 16-byte units of a box are ordered in shared memory.

    Attributes:
        order: By unit of the box in its own (row-major) order, its unit relative to the destination.
        footprint: Bytes from the destination to the end of the last unit.
        source: By unit of the destination, the unit of global memory relative to the box's first byte; None where the
            destination's units are not exactly the first ones (a box narrower than the swizzle's span).
    """

    __slots__ = ("footprint", "order", "source")

    def __init__(self, tile: Tile, phase: int, offsets: NDArray[np.intp]) -> None:
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


class Tile:
    """A checked tensor map, with what every copy of its box needs.

    Attributes:
        inner: Bytes of a row of the box in global memory.
        row: The same in shared memory: more if elements are padded.
        pitch: Bytes from one row to the next in shared memory: at least the swizzle's span.
        counts: Elements a dimension.
        rows: Rows of the box.
        bytes: Bytes of the box, which a load counts towards its mbarrier.
        span: Bytes of global memory from the first to the last byte of a box.

    Raises:
        Fault: ``tensor map``, the fields contradict each other.
        Unsupported: an interleaved layout, an atomicity that is not modelled.
    """

    def __init__(self, tensor_map: TensorMap) -> None:
        _check(tensor_map)
        self.map = tensor_map
        self.bits = tensor_map.element_type.bits
        self.inner = tensor_map.box[0] * self.bits // 8
        self.row = tensor_map.box[0] if tensor_map.element_type.padded else self.inner
        swizzled = tensor_map.swizzle is not Swizzle.NONE
        self.pitch = max(self.row, tensor_map.swizzle.span_bytes) if swizzled else self.row
        steps = tensor_map.element_strides
        self.counts = (tensor_map.box[0], *(-(-b // s) for b, s in zip(tensor_map.box[1:], steps[1:], strict=True)))
        self.rows = prod(self.counts[1:])
        self.bytes = self.rows * self.inner
        self.reach = tuple((count - 1) * step for count, step in zip(self.counts, steps, strict=True))
        # What the innermost coordinate of a box that lies inside may be at most, and so on outwards.
        self.limits = tuple(dim - 1 - reach for dim, reach in zip(tensor_map.dims, self.reach, strict=True))
        self.span = self.inner + sum(r * s for r, s in zip(self.reach[1:], tensor_map.strides, strict=True))
        self.pitches = tuple(s * t for s, t in zip(tensor_map.strides, steps[1:], strict=True))
        self.row_offsets = np.zeros(1, np.intp)
        """Bytes from the box's first row to each of its rows."""
        for count, pitch in zip(self.counts[1:], self.pitches, strict=True):
            along = np.arange(count, dtype=np.intp) * pitch
            self.row_offsets = (along[:, None] + self.row_offsets[None, :]).ravel()
        self.convert = bool(tensor_map.tf32)
        self.period = _SWIZZLES[tensor_map.swizzle, tensor_map.swizzle_atomicity][2]
        self._plans: dict[int, Plan] = {}
        self._row_plans: dict[int, Plan] = {}

    def plan(self, address: int) -> Plan:
        """The order of the box's units at a shared address."""
        phase = address % self.period
        found = self._plans.get(phase)
        if found is None:
            found = self._plans[phase] = Plan(self, phase, self.row_offsets)
        return found

    def four_rows(self, address: int) -> Plan:
        """The same for the four rows of ``tile::gather4`` and ``tile::scatter4``."""
        if self.row != self.inner:
            raise Unsupported(f"four rows of elements of type {self.map.element_type.name}")
        phase = address % self.period
        found = self._row_plans.get(phase)
        if found is None:
            found = self._row_plans[phase] = Plan(self, phase, np.zeros(4, np.intp))
        return found

    def box(self, coordinates: tuple[int, ...], memory: GlobalMemory, *, write: bool, what: str) -> Box:
        """The box at signed coordinates, all of its elements inside the tensor checked to lie in one region.

        Raises:
            Fault: ``tensor map``, the map describes memory that no tensor has; ``read-only``.
            Unsupported: a first coordinate inside a byte.
        """
        address = self.map.address
        first = coordinates[0]
        if first * self.bits % 8:
            raise Unsupported(f"{what}: first coordinate {first} of 4-bit elements, in the middle of a byte")
        if self.row != self.inner and first % 128:
            raise Fault(
                "tensor map",
                f"{what}: first coordinate {first}, which must be a multiple of 128 with {self.map.element_type.name}",
            )
        if write and min(coordinates) < 0:
            raise Fault(
                "tensor map",
                f"{what}: coordinates {coordinates}; out of shared memory they must not be negative (PTX ISA, "
                "'Restriction on Tensor Copy instructions')",
            )
        address += first * self.bits // 8
        limits = self.limits
        inside = 0 <= first <= limits[0]
        if inside:
            strides = self.map.strides
            for dimension in range(1, len(limits)):
                coordinate = coordinates[dimension]
                if coordinate < 0 or coordinate > limits[dimension]:
                    inside = False
                    break
                address += coordinate * strides[dimension - 1]
        if inside:
            address &= _ADDRESSES
            region = _region(memory, address, self.span, self, write=write, what=what)
            box = Box(self, region, address - region.start, None)
            if region.initialised is not None and not write:
                box.check_initialised(what)
            return box
        return self._cut(coordinates, memory, write=write, what=what)

    def _cut(self, coordinates: tuple[int, ...], memory: GlobalMemory, *, write: bool, what: str) -> Box:
        """A box that is partly or wholly outside the tensor."""
        parts: list[slice] = []
        address = self.map.address
        span = 0
        for dimension, coordinate in enumerate(coordinates):
            step = 1 if dimension == 0 else self.map.element_strides[dimension]
            low = max(0, -(coordinate // step))
            high = max(low, min(self.counts[dimension], (self.map.dims[dimension] - 1 - coordinate) // step + 1))
            if dimension == 0:
                parts.append(slice(low * self.bits // 8, (high * self.bits + 7) // 8))
                address += (coordinate + low) * self.bits // 8
                span += parts[0].stop - parts[0].start
            else:
                parts.append(slice(low, high))
                address += (coordinate + low * step) * self.map.strides[dimension - 1]
                span += (high - low - 1) * self.pitches[dimension - 1]
        cut = tuple(parts)
        if any(part.start >= part.stop for part in cut):
            return Box(self, None, 0, cut)
        address &= _ADDRESSES
        region = _region(memory, address, span, self, write=write, what=what)
        box = Box(self, region, address - region.start, cut)
        if region.initialised is not None and not write:
            box.check_initialised(what)
        return box


class Box:
    """One box of a tensor: where its elements inside the tensor lie.

    Attributes:
        region, offset: The region of global memory and the offset of its first byte inside; None if wholly outside.
        cut: By dimension, which of the box's bytes (dimension 0) or elements lie inside; None if all of them do.
    """

    __slots__ = ("cut", "offset", "region", "tile")

    def __init__(self, tile: Tile, region: Region | None, offset: int, cut: tuple[slice, ...] | None) -> None:
        self.tile = tile
        self.region = region
        self.offset = offset
        self.cut = cut

    def check_initialised(self, what: str) -> None:
        """Raise Fault if nothing has written a byte inside the tensor (of a region that keeps track)."""
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
                f"{what}: reads {region.say(region.start + missing)}, which nothing has written",
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

    def load(self, plan: Plan, shared: SharedMemory, index: int) -> None:
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


def aligned(tile: Tile, first: int, capability: tuple[int, int], *, what: str, report: Callable[..., None]) -> None:
    """Check that the first coordinate of a load or store, in elements, makes a multiple of 16 bytes.

    Args:
        capability: The device's; the rule was measured on an H200, and elsewhere it is ``unaligned-box``, reported.

    Raises:
        Fault: ``tensor map``, on compute capability 9.0.
    """
    if not first * tile.bits & _CHUNK_BITS - 1:
        return
    step = _CHUNK_BITS // tile.bits
    below = first // step * step
    said = (
        f"{what}: first coordinate {first} of elements of type {tile.map.element_type.name} is "
        f"{first * tile.bits // 8} bytes from the tensor's start, which is not a multiple of 16; "
    )
    hint = (
        f"make the first coordinate a multiple of {step} ({below} or {below + step}): load more and take the part that "
        "is needed, or begin the tensor map at another multiple of 16 bytes"
    )
    if capability == _MEASURED:
        raise Fault(
            "tensor map",
            f"{said}the device stops with an illegal instruction (measured on an H200; {tile.map.describe()})",
            hint=hint,
        )
    report(
        "unaligned-box",
        f"{said}an H200 stops there with an illegal instruction (measured); no other device was asked "
        f"({tile.map.describe()})",
        hint=hint,
    )


def gather4(boxes: list[Box], plan: Plan, shared: SharedMemory, index: int) -> None:
    """Copy the rows of ``tile::gather4``, one box each, to shared memory."""
    data = np.concatenate([box.dense() for box in boxes])
    size = plan.footprint
    shared.data[index : index + size].view(_UNIT)[plan.order] = data.view(_UNIT)
    shared.written[index : index + size].reshape(-1, 16)[plan.order] = True


def gathered(units: NDArray[np.uint8], plan: Plan) -> NDArray[np.uint8]:
    """The bytes of shared memory from a box's address on, in the box's own order (a copy)."""
    return units.view(_UNIT)[plan.order].view(np.uint8)


def _pad(units: NDArray[Any], plan: Plan, data: NDArray[np.uint8], tile: Tile) -> None:
    """16 packed elements to each unit; what follows them in it is undefined, and gets a pattern that shows."""
    packed = data.reshape(-1, 2 * tile.bits)
    wide = np.full((packed.shape[0], 16), _PADDING, np.uint8)
    wide[:, : packed.shape[1]] = packed
    units[plan.order] = wide.reshape(-1).view(_UNIT)


@lru_cache(maxsize=4096)
def _tile_of(words: bytes) -> Tile | Fault:
    try:
        return Tile(decode(words))
    except TensorMapError as error:
        return Fault("tensor map", str(error), hint="look at how the map was made or copied")
    except Fault as fault:
        return fault


def tile_of(data: bytes, *, what: str) -> Tile:
    """The tile of a tensor map's 64 bytes (or more).

    Raises:
        Fault: ``tensor map``, with the decoder's words; ``unsupported``.
    """
    found = _tile_of(data[:_MAP_BYTES])
    if isinstance(found, Tile):
        return found
    if isinstance(found, Unsupported):
        raise Unsupported(f"{what}: {found.message}", hint=found.hint)
    raise Fault(found.kind, f"{what}: {found.message}", hint=found.hint)


def _check(tensor_map: TensorMap) -> None:
    """What the decoder leaves to whoever uses the map."""
    if tensor_map.interleave is not Interleave.NONE:
        raise Unsupported(f"a tensor map with the interleaved layout {tensor_map.interleave.name}")
    if tensor_map.element_strides[0] != 1:
        raise Fault(
            "tensor map",
            f"element stride {tensor_map.element_strides[0]} in dimension 0; without interleave it must be 1 "
            "(PTX ISA, 'Traversal-Stride')",
        )
    key = (tensor_map.swizzle, tensor_map.swizzle_atomicity)
    if key not in _SWIZZLES:
        if tensor_map.swizzle is Swizzle.B128:
            raise Unsupported(f"a tensor map with the swizzle atomicity {tensor_map.swizzle_atomicity.name}")
        raise Fault(
            "tensor map",
            f"swizzle {tensor_map.swizzle.name} with atomicity {tensor_map.swizzle_atomicity.name}: only the 128-byte "
            "swizzle has another atomicity than 16 bytes (PTX ISA, 'Swizzling Modes')",
        )
    if tensor_map.element_type is ElementType.FP4_PACKED and tensor_map.dims[0] % 2:
        raise Fault("tensor map", f"{tensor_map.dims[0]} packed 4-bit elements in dimension 0: it must be even")


def _region(memory: GlobalMemory, address: int, size: int, tile: Tile, *, write: bool, what: str) -> Region:
    try:
        region = memory.region(address, size, write=write, what=what)
    except Fault as fault:
        if fault.kind != "out-of-bounds":
            raise
        raise Fault(
            "tensor map",
            f"{fault.message}; the tensor map is {tile.map.describe()}",
            hint="the map's address, sizes or strides do not describe the tensor that was allocated",
        ) from None
    return region


def _rounded(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """fp32 as a tf32 map delivers it."""
    bits = data.view(np.uint32)
    rounded = (bits + 0x0FFF + (bits >> 13 & 1)) & 0xFFFF_E000
    nan = (bits & 0x7FFF_FFFF) > 0x7F80_0000
    return np.where(nan, 0x7FFF_E000, rounded).astype(np.uint32).view(np.uint8)
