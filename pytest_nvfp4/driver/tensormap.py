"""The 128-byte TMA tensor map, decoded.

The DSL's host code writes this hardware format inline instead of calling ``cuTensorMapEncodeTiled``, so whoever runs a
kernel without a driver has to read it. The bit table was measured: one argument of ``cuTensorMapEncodeTiled`` varied at
a time on a real driver (H200), the sub-byte types and the swizzle atomicity by compiling. Only the first 64 bytes carry
meaning; the other 64 are whatever the host's stack held.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

__all__ = [
    "ElementType",
    "Interleave",
    "L2Promotion",
    "OobFill",
    "Swizzle",
    "SwizzleAtomicity",
    "TensorMap",
    "TensorMapError",
    "decode",
    "looks_like_tensormap",
]

TENSOR_MAP_BYTES = 128
MAX_RANK = 5
_FORMAT_TAGS = (0, 2)
"""Bits 0-3 of word 1: 0 in every map that the driver writes for an H200 (measured, CUDA 13.0), 2 in the DSL's."""


class TensorMapError(ValueError):
    """The bytes are not a tensor map, or its fields contradict each other."""


class ElementType(IntEnum):
    """Element type field (bits 7-10 of word 1)."""

    U8 = 0
    U16 = 1
    U32 = 2
    S32 = 3
    U64 = 4
    S64 = 5
    F16 = 6
    F32 = 7
    F32_FTZ = 8
    F64 = 9
    BF16 = 10
    FP4_PACKED = 11
    FP4_PADDED = 12
    FP6_PADDED = 13

    @property
    def bits(self) -> int:
        """Width of one element in global memory in bits."""
        return _ELEMENT_BITS[self]

    @property
    def padded(self) -> bool:
        """Whether 16 elements, packed in global memory, take 16 bytes of shared memory each."""
        return self in (ElementType.FP4_PADDED, ElementType.FP6_PADDED)


_ELEMENT_BITS = {
    ElementType.U8: 8,
    ElementType.U16: 16,
    ElementType.U32: 32,
    ElementType.S32: 32,
    ElementType.U64: 64,
    ElementType.S64: 64,
    ElementType.F16: 16,
    ElementType.F32: 32,
    ElementType.F32_FTZ: 32,
    ElementType.F64: 64,
    ElementType.BF16: 16,
    ElementType.FP4_PACKED: 4,
    ElementType.FP4_PADDED: 4,
    ElementType.FP6_PADDED: 6,
}


class Interleave(IntEnum):
    """Interleave field (bits 11-12)."""

    NONE = 0
    B16 = 1
    B32 = 2


class Swizzle(IntEnum):
    """Shared-memory swizzle span (bits 13-14)."""

    NONE = 0
    B32 = 1
    B64 = 2
    B128 = 3

    @property
    def span_bytes(self) -> int:
        """Bytes of one swizzled row; 0 without swizzle."""
        return 0 if self is Swizzle.NONE else 16 << self.value


class SwizzleAtomicity(IntEnum):
    """Bytes that a swizzle moves as one (bits 19-20)."""

    B16 = 0
    B32 = 1
    B32_FLIP_8B = 2
    B64 = 3


class OobFill(IntEnum):
    """What an out-of-bounds element reads as (bit 15)."""

    ZERO = 0
    NAN = 1


