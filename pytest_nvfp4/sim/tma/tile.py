"""Which bytes of global memory belong to a tensor map's box at given coordinates.

What is copied of them, and how they lie in shared memory, is in ``box`` and ``plan``.

Rules, and where they come from:

- A box of ``box[i]`` elements a dimension holds ``ceil(box[i] / elementStride[i])`` of them, every
  ``elementStride[i]``-th one (CUDA driver API, ``cuTensorMapEncodeTiled``).
- Negative coordinates are outside the tensor.
- Addresses are taken modulo 2**64: coordinate times stride may run round, so that a dimension with a made-up extent
  ends where one of several sequences does. Rests on Triton's ``ragged_tma`` and on kernels that do the same.
- Coordinates count elements, packed 4-bit ones too; a first coordinate in the middle of a byte is unsupported.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from pytest_nvfp4.driver.tensormap import Swizzle, TensorMap, TensorMapError, decode
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.memory.globals import GlobalMemory, Region
from pytest_nvfp4.sim.tma.box import TmaBox
from pytest_nvfp4.sim.tma.box_order import SWIZZLES, BoxOrder
from pytest_nvfp4.sim.tma.checks import check

__all__ = ["TmaTile", "tile_of"]

_ADDRESSES = (1 << 64) - 1
_MAP_BYTES = 64
"""Bytes of a tensor map that carry meaning."""


class TmaTile:
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
        check(tensor_map)
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
        self.period = SWIZZLES[tensor_map.swizzle, tensor_map.swizzle_atomicity][2]
        self._plans: dict[int, BoxOrder] = {}
        self._row_plans: dict[int, BoxOrder] = {}

    def plan(self, address: int) -> BoxOrder:
        """The order of the box's units at a shared address."""
        phase = address % self.period
        found = self._plans.get(phase)
        if found is None:
            found = self._plans[phase] = BoxOrder(self, phase, self.row_offsets)
        return found

    def four_rows(self, address: int) -> BoxOrder:
        """The same for the four rows of ``tile::gather4`` and ``tile::scatter4``."""
        if self.row != self.inner:
            raise Unsupported(f"four rows of elements of type {self.map.element_type.name}")
        phase = address % self.period
        found = self._row_plans.get(phase)
        if found is None:
            found = self._row_plans[phase] = BoxOrder(self, phase, np.zeros(4, np.intp))
        return found

    def box(self, coordinates: tuple[int, ...], memory: GlobalMemory, *, write: bool, what: str) -> TmaBox:
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
            box = TmaBox(self, region, address - region.start, None)
            if region.initialised is not None and not write:
                box.check_initialised(what)
            return box
        return self._cut(coordinates, memory, write=write, what=what)

    def _cut(self, coordinates: tuple[int, ...], memory: GlobalMemory, *, write: bool, what: str) -> TmaBox:
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
            return TmaBox(self, None, 0, cut)
        address &= _ADDRESSES
        region = _region(memory, address, span, self, write=write, what=what)
        box = TmaBox(self, region, address - region.start, cut)
        if region.initialised is not None and not write:
            box.check_initialised(what)
        return box


def _region(memory: GlobalMemory, address: int, size: int, tile: TmaTile, *, write: bool, what: str) -> Region:
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


@lru_cache(maxsize=4096)
def _tile_of(words: bytes) -> TmaTile | Fault:
    try:
        return TmaTile(decode(words))
    except TensorMapError as error:
        return Fault("tensor map", str(error), hint="look at how the map was made or copied")
    except Fault as fault:
        return fault


def tile_of(data: bytes, *, what: str) -> TmaTile:
    """The tile of a tensor map's 64 bytes (or more).

    Raises:
        Fault: ``tensor map``, with the decoder's words; ``unsupported``.
    """
    found = _tile_of(data[:_MAP_BYTES])
    if isinstance(found, TmaTile):
        return found
    if isinstance(found, Unsupported):
        raise Unsupported(f"{what}: {found.message}", hint=found.hint)
    raise Fault(found.kind, f"{what}: {found.message}", hint=found.hint)
