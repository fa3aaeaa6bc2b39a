"""Encoder of the 128-byte TMA tensor map: ``cuTensorMapEncodeTiled`` without a driver.

The arguments are those of the driver's function, with its enumerations (CUDA driver API, tensor map management). The
bits are those that ``tensormap`` decodes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from pytest_nvfp4.driver.launches import LaunchRejectedError
from pytest_nvfp4.driver.tensormap import (
    MAX_RANK,
    TENSOR_MAP_BYTES,
    ElementType,
    Swizzle,
    SwizzleAtomicity,
    TensorMapError,
    decode,
)

_TAG: Final = 2
_LARGE_BYTES: Final = 128 << 10
_TYPES: Final[Sequence[tuple[ElementType, bool]]] = (
    *((ElementType(code), False) for code in range(8)),  # U8 to F32 have the codes of the hardware
    (ElementType.F64, False),
    (ElementType.BF16, False),
    (ElementType.F32_FTZ, False),
    (ElementType.F32, True),
    (ElementType.F32_FTZ, True),
    (ElementType.FP4_PACKED, False),
    (ElementType.FP4_PADDED, False),
    (ElementType.FP6_PADDED, False),
)
"""By ``CUtensorMapDataType``: the type, and whether elements are rounded to tf32."""
_SWIZZLES: Final = (
    *((swizzle, SwizzleAtomicity.B16) for swizzle in Swizzle),
    *((Swizzle.B128, atom) for atom in SwizzleAtomicity if atom is not SwizzleAtomicity.B16),
)
"""By ``CUtensorMapSwizzle``."""


def encode_tiled(
    *,
    element_type: int,
    address: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int] | None = None,
    interleave: int = 0,
    swizzle: int = 0,
    l2_promotion: int = 0,
    oob_fill: int = 0,
) -> bytes:
    """Return the tensor map that ``cuTensorMapEncodeTiled`` writes.

    Args:
        element_type, interleave, swizzle, l2_promotion, oob_fill: Values of the driver's enumerations.
        address: Global address of element 0.
        dims, box, element_strides: Sizes in elements, the innermost dimension first.
        strides: Strides in bytes of all dimensions but the innermost.

    Raises:
        LaunchRejectedError: the driver refuses these arguments.
    """
    rank = len(dims)
    steps = element_strides or (1,) * rank
    try:
        problem = next(_out_of_range(dims, strides, box, steps), None)
        if problem is not None:
            raise TensorMapError(problem)
        for name, code, most in (
            ("data type", element_type, len(_TYPES)),
            ("swizzle", swizzle, len(_SWIZZLES)),
            ("interleave", interleave, 3),
            ("L2 promotion", l2_promotion, 4),
            ("out-of-bounds fill", oob_fill, 2),
        ):
            if not 0 <= code < most:
                raise TensorMapError(f"{name} {code} does not exist")
        element, tf32 = _TYPES[element_type]
        span, atom = _SWIZZLES[swizzle]
        size = dims[-1] * (strides[-1] * 8 if rank > 1 else element.bits) // 8
        flags = _TAG | (rank - 1) << 4 | element << 7 | interleave << 11 | span << 13 | oob_fill << 15 | tf32 << 16
        flags |= l2_promotion << 17 | atom << 19 | (size >= _LARGE_BYTES) << 21
        data = _packed(address=address, flags=flags, dims=dims, strides=strides, box=box, steps=steps)
        decode(data)
    except TensorMapError as error:
        raise LaunchRejectedError(f"CUDA_ERROR_INVALID_VALUE: cuTensorMapEncodeTiled: {error}") from None
    return data


def _out_of_range(
    dims: Sequence[int], strides: Sequence[int], box: Sequence[int], steps: Sequence[int]
) -> Iterator[str]:
    """Yield what no field of the format can hold; ``decode`` finds contradictions between fields."""
    rank = len(dims)
    if not 1 <= rank <= MAX_RANK:
        yield f"rank {rank}, at most {MAX_RANK} exists"
    if (len(strides), len(box), len(steps)) != (rank - 1, rank, rank):
        yield f"rank {rank} with {len(strides)} strides, {len(box)} sizes of the box, {len(steps)} element strides"
    for what, values, most in (("size", dims, 1 << 32), ("size of the box", box, 256), ("element stride", steps, 8)):
        for dimension, value in enumerate(values):
            if not 1 <= value <= most:
                yield f"{what} {value} of dimension {dimension} is not 1 to {most}"
    for dimension, stride in enumerate(strides, start=1):
        if not 0 <= stride < 1 << 40 or stride % 16:
            yield f"stride {stride} of dimension {dimension} is not a multiple of 16 bytes below 2^40"


def _packed(
    *, address: int, flags: int, dims: Sequence[int], strides: Sequence[int], box: Sequence[int], steps: Sequence[int]
) -> bytes:
    units = [stride >> 4 for stride in strides] + [0] * (MAX_RANK - 1 - len(strides))
    sizes = [size - 1 for size in dims] + [0] * (MAX_RANK - len(dims))
    first, *others = (size - 1 for size in box)
    low, high = [unit & 0xFFFFFFFF for unit in units], sum((u >> 32) << (32 + 4 * i) for i, u in enumerate(units))
    traversal = sum((step - 1) << (32 + 3 * i) for i, step in enumerate(steps))
    words = (
        address,
        flags | low[0] << 32,
        low[1] | low[2] << 32,
        low[3] | high,
        sizes[0] | sizes[1] << 32,
        sizes[2] | sizes[3] << 32,
        sizes[4] | traversal | first << 56,
        sum(extent << (8 * i) for i, extent in enumerate(others)),
    )
    return struct.pack("<8Q", *words).ljust(TENSOR_MAP_BYTES, b"\0")
