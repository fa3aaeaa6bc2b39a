"""Tensor maps as CuTe DSL wrote them, and an encoder made from the bit table."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from pytest_nvfp4.driver.tensormap import (
    ElementType,
    Interleave,
    L2Promotion,
    OobFill,
    Swizzle,
    SwizzleAtomicity,
)

# (words 0-7 as CuTe DSL 4.8.1 wrote them for a row-major 256 x 512 tensor, what was asked for)
FROM_DSL = [
    (
        (0x7F0643DFF040, 0x4000246312, 0, 0, 0xFF000001FF, 0, 0x3F00000000000000, 0x3F),
        (ElementType.F16, (512, 256), (1024,), (64, 64), Swizzle.B128),
    ),
    (
        (0x7F0643DFF040, 0x4000244312, 0, 0, 0xFF000001FF, 0, 0x1F00000000000000, 0x3F),
        (ElementType.F16, (512, 256), (1024,), (32, 64), Swizzle.B64),
    ),
    (
        (0x7F0643DFF040, 0x4000242312, 0, 0, 0xFF000001FF, 0, 0x0F00000000000000, 0x3F),
        (ElementType.F16, (512, 256), (1024,), (16, 64), Swizzle.B32),
    ),
    (
        (0x7F0643DFF040, 0x4000240312, 0, 0, 0xFF000001FF, 0, 0x0700000000000000, 0x3F),
        (ElementType.F16, (512, 256), (1024,), (8, 64), Swizzle.NONE),
    ),
    (
        (0x7F0643DFF040, 0x8000246392, 0, 0, 0xFF000001FF, 0, 0x1F00000000000000, 0x3F),
        (ElementType.F32, (512, 256), (2048,), (32, 64), Swizzle.B128),
    ),
    (
        (0x7F0643DFF040, 0x2000240012, 0, 0, 0xFF000001FF, 0, 0x3F00000000000000, 0x3F),
        (ElementType.U8, (512, 256), (512,), (64, 64), Swizzle.NONE),
    ),
    (
        (0x7F0643DFF040, 0x4000246332, 0xC00000004000, 0, 0xFF000001FF, 0x200000002, 0x3F00000000000000, 0x3F),
        (ElementType.F16, (512, 256, 3, 3), (1024, 262144, 786432), (64, 64, 1, 1), Swizzle.B128),
    ),
]


def encode(
    *,
    address: int = 0x7F0000000000,
    element: int = ElementType.F16,
    dims: tuple[int, ...] = (512, 256),
    strides: tuple[int, ...] = (1024,),
    box: tuple[int, ...] = (64, 64),
    steps: tuple[int, ...] | None = None,
    swizzle: int = Swizzle.B128,
    atomicity: int = SwizzleAtomicity.B16,
    interleave: int = Interleave.NONE,
    oob: int = OobFill.ZERO,
    promotion: int = L2Promotion.NONE,
    tf32: int = 0,
    tag: int = 2,
    rank: int | None = None,
) -> bytes:
    """Write the bit table down once more, independently of the decoder."""
    rank = len(dims) if rank is None else rank
    steps = steps or (1,) * len(dims)
    strides = [s >> 4 for s in strides] + [0] * (4 - len(strides))
    dims = [d - 1 for d in dims] + [0] * (5 - len(dims))
    box = [b - 1 for b in box] + [0] * (5 - len(box))
    w1 = tag | (rank - 1) << 4 | element << 7 | interleave << 11 | swizzle << 13 | oob << 15 | tf32 << 16
    w1 |= promotion << 17 | atomicity << 19 | (strides[0] & 0xFFFFFFFF) << 32
    w3 = strides[3] & 0xFFFFFFFF
    for i, stride in enumerate(strides):
        w3 |= (stride >> 32) << (32 + 4 * i)
    w6 = dims[4] | box[0] << 56
    for i, step in enumerate(steps):
        w6 |= (step - 1) << (32 + 3 * i)
    w7 = sum(b << (8 * i) for i, b in enumerate(box[1:]))
    words = (
        address,
        w1,
        strides[1] & 0xFFFFFFFF | (strides[2] & 0xFFFFFFFF) << 32,
        w3,
        dims[0] | dims[1] << 32,
        dims[2] | dims[3] << 32,
        w6,
        w7,
    )
    return struct.pack("<8Q", *words) + b"\xa5" * 64


@st.composite
def maps(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 5))
    interleave = Interleave.NONE
    element = draw(st.sampled_from(list(ElementType)))
    align, whole = (32, 128) if element.padded else (16, 1)
    unit = 128 // element.bits
    swizzle = draw(st.sampled_from((Swizzle.NONE, Swizzle.B128) if element.padded else list(Swizzle)))
    atoms = [atom for atom in SwizzleAtomicity if not element.padded or atom is not SwizzleAtomicity.B32_FLIP_8B]
    widest = swizzle.span_bytes // 16 if swizzle else 16
    inner = 128 if element.padded else unit * draw(st.integers(1, min(widest, 256 // unit)))
    floats = {ElementType.F16, ElementType.F32, ElementType.F32_FTZ, ElementType.F64, ElementType.BF16}
    return {
        "address": align * draw(st.integers(1, 2**52)),
        "element": element,
        "dims": tuple(
            (whole if not i else 1) * draw(st.integers(1, 2**25 if element.padded else 2**32)) for i in range(rank)
        ),
        "strides": tuple(align * draw(st.integers(0, 2**40 // align - 1)) for _ in range(rank - 1)),
        "box": (inner, *(draw(st.integers(1, 256)) for _ in range(rank - 1))),
        "steps": tuple(draw(st.integers(1, 8)) for _ in range(rank)),
        "swizzle": swizzle,
        "atomicity": draw(st.sampled_from(atoms)),
        "interleave": interleave,
        "oob": draw(st.sampled_from(list(OobFill))) if element in floats else OobFill.ZERO,
        "promotion": draw(st.sampled_from(list(L2Promotion))),
        "tf32": draw(st.integers(0, 1)) if element is ElementType.F32 else 0,
    }
