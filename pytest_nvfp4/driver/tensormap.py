"""Decoder of the 128-byte TMA tensor map.

The DSL's host code writes this hardware format inline instead of calling ``cuTensorMapEncodeTiled``, so that running a
kernel without a driver requires decoding it. The bit positions were measured with a real driver (H200) by varying one
argument of ``cuTensorMapEncodeTiled`` at a time; those of the sub-byte types and of the swizzle atomicity come from
compiled code. Only the first 64 bytes have a meaning; the others are uninitialised stack memory of the host.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

TENSOR_MAP_BYTES = 128
MAX_RANK = 5
_FORMAT_TAGS = (0, 2)
"""Bits 0-3 of word 1: 0 in every map that the driver writes for an H200 (measured, CUDA 13.0), 2 in the DSL's."""


class TensorMapError(ValueError):
    """Bytes that are not a tensor map, or one with contradictory fields."""


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
        """Width of an element in global memory in bits."""
        return _ELEMENT_BITS[self]

    @property
    def padded(self) -> bool:
        """Whether 16 elements, packed in global memory, are padded to 16 bytes in shared memory."""
        return self in (ElementType.FP4_PADDED, ElementType.FP6_PADDED)


_ELEMENT_BITS = (8, 16, 32, 32, 64, 64, 16, 32, 32, 64, 16, 4, 4, 6)
"""Widths by code of ``ElementType``."""


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
        """Size of a swizzled row in bytes; 0 without swizzle."""
        return 0 if self is Swizzle.NONE else 16 << self.value


class SwizzleAtomicity(IntEnum):
    """Bytes that a swizzle moves as a unit (bits 19-20)."""

    B16 = 0
    B32 = 1
    B32_FLIP_8B = 2
    B64 = 3


class OobFill(IntEnum):
    """Value of out-of-bounds elements (bit 15)."""

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
    """A decoded tensor map. All tuples go from the innermost (contiguous) dimension outwards.

    Attributes:
        address: Global address of element 0.
        dims, box: Sizes of the tensor and of the box in elements.
        strides: Strides of dimensions 1 to rank - 1 in bytes; dimension 0 is contiguous.
        element_strides: Traversal strides in elements.
        large: Bit 21 of word 1, which the driver sets for tensors of 128 KiB and more.
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
        """Number of elements that a load writes to shared memory, with element strides."""
        return math.prod(-(-extent // step) for extent, step in zip(self.box, self.element_strides, strict=True))

    @property
    def box_bytes(self) -> int:
        """Bytes that a load adds to its mbarrier's tx-count, out-of-bounds elements included."""
        return self.box_elements * self.element_type.bits // 8

    def describe(self) -> str:
        """Return a line for messages: type, shape, strides, box, swizzle and address."""
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

    Raises:
        TensorMapError: too few bytes, a reserved bit set, an unknown type, or fields that no encoder accepts together.
            The message lists every problem, because one wrong word usually breaks several fields.
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
        findings.append(f"element type {type_code} in word 1 bits 7-10 is unknown")
    if interleave_code not in Interleave._value2member_map_:
        findings.append(f"interleave {interleave_code} in word 1 bits 11-12 is unknown")
    if findings:
        raise TensorMapError(_message(findings, words))

    high = _bits(words[3], 32, 16)
    low_strides = (words[1] >> 32, words[2] & 0xFFFFFFFF, words[2] >> 32, words[3] & 0xFFFFFFFF)
    strides = tuple((low | _bits(high, 4 * i, 4) << 32) << 4 for i, low in enumerate(low_strides))
    # Sizes are 32-bit fields of one less than their value, which fill words 4 and 5 and the low half of word 6.
    dims = tuple(size + 1 for size in struct.unpack_from("<5I", data, 32))
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


def looks_like_tensormap(data: bytes, *, null: bool = False) -> bool:
    """Return whether the bytes decode: a filter for kernel parameters, which other data may pass, too.

    Args:
        data: The bytes of a parameter.
        null: Whether the address may be null, as in a map that the kernel copies and completes.
    """
    try:
        return len(data) == TENSOR_MAP_BYTES and (decode(data).address != 0 or null)
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
    """Yield violations of the rules of ``cuTensorMapEncodeTiled`` (CUDA driver API, tensor map management)."""
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
    """Yield violations of the rules of padded types (PTX ISA, "Restriction on Tensor Copy instructions")."""
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


_FLOATS = frozenset({ElementType.F16, ElementType.F32, ElementType.F32_FTZ, ElementType.F64, ElementType.BF16})
