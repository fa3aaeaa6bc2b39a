"""A checked tensor map, with everything that all copies of its boxes share.

The decoder of tensor maps leaves to its users which combinations of fields are legal, and where boxes may begin:

- A box of ``box[i]`` elements in a dimension contains ``ceil(box[i] / elementStride[i])`` of them, every
  ``elementStride[i]``-th one (CUDA driver API, ``cuTensorMapEncodeTiled``). In dimension 0 the element stride must be 1
  without interleave (PTX ISA, "Traversal-Stride").
- The first coordinate times the element's size must be a multiple of 16 bytes: otherwise an H200 stops with an illegal
  instruction at every load and store (measured), whatever the element's type (u8, f16, u32 and u64 tried) and the width
  of the box (16 and 64 bytes); no document states it. It is a fault for compute capability 9.0, including reductions,
  which are stores that were not tried. No B200 was tried: for other architectures it is reported as ``unaligned-box``,
  which is not an error, and the box is copied. Prefetches were not tried and are not checked.
- Addresses and strides are multiples of 16 bytes; the inner extent of a box is one too and fits the swizzle's span; the
  destination is a multiple of 128 (CUDA driver API; PTX ISA, "cp.async.bulk.tensor").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod

import numpy as np

from pytest_nvfp4.driver.tensormap import ElementType, Interleave, Swizzle, TensorMap, TensorMapError, decode
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.tma.box_order import SWIZZLES, BoxOrder

ALIGN = 128
"""Alignment of a box's shared address in bytes."""
_MAP_BYTES = 64
"""Bytes of a tensor map that hold fields."""
_FIRST_BITS = 128
"""Alignment of a box's first coordinate in bits (measured on an H200)."""
_MEASURED_CAPABILITY = (9, 0)