class L2Promotion(IntEnum):
    """L2 promotion size (bits 17-18)."""

    NONE = 0
    B64 = 1
    B128 = 2
    B256 = 3


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A decoded tensor map. All tuples run from the innermost (contiguous) dimension outwards.

    ``dims`` and ``box`` are in elements. ``strides`` are the byte strides of dimensions 1 .. rank-1 (dimension 0 is
    contiguous), so there is one fewer than ``rank``. ``address`` is the global address of element 0.
    """

    address: int
    element_type: ElementType
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: Swizzle
    swizzle_atomicity: SwizzleAtomicity
    interleave: Interleave
    oob_fill: OobFill
    l2_promotion: L2Promotion
    tf32: bool
    large: bool

    @property
    def rank(self) -> int:
        """Number of dimensions, 1 to 5."""
        return len(self.dims)

    @property
    def box_elements(self) -> int:
        """Elements that one load writes to shared memory (element strides taken into account)."""
        total = 1
        for extent, step in zip(self.box, self.element_strides, strict=True):
            total *= -(-extent // step)
        return total

    @property
    def box_bytes(self) -> int:
        """Bytes that one load counts towards its mbarrier; out-of-bounds elements count too."""
        return self.box_elements * self.element_type.bits // 8

    def describe(self) -> str:
        """One line for a person: type, shape, strides, box, swizzle and where it starts."""
        text = (
            f"{self.element_type.name} {_by(self.dims)} strides {self.strides or '()'} B"
            f" box {_by(self.box)} swizzle {self.swizzle.name} at {self.address:#x}"
        )
        if any(step != 1 for step in self.element_strides):
            text += f" element strides {_by(self.element_strides)}"
        if self.interleave is not Interleave.NONE:
            text += f" interleave {self.interleave.name}"
        if self.swizzle_atomicity is not SwizzleAtomicity.B16:
            text += f" swizzle atom {self.swizzle_atomicity.name}"
        if self.oob_fill is not OobFill.ZERO:
            text += " out of bounds NaN"
        if self.l2_promotion is not L2Promotion.NONE:
            text += f" L2 {self.l2_promotion.name}"
        return text + (" tf32" if self.tf32 else "")


def decode(data: bytes) -> TensorMap:
    """Decode the 128 bytes of a tensor map (64 are enough).

    :raises TensorMapError: too few bytes, a reserved bit set, an unknown type, or fields that no encoder accepts
        together. The message lists every finding, because one wrong word usually breaks several fields.
    """
    if len(data) not in (TENSOR_MAP_BYTES // 2, TENSOR_MAP_BYTES):
        raise TensorMapError(f"a tensor map has {TENSOR_MAP_BYTES} bytes, got {len(data)}: pass the whole parameter")
    words = struct.unpack_from("<8Q", data)
    findings = list(_reserved(words))
    rank = _bits(words[1], 4, 3) + 1
    type_code = _bits(words[1], 7, 4)
    interleave_code = _bits(words[1], 11, 2)
    if rank > MAX_RANK:
        findings.append(f"rank {rank} in word 1 bits 4-6, at most {MAX_RANK} exists")
    if type_code not in ElementType._value2member_map_:
        findings.append(f"element type {type_code} in word 1 bits 7-10 is not known")
    if interleave_code not in Interleave._value2member_map_:
        findings.append(f"interleave {interleave_code} in word 1 bits 11-12 is not known")
    if findings:
        raise TensorMapError(_message(findings, words))

    high = _bits(words[3], 32, 16)
    low_strides = (words[1] >> 32, words[2] & 0xFFFFFFFF, words[2] >> 32, words[3] & 0xFFFFFFFF)
    strides = tuple((low | _bits(high, 4 * i, 4) << 32) << 4 for i, low in enumerate(low_strides))
    dims = tuple(
        value + 1
        for value in (
            words[4] & 0xFFFFFFFF,
            words[4] >> 32,
            words[5] & 0xFFFFFFFF,
            words[5] >> 32,
            words[6] & 0xFFFFFFFF,
        )
    )
    box = (_bits(words[6], 56, 8) + 1, *(_bits(words[7], 8 * i, 8) + 1 for i in range(4)))
    steps = tuple(_bits(words[6], 32 + 3 * i, 3) + 1 for i in range(MAX_RANK))
    result = TensorMap(
        address=words[0],
        element_type=ElementType(type_code),
        dims=dims[:rank],
        strides=strides[: rank - 1],
        box=box[:rank],
        element_strides=steps[:rank],
        swizzle=Swizzle(_bits(words[1], 13, 2)),
        swizzle_atomicity=SwizzleAtomicity(_bits(words[1], 19, 2)),
        interleave=Interleave(interleave_code),
        oob_fill=OobFill(_bits(words[1], 15, 1)),
        l2_promotion=L2Promotion(_bits(words[1], 17, 2)),
        tf32=bool(_bits(words[1], 16, 1)),
        large=bool(_bits(words[1], 21, 1)),
    )
    findings.extend(_unused(rank, dims, strides, box, steps))
    findings.extend(_inconsistent(result))
    if findings:
        raise TensorMapError(_message(findings, words))
    return result


def looks_like_tensormap(data: bytes) -> bool:
    """Whether the bytes decode: a filter for kernel parameters, not a proof that one was meant."""
    try:
        return len(data) == TENSOR_MAP_BYTES and decode(data).address != 0
    except TensorMapError:
        return False


def _bits(word: int, start: int, width: int) -> int:
    return (word >> start) & ((1 << width) - 1)


def _by(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))


def _message(findings: list[str], words: tuple[int, ...]) -> str:
    shown = " ".join(f"{word:016x}" for word in words)
    return (
        "not a valid tensor map: " + "; ".join(findings) + f". Words 0-7: {shown}. Check that the map was written "
        "completely (every tensormap.replace, then the proxy fence) and that this address holds it"
    )


def _reserved(words: tuple[int, ...]) -> Iterator[str]:
    tag = _bits(words[1], 0, 4)
    if tag not in _FORMAT_TAGS:
        yield f"format tag {tag:#x} in word 1 bits 0-3, every known map has {' or '.join(map(hex, _FORMAT_TAGS))}"
    for word, start, width in ((1, 22, 10), (3, 48, 16), (6, 47, 9), (7, 32, 32)):
        value = _bits(words[word], start, width)
        if value:
            yield f"reserved bits {start}-{start + width - 1} of word {word} hold {value:#x}"


def _unused(
    rank: int, dims: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...], steps: tuple[int, ...]
) -> Iterator[str]:
    for index in range(rank, MAX_RANK):
        if (dims[index], strides[index - 1], box[index], steps[index]) != (1, 0, 1, 1):
            yield (
                f"rank {rank} but dimension {index} is set (size {dims[index]}, stride {strides[index - 1]}, "
                f"box {box[index]}, element stride {steps[index]})"
            )


def _inconsistent(tm: TensorMap) -> Iterator[str]:
    """Rules of ``cuTensorMapEncodeTiled`` (CUDA driver API, tensor map management) that the bits can break."""
    align = 32 if tm.interleave is Interleave.B32 or tm.element_type.padded else 16
    if tm.address % align:
        yield f"address {tm.address:#x} is not a multiple of {align}"
    for index, stride in enumerate(tm.strides, start=1):
        if stride % align:
            yield f"stride {stride} of dimension {index} is not a multiple of {align} bytes"
    if tm.element_type.padded:
        yield from _padded(tm)
        return
    inner_bits = tm.box[0] * tm.element_type.bits
    if inner_bits % 8:
        yield f"the box's inner extent is {inner_bits} bits, not whole bytes"
    inner_bytes = inner_bits // 8
    if tm.interleave is Interleave.NONE:
        if inner_bytes % 16:
            yield f"the box's inner extent is {inner_bytes} bytes, not a multiple of 16"
        if tm.swizzle is not Swizzle.NONE and inner_bytes > tm.swizzle.span_bytes:
            yield f"the box's inner extent is {inner_bytes} bytes, wider than the {tm.swizzle.span_bytes}-byte swizzle"
    elif tm.rank < 3:
        yield f"interleave {tm.interleave.name} needs rank 3 or more, found {tm.rank}"
    elif tm.interleave is Interleave.B32 and tm.swizzle is not Swizzle.B32:
        yield f"interleave B32 needs swizzle B32, found {tm.swizzle.name}"
    if tm.oob_fill is OobFill.NAN and tm.element_type not in _FLOATS:
        yield f"out-of-bounds NaN fill with the non-float type {tm.element_type.name}"
    if tm.tf32 and tm.element_type not in (ElementType.F32, ElementType.F32_FTZ):
        yield f"the tf32 flag with type {tm.element_type.name}"


def _padded(tm: TensorMap) -> Iterator[str]:
    """Rules of the padded sub-byte types (PTX ISA, "Restriction on Tensor Copy instructions")."""
    if tm.box[0] != 128:
        yield f"the box's inner extent is {tm.box[0]} elements, and with {tm.element_type.name} it must be 128"
    if tm.dims[0] % 128:
        yield f"dimension 0 is {tm.dims[0]}, and with {tm.element_type.name} it must be a multiple of 128"
    if tm.swizzle not in (Swizzle.NONE, Swizzle.B128) or tm.swizzle_atomicity is SwizzleAtomicity.B32_FLIP_8B:
        yield f"swizzle {tm.swizzle.name} atom {tm.swizzle_atomicity.name} with {tm.element_type.name}"
    if tm.interleave is not Interleave.NONE:
        yield f"interleave {tm.interleave.name} with {tm.element_type.name}"
    if tm.oob_fill is OobFill.NAN or tm.tf32:
        yield f"out-of-bounds NaN fill or the tf32 flag with {tm.element_type.name}"


_FLOATS = frozenset(
    {ElementType.F16, ElementType.F32, ElementType.F32_FTZ, ElementType.F64, ElementType.BF16},
)
