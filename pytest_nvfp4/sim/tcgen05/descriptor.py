"""Descriptors of ``tcgen05.mma`` and ``tcgen05.cp``: 64 bits for a matrix in shared memory, 32 for an instruction.

Matrix descriptor (PTX ISA, "Shared memory descriptor"): 0-13 start address >> 4; 16-29 leading-dimension byte offset
(LBO) >> 4; 32-45 stride-dimension byte offset (SBO) >> 4; 46-48 fixed 0b001; 49-51 base offset; 52 LBO mode (1, an
absolute address, is sm_103a only); 53-60 fixed 0; 61-63 swizzle (0 none, 1 128 B with 32 B atoms, 2 128 B, 4 64 B,
6 32 B). All other bits are reserved and must be 0. The base offset is 0 for a pattern that starts at a multiple of its
length, which is where TMA writes it; another base offset is unsupported. Without a swizzle it has no meaning (Triton
sets it by the address for the scale factors that it copies).

With K = 96 an instruction reads 48 bytes of a row, and may begin so close to the end of a swizzled row that they go on
behind it: at the absolute LBO, where NVIDIA's sm_103 kernels put the start of the pipeline's next stage.

Instruction descriptor (PTX ISA, "Instruction descriptor"), for f16, tf32, f8f6f4, i8: 0-1 sparsity selector,
2 sparsity, 3 saturate (i8), 4-5 D type (0 f16, 1 f32, 2 s32), 7-9 A type, 10-12 B type, 13/14 negate A/B,
15/16 transpose A/B (MN-major), 17-22 N >> 3, 24-28 M >> 4, 30-31 shift of ``.ws``. For the block-scaled kinds: 2
sparsity, 4-5 SFB id, 7-9 A type, 10-12 B type (mxf4 and mxf4nvf4: 10-11, and 12 the version of sparsity, which the
DSL's builder sets and a dense product ignores), 13-16 as above (no transpose for mxf4 and mxf4nvf4), 17-22 N >> 3,
23 scale type (0 UE4M3, 1 UE8M0), 27-28 M >> 7, 29-30 SFA id, 31 K = 96 (mxf4 and mxf4nvf4; sm_103a only).

Legal shapes: PTX ISA, "Matrix Shape". Legal types and scale vectors: "Valid combinations of scale_vectorsize with types
and MMA-Kind". Legal major modes and swizzles: "Valid Combinations of Type-Size, Major-ness and Swizzling", whose 8-bit
elements include those of 4 and 6 bits in groups of 16 (source: CUTLASS's tests of all layouts of ``f8f6f4`` and
``mxf8f6f4``). A violation is a fault of kind ``descriptor``; sparsity is unsupported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from pytest_nvfp4.sim.fault import Fault, Unsupported


@dataclass(frozen=True, slots=True)
class DescriptorSwizzle:
    """A swizzle: ``a ^ (a >> shift & mask)`` of an absolute shared address ``a``.

    Attributes:
        code: Bits 61-63 of the descriptor.
        pitch: Bytes of a row.
        rows: Rows of an atom.
    """

    code: int
    name: str
    pitch: int
    shift: int
    mask: int
    rows: int

    @property
    def pattern(self) -> int:
        """Period of the swizzle in bytes."""
        return self.pitch * self.rows


SWIZZLES = {
    0: DescriptorSwizzle(0, "none", 16, 3, 0x00, 8),
    1: DescriptorSwizzle(1, "128B with 32B atoms", 128, 2, 0x60, 4),
    2: DescriptorSwizzle(2, "128B", 128, 3, 0x70, 8),
    4: DescriptorSwizzle(4, "64B", 64, 3, 0x30, 8),
    6: DescriptorSwizzle(6, "32B", 32, 3, 0x10, 8),
}


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """A decoded matrix descriptor, in bytes; ``start`` is an address of the CTA's shared window."""

    start: int
    leading: int
    stride: int
    swizzle: DescriptorSwizzle
    then: int | None = None
    """Absolute address at which a row goes on behind the swizzle's pitch."""

    @property
    def lowest(self) -> int:
        """The lower one of both addresses."""
        return self.start if self.then is None else min(self.start, self.then)

    def __str__(self) -> str:
        return f"start {self.start:#x}, LBO {self.leading}, SBO {self.stride}, swizzle {self.swizzle.name}"


