"""What the decoder of tensor maps leaves to whoever uses a map: combinations of fields, and where its boxes may begin.

- In dimension 0 the element stride must be 1 without interleave (PTX ISA, "Traversal-Stride").
- The first coordinate times the element's size must be a multiple of 16 bytes: an H200 stops with an illegal
  instruction at every load and store (measured) where it is none, whatever the element's type (u8, f16, u32 and u64
  tried) and the width of the box (16 and 64 bytes); no document says so. `aligned` makes it a fault for compute
  capability 9.0, reductions included, which are stores that were not tried. No B200 was asked: for other
  architectures it is reported as ``unaligned-box``, which is worth a word and no error, and the box is copied.
  Prefetches were not tried, and are not judged.
- Addresses and strides are multiples of 16 bytes, the inner extent of a box is too, and fits the swizzle's span; the
  destination is a multiple of 128 (CUDA driver API; PTX ISA, "cp.async.bulk.tensor").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_nvfp4.driver.tensormap import ElementType, Interleave, Swizzle, TensorMap
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.tma.box_order import SWIZZLES

if TYPE_CHECKING:
    from pytest_nvfp4.sim.tma.tile import TmaTile

__all__ = ["ALIGN", "SPACES", "aligned", "check"]

SPACES = ("global", "shared::cta", "shared::cluster")
"""State spaces of a copy: the opcode names the destination's, then the source's."""
ALIGN = 128
"""Bytes that a box's shared address must be a multiple of."""
_CHUNK_BITS = 128
"""What a box's first coordinate must be a multiple of on an H200."""
_MEASURED = (9, 0)
"""Its compute capability."""


def check(tensor_map: TensorMap) -> None:
    """Check the fields of a map that was decoded against each other.

    Raises:
        Fault: ``tensor map``, the fields contradict each other.
        Unsupported: an interleaved layout, an atomicity that is not modelled.
    """
    if tensor_map.interleave is not Interleave.NONE:
        raise Unsupported(f"a tensor map with the interleaved layout {tensor_map.interleave.name}")
    if tensor_map.element_strides[0] != 1:
        raise Fault(
            "tensor map",
            f"element stride {tensor_map.element_strides[0]} in dimension 0; without interleave it must be 1 "
            "(PTX ISA, 'Traversal-Stride')",
        )
    key = (tensor_map.swizzle, tensor_map.swizzle_atomicity)
    if key not in SWIZZLES:
        if tensor_map.swizzle is Swizzle.B128:
            raise Unsupported(f"a tensor map with the swizzle atomicity {tensor_map.swizzle_atomicity.name}")
        raise Fault(
            "tensor map",
            f"swizzle {tensor_map.swizzle.name} with atomicity {tensor_map.swizzle_atomicity.name}: only the 128-byte "
            "swizzle has another atomicity than 16 bytes (PTX ISA, 'Swizzling Modes')",
        )
    if tensor_map.element_type is ElementType.FP4_PACKED and tensor_map.dims[0] % 2:
        raise Fault("tensor map", f"{tensor_map.dims[0]} packed 4-bit elements in dimension 0: it must be even")


def aligned(tile: TmaTile, first: int, capability: tuple[int, int], *, what: str, report: Callable[..., None]) -> None:
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