class TmaTile:
    """A checked tensor map and the geometry of its boxes.

    Attributes:
        bits: Width of an element in global memory.
        inner: Bytes of a row of the box in global memory.
        row: Bytes of a row of the box in shared memory: more than ``inner`` if elements are padded.
        pitch: Bytes from one row to the next in shared memory: at least the swizzle's span.
        counts: Elements of the box in each dimension.
        rows: Number of rows of the box.
        bytes: Bytes of the box, which a load counts towards its mbarrier.
        limits: Largest coordinate in each dimension at which a box lies inside the tensor.
        span: Bytes of global memory from the first to the last byte of a box.
        pitches: Bytes of global memory from one element of the box to the next, for each dimension but the first.
        whole_sectors: Whether the tensor and its rows begin at 32-byte sectors.
        row_offsets: Bytes from the box's first row in global memory to each of its rows.
        convert: Whether loads round to tf32.
        period: Bytes after which the swizzle repeats.

    Raises:
        Fault: ``tensor map``: the fields contradict each other.
        Unsupported: an interleaved layout, or a swizzle atomicity that is not modelled.
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
        reach = tuple((count - 1) * step for count, step in zip(self.counts, steps, strict=True))
        self.limits = tuple(dim - 1 - far for dim, far in zip(tensor_map.dims, reach, strict=True))
        self.span = self.inner + sum(far * stride for far, stride in zip(reach[1:], tensor_map.strides, strict=True))
        self.pitches = tuple(s * t for s, t in zip(tensor_map.strides, steps[1:], strict=True))
        self.whole_sectors = not any(part % 32 for part in (tensor_map.address, *self.pitches))
        self.row_offsets = np.zeros(1, np.intp)
        for count, pitch in zip(self.counts[1:], self.pitches, strict=True):
            along = np.arange(count, dtype=np.intp) * pitch
            self.row_offsets = (along[:, None] + self.row_offsets[None, :]).ravel()
        self.convert = bool(tensor_map.tf32)
        self.period = SWIZZLES[tensor_map.swizzle, tensor_map.swizzle_atomicity].period
        self._orders: dict[tuple[int, bool], BoxOrder] = {}

    def order(self, address: int, *, four_rows: bool = False) -> BoxOrder:
        """Return the order of the box's units at a shared address.

        ``four_rows``: of the four rows of ``tile::gather4`` and ``tile::scatter4``. Raises Unsupported if padded.
        """
        phase = address % self.period
        order = self._orders.get((phase, four_rows))
        if order is None:
            if four_rows and self.row != self.inner:
                raise Unsupported(f"four rows of elements of type {self.map.element_type.name}")
            offsets = np.zeros(4, np.intp) if four_rows else self.row_offsets
            order = BoxOrder(self.map, phase, offsets, inner=self.inner, row=self.row, pitch=self.pitch)
            self._orders[phase, four_rows] = order
        return order

    def check_alignment(
        self, first: int, capability: tuple[int, int], *, what: str, report: Callable[..., None]
    ) -> None:  # fmt: skip
        """Check that the first coordinate of a load or store is a multiple of 16 bytes.

        Args:
            first: The coordinate, in elements.
            capability: The device's. The rule was measured on an H200; elsewhere ``unaligned-box`` is reported.

        Raises:
            Fault: ``tensor map``, on compute capability 9.0.
        """
        if not first * self.bits & _FIRST_BITS - 1:
            return
        step = _FIRST_BITS // self.bits
        below = first // step * step
        message = (
            f"{what}: first coordinate {first} of elements of type {self.map.element_type.name} is "
            f"{first * self.bits // 8} bytes from the tensor's start, which is not a multiple of 16; "
        )
        hint = (
            f"make the first coordinate a multiple of {step} ({below} or {below + step}): load more and use a part of "
            "it, or begin the tensor map at another multiple of 16 bytes"
        )
        if capability == _MEASURED_CAPABILITY:
            raise Fault(
                "tensor map",
                f"{message}the device stops with an illegal instruction (measured on an H200; {self.map.describe()})",
                hint=hint,
            )
        report(
            "unaligned-box",
            f"{message}an H200 stops there with an illegal instruction (measured); other devices were not tried "
            f"({self.map.describe()})",
            hint=hint,
        )


def _check(tensor_map: TensorMap) -> None:
    """Check the fields of a decoded map against each other. Raises Fault or Unsupported as ``TmaTile`` does."""
    if tensor_map.interleave is not Interleave.NONE:
        raise Unsupported(f"a tensor map with the interleaved layout {tensor_map.interleave.name}")
    if tensor_map.element_strides[0] != 1:
        raise Fault(
            "tensor map",
            f"element stride {tensor_map.element_strides[0]} in dimension 0; without interleave it must be 1 "
            "(PTX ISA, 'Traversal-Stride')",
        )
    if (tensor_map.swizzle, tensor_map.swizzle_atomicity) not in SWIZZLES:
        if tensor_map.swizzle is Swizzle.B128:
            raise Unsupported(f"a tensor map with the swizzle atomicity {tensor_map.swizzle_atomicity.name}")
        raise Fault(
            "tensor map",
            f"swizzle {tensor_map.swizzle.name} with atomicity {tensor_map.swizzle_atomicity.name}: only the 128-byte "
            "swizzle has another atomicity than 16 bytes (PTX ISA, 'Swizzling Modes')",
        )
    if tensor_map.element_type is ElementType.FP4_PACKED and tensor_map.dims[0] % 2:
        raise Fault("tensor map", f"{tensor_map.dims[0]} packed 4-bit elements in dimension 0: it must be even")


@lru_cache(maxsize=4096)
def _tile_of(words: bytes) -> TmaTile | Fault:
    try:
        return TmaTile(decode(words))
    except TensorMapError as error:
        return Fault("tensor map", str(error), hint="check how the map was encoded or copied")
    except Fault as fault:
        return fault


def tile_of(data: bytes, *, what: str) -> TmaTile:
    """Return the tile of a tensor map's 64 bytes (or more).

    Raises:
        Fault: ``tensor map``, with the decoder's message.
        Unsupported: as ``TmaTile`` does.
    """
    tile = _tile_of(data[:_MAP_BYTES])
    if isinstance(tile, TmaTile):
        return tile
    if isinstance(tile, Unsupported):
        raise Unsupported(f"{what}: {tile.message}", hint=tile.hint)
    raise Fault(tile.kind, f"{what}: {tile.message}", hint=tile.hint)