@lru_cache(maxsize=1 << 14)
def decode_matrix(value: int, what: str) -> MatrixDescriptor:
    """Decode a matrix descriptor.

    Raises:
        Fault: a reserved bit, the version, or the swizzle is illegal.
        Unsupported: a swizzle with a base offset other than 0.
    """

    def illegal(reason: str) -> Fault:
        return Fault(
            "descriptor",
            f"{what}: matrix descriptor {value:#018x}: {reason}",
            hint="advance a descriptor in units of 16 bytes (PTX ISA, 'Shared memory descriptor')",
        )

    if value >> 46 & 7 > 1:  # 0, which Triton wrote until 3.5, is no obstacle to a B200
        raise illegal(f"bits 46-48 are {value >> 46 & 7:#05b}; they must be 0b001")
    if value & 0xC000_C000 or value >> 53 & 0xFF:
        raise illegal("a reserved bit (14-15, 30-31, 53-60) is set")
    swizzle = SWIZZLES.get(value >> 61 & 7)
    if swizzle is None:
        raise illegal(f"swizzle {value >> 61 & 7} does not exist (0, 1, 2, 4, 6 do)")
    if value >> 49 & 7 and swizzle.mask:
        raise Unsupported(
            f"{what}: matrix descriptor {value:#018x} with base offset {value >> 49 & 7}",
            hint=f"align the tensor in shared memory to {swizzle.pattern} bytes",
        )
    start, leading, stride = ((value >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    if value >> 52 & 1:
        if not swizzle.mask:
            raise Unsupported(f"{what}: matrix descriptor {value:#018x}: an absolute LBO (bit 52) without a swizzle")
        return MatrixDescriptor(start, 0, stride, swizzle, leading)
    return MatrixDescriptor(start, leading, stride, swizzle)


@dataclass(frozen=True, slots=True, eq=False)
class MmaKind:
    """A ``.kind`` of MMA.

    Attributes:
        k: Elements of K in an instruction: 32 bytes of each row, 48 with K = 96.
        formats: Element formats by their code in the descriptor.
        scales: Legal numbers of scale factors for each row and instruction, by scale type; empty without block scaling.
        outputs: Legal codes of the type of D.
        transposable, negatable: Whether operands can be MN-major, and can be negated.
    """

    name: str
    k: int
    formats: dict[int, str]
    scales: dict[str, tuple[int, ...]]
    outputs: tuple[int, ...]
    transposable: bool
    negatable: bool

    @property
    def scaled(self) -> bool:
        """Whether the kind is block-scaled."""
        return bool(self.scales)

    @property
    def packed(self) -> bool:
        """Whether a byte holds two elements."""
        return self.k in (64, 96)


_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
KINDS = {
    "f16": MmaKind("f16", 16, {0: "f16", 1: "bf16"}, {}, (0, 1), True, True),
    "tf32": MmaKind("tf32", 8, {2: "tf32"}, {}, (1,), True, True),
    "f8f6f4": MmaKind("f8f6f4", 32, _F8F6F4, {}, (0, 1), True, True),
    "i8": MmaKind("i8", 32, {0: "u8", 1: "s8"}, {}, (2,), True, False),
    "mxf8f6f4": MmaKind("mxf8f6f4", 32, _F8F6F4, {"ue8m0": (1,)}, (), True, True),
    "mxf4": MmaKind("mxf4", 64, {1: "e2m1"}, {"ue8m0": (2,)}, (), False, True),
    "mxf4nvf4": MmaKind("mxf4nvf4", 64, {1: "e2m1"}, {"ue8m0": (2, 4), "ue4m3": (4,)}, (), False, True),
}
_WIDE_KINDS = {
    name: replace(
        KINDS[name], k=96, scales={scale: tuple(3 * v // 2 for v in vectors) for scale, vectors in of.items()}
    )
    for name, of in ((name, KINDS[name].scales) for name in ("mxf4", "mxf4nvf4"))
}
"""The kinds with K = 96, whose rows have half as many scale factors again."""


@dataclass(frozen=True, slots=True, eq=False)
class InstructionDescriptor:
    """A decoded, legal instruction descriptor.

    Attributes:
        m, n: Shape of the whole instruction, over both CTAs of a pair.
        a, b, d: Formats.
        a_mn, b_mn: Whether A is M-major and B is N-major.
        vector: Scale factors for each row and instruction, 0 without block scaling.
        a_id, b_id: SFA id and SFB id.
        ws: Whether the instruction is weight-stationary (``.ws``).
    """

    kind: MmaKind
    group: int
    m: int
    n: int
    a: str
    b: str
    d: str
    negate_a: bool
    negate_b: bool
    a_mn: bool
    b_mn: bool
    saturate: bool
    scale: str
    vector: int
    a_id: int
    b_id: int
    ws: bool = False

    @property
    def rows(self) -> int:
        """Rows of A, and of the accumulator, in each CTA."""
        return self.m // self.group

    @property
    def flops(self) -> int:
        """Number of operations: 2 M N K."""
        return 2 * self.m * self.n * self.kind.k


_D_TYPES = {0: "f16", 1: "f32", 2: "s32"}
_Illegal = Callable[..., Fault]
"""Builds the fault of an instruction descriptor from a reason and an optional hint."""


@lru_cache(maxsize=4096)
def decode_instruction(
    value: int, kind_name: str, group: int, vector: int, what: str, ws: bool = False
) -> InstructionDescriptor:
    """Decode an instruction descriptor.

    Args:
        group: ``.cta_group``: 1 or 2.
        vector: Scale factors for each row and 64 elements of K (32 for mxf8f6f4), 0 without block scaling.
        what: The instruction, for messages.

    Raises:
        Fault: an illegal field, or a combination that the ISA does not list.
        Unsupported: sparsity, or a shift of B with ``.ws``.
    """
    kind = KINDS[kind_name]
    if kind.packed and value >> 31:
        kind, vector = _WIDE_KINDS[kind_name], 3 * vector // 2

    def illegal(reason: str, hint: str = "") -> Fault:
        return Fault(
            "descriptor",
            f"{what}: instruction descriptor {value:#010x} for .kind::{kind.name}, .cta_group::{group}: {reason}",
            hint=hint or "PTX ISA, 'Instruction descriptor' and 'Matrix Shape'",
        )

    if value >> 2 & 1:
        raise Unsupported(f"{what}: sparse A (bit 2 of instruction descriptor {value:#010x})")
    fields = _scaled(value, kind, vector, illegal) if kind.scaled else _plain(value, kind, illegal, ws=ws)
    if value & fields.reserved:
        raise illegal(f"reserved bits {value & fields.reserved:#010x} are set")
    b_bits = 3 if kind.packed else 7
    a, b = kind.formats.get(value >> 7 & 7), kind.formats.get(value >> 10 & b_bits)
    if a is None or b is None:
        raise illegal(f"A type {value >> 7 & 7}, B type {value >> 10 & b_bits}; legal types: {kind.formats}")
    if kind.name == "f16" and fields.d == "f16" and "bf16" in (a, b):
        raise illegal("an f16 accumulator takes f16 operands only")
    negate_a, negate_b = bool(value >> 13 & 1), bool(value >> 14 & 1)
    if (negate_a or negate_b) and not kind.negatable:
        raise illegal("this kind cannot negate an operand")
    a_mn, b_mn = bool(value >> 15 & 1), bool(value >> 16 & 1)
    if (a_mn or b_mn) and not kind.transposable:
        raise illegal("this kind takes K-major operands only (bits 15 and 16)", "FP4 tensors must be K-major")
    n = (value >> 17 & 63) << 3
    if ws and value >> 30:
        raise Unsupported(f"{what}: a maximum shift of B (bits 30-31 of {value:#010x})")
    _check_shape(kind, group, fields.m, n, b_mn, illegal, ws=ws)
    return InstructionDescriptor(
        kind, group, fields.m, n, a, b, fields.d, negate_a, negate_b, a_mn, b_mn, fields.saturate, fields.scale,
        vector, fields.a_id, fields.b_id, ws,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _KindFields:
    """Fields that block-scaled and other kinds encode differently, and the reserved bits of the kind."""

    m: int
    reserved: int
    d: str = "f32"
    saturate: bool = False
    scale: str = ""
    a_id: int = 0
    b_id: int = 0


def _scaled(value: int, kind: MmaKind, vector: int, illegal: _Illegal) -> _KindFields:
    reserved = 0x0700_004B  # Bits 0-1, 3, 6 and 24-26.
    if not kind.packed:
        reserved |= 1 << 31
    scale = "ue8m0" if value >> 23 & 1 else "ue4m3"
    a_id, b_id = value >> 29 & 3, value >> 4 & 3
    if vector not in kind.scales.get(scale, ()):
        legal = "; ".join(f"{s} with {' or '.join(map(str, v))} a row" for s, v in kind.scales.items())
        raise illegal(
            f"scale type {scale} (bit 23) with {vector} scale factors a row and instruction; legal: {legal}",
            "check sf_dtype and sf_vec_size of the MMA",
        )
    for name, sf_id in (("SFA", a_id), ("SFB", b_id)):
        if sf_id % math.gcd(vector, 4):
            legal = "0" if vector == 4 else "0 or 2"
            raise illegal(f"{name} id {sf_id} with {vector} scale factors a row; it must be {legal}")
    return _KindFields((value >> 27 & 3) << 7, reserved, scale=scale, a_id=a_id, b_id=b_id)


def _plain(value: int, kind: MmaKind, illegal: _Illegal, *, ws: bool) -> _KindFields:
    if value >> 4 & 3 not in kind.outputs:
        legal = " or ".join(f"{code} ({_D_TYPES[code]})" for code in kind.outputs)
        raise illegal(f"D type {value >> 4 & 3}; it must be {legal}")
    saturate = bool(value >> 3 & 1)
    if saturate and kind.name != "i8":
        raise illegal("saturation (bit 3) is for .kind::i8 only")
    reserved = 0x2080_0043 | (0 if ws else 3) << 30  # Bits 0-1, 6, 23 and 29; 30-31 belong to .ws.
    return _KindFields((value >> 24 & 31) << 4, reserved, d=_D_TYPES[value >> 4 & 3], saturate=saturate)


def _check_shape(kind: MmaKind, group: int, m: int, n: int, b_mn: bool, illegal: _Illegal, *, ws: bool) -> None:
    if ws:
        if m not in (32, 64, 128) or n not in (64, 128, 256):
            raise illegal(f"M = {m}, N = {n}; with .ws M must be 32, 64 or 128 and N 64, 128 or 256")
        return
    legal_m = (128, 256) if group == 2 else (128,) if kind.scaled else (64, 128)
    if m not in legal_m:
        raise illegal(f"M = {m}; it must be {' or '.join(map(str, legal_m))}")
    step = 16 if group == 2 else 8
    if kind.name == "i8":
        step = 32 if group == 2 else 16 if n > 32 else 8
    if b_mn and kind.k == 32:
        step = max(step, 16 * group)
    if not step <= n <= 256 or n % step:
        raise illegal(f"N = {n}; it must be a multiple of {step}, up to 256")
