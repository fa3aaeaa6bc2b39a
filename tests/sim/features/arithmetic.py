"""Packed and narrow arithmetic, conversions and integer instructions; PTX ISA, chapter "Instruction set"."""

from __future__ import annotations

import math
from collections.abc import Callable

import cutlass
import cutlass.cute as cute
import numpy as np
import torch
from cutlass.cute import arch

from .perthread import ptx32, thread_feature

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def torch_cast(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Round to ``dtype`` and back, as torch does on the CPU (to nearest, ties to even)."""
    return torch.from_numpy(x.astype(np.float32)).to(dtype).float().numpy()


# ---- f32x2 -----------------------------------------------------------------------------------------------------------


@cute.jit
def packed_f32x2(x: cute.Tensor, y: cute.Tensor) -> None:
    a, b, c = (x[0], x[1]), (x[2], x[3]), (x[4], x[5])
    y[0], y[1] = arch.add_packed_f32x2(a, b)
    y[2], y[3] = arch.mul_packed_f32x2(a, b)
    y[4], y[5] = arch.fma_packed_f32x2(a, b, c)
    y[6], y[7] = arch.fma_packed_f32x2(a, b, c, rnd="rz")


def packed_reference(x: np.ndarray) -> np.ndarray:
    """The exact product and sum of three floats fit into 53 bits here: the inputs have 8 significant bits."""
    wide = x.astype(np.float64)
    a, b, c = wide[:, 0:2], wide[:, 2:4], wide[:, 4:6]
    fused = a * b + c
    nearest = fused.astype(np.float32)
    away = np.abs(nearest.astype(np.float64)) > np.abs(fused)
    cut = np.where(away, np.nextafter(nearest, np.float32(0)), nearest)
    columns = [(a + b).astype(np.float32), (a * b).astype(np.float32), nearest, cut]
    return np.concatenate(columns, axis=1)


def draw_short_floats(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.integers(-128, 128, shape) * 2.0 ** random.integers(-10, 10, shape)


# ---- conversions -----------------------------------------------------------------------------------------------------


def converted(source: type) -> Callable[[cute.Tensor, cute.Tensor], None]:
    """A body that rounds four floats to ``source`` and back."""

    @cute.jit
    def convert(x: cute.Tensor, y: cute.Tensor) -> None:
        narrow = cute.make_rmem_tensor(4, source)
        values = cute.make_rmem_tensor(4, cutlass.Float32)
        for i in cutlass.range_constexpr(4):
            values[i] = x[i]
        narrow.store(values.load().to(source))
        back = cute.make_rmem_tensor(4, cutlass.Float32)
        back.store(narrow.load().to(cutlass.Float32))
        for i in cutlass.range_constexpr(4):
            y[i] = back[i]

    return convert


def rounding_reference(dtype: torch.dtype) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: torch_cast(x, dtype)


def draw_floats(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Of all magnitudes that 8-bit floats hold, ties and zeros among them."""
    drawn = random.normal(size=shape) * 2.0 ** random.integers(-9, 7, shape)
    drawn[0] = [0.0, -0.0, 1.0625, -1.0625]
    drawn[1] = [1.1875, 2.0**-9, -(2.0**-10), 17.0]
    return drawn


PAIR8 = "{ .reg .b8 t; .reg .f32 a, b; mov.b32 a, $1; mov.b32 b, $2; cvt.%s t, a, b; cvt.u32.u8 $0, t; }"
PAIR16 = "{ .reg .b16 t; .reg .f32 a, b; mov.b32 a, $1; mov.b32 b, $2; cvt.%s t, a, b; cvt.u32.u16 $0, t; }"


@cute.jit
def narrow_pairs(x: cute.Tensor, y: cute.Tensor) -> None:
    """Two floats to a pair of narrow ones; the first operand goes to the upper half. Then pairs back to f16x2."""
    high, low = x[0], x[1]
    y[0] = ptx32(PAIR8 % "rn.satfinite.e2m1x2.f32", high, low)
    y[1] = ptx32(PAIR16 % "rn.satfinite.e4m3x2.f32", high, low)
    y[2] = ptx32(PAIR16 % "rn.satfinite.e5m2x2.f32", high, low)
    y[3] = ptx32(PAIR16 % "rp.satfinite.ue8m0x2.f32", high & 0x7FFFFFFF, low & 0x7FFFFFFF)
    y[4] = ptx32(PAIR16 % "rz.satfinite.ue8m0x2.f32", high & 0x7FFFFFFF, low & 0x7FFFFFFF)
    y[5] = ptx32("{ .reg .b16 t; cvt.u16.u32 t, $1; cvt.rn.f16x2.e4m3x2 $0, t; }", y[1])
    y[6] = ptx32("{ .reg .b16 t; cvt.u16.u32 t, $1; cvt.rn.f16x2.e5m2x2 $0, t; }", y[2])
    y[7] = ptx32("{ .reg .b8 t; cvt.u8.u32 t, $1; cvt.rn.f16x2.e2m1x2 $0, t; }", y[0])
    y[8] = ptx32("{ .reg .b16 t; cvt.u16.u32 t, $1; cvt.rn.bf16x2.ue8m0x2 $0, t; }", y[3])
    y[9] = ptx32("{ .reg .f32 h, l; mov.b32 h, $1; mov.b32 l, $2; cvt.rn.bf16x2.f32 $0, h, l; }", high, low)
    y[10] = ptx32("{ .reg .f32 h, l; mov.b32 h, $1; mov.b32 l, $2; cvt.rz.f16x2.f32 $0, h, l; }", high, low)
    y[11] = ptx32("{ .reg .f32 h; mov.b32 h, $1; cvt.rna.tf32.f32 $0, h; }", high)


def narrow_pairs_reference(x: np.ndarray) -> np.ndarray:
    values = x.view(np.float32)

    def both(code: np.ndarray, bits: int) -> np.ndarray:
        return (code[:, 0].astype(np.int64) << bits | code[:, 1]).astype(np.int64)

    def as_bytes(dtype: torch.dtype, largest: float) -> np.ndarray:
        return torch.from_numpy(np.clip(values, -largest, largest)).to(dtype).view(torch.uint8).numpy()

    magnitude = np.abs(values).astype(np.float64)
    # Nearest of the eight magnitudes; a tie goes to the one with an even code.
    distance = np.abs(magnitude[..., None] - E2M1)
    nearest = distance.argmin(-1)
    tied = np.isclose(distance[..., :], distance.min(-1, keepdims=True), rtol=0, atol=0)
    even = np.where(tied & (np.arange(8) % 2 == 0), np.arange(8), -1).max(-1)
    fp4 = np.where((tied.sum(-1) > 1), even, nearest) | np.where(np.signbit(values), 8, 0)
    e4m3, e5m2 = as_bytes(torch.float8_e4m3fn, 448.0), as_bytes(torch.float8_e5m2, 57344.0)
    exponents = (x & 0x7F800000) >> 23
    fraction = (x & 0x007FFFFF) != 0
    up = np.minimum(exponents + fraction, 254)

    def to_f16(code: np.ndarray, dtype: torch.dtype) -> np.ndarray:
        return torch.from_numpy(code.copy()).view(dtype).half().view(torch.int16).numpy().view(np.uint16)

    fp4_f16 = (E2M1[fp4 & 7] * np.where(fp4 & 8, -1, 1)).astype(np.float16).view(np.uint16)
    scale_bf16 = np.where(up == 0, 0x40, up << 7)  # 2^-127 is a subnormal bf16
    bf16 = torch.from_numpy(values.copy()).bfloat16().view(torch.int16).numpy().view(np.uint16)
    half = values.astype(np.float16)
    cut = np.where(np.abs(half.astype(np.float64)) > magnitude, np.nextafter(half, np.float16(0)), half)
    tf32 = (x[:, 0].astype(np.int64) + 0x1000) & 0xFFFFE000
    columns = [
        both(fp4, 4),
        both(e4m3, 8),
        both(e5m2, 8),
        both(up, 8),
        both(np.minimum(exponents, 254), 8),
        both(to_f16(e4m3, torch.float8_e4m3fn), 16),
        both(to_f16(e5m2, torch.float8_e5m2), 16),
        both(fp4_f16, 16),
        both(scale_bf16, 16),
        both(bf16, 16),
        both(cut.view(np.uint16), 16),
        tf32,
    ]
    return np.stack(columns, axis=1).astype(np.uint32).view(np.int32)


def draw_pairs(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    drawn = random.normal(size=shape) * 2.0 ** random.integers(-6, 4, shape)
    drawn[0] = [0.25, 0.75]
    drawn[1] = [-1.25, 2.5]
    drawn[2] = [5.0, -7.0]
    drawn[3] = [1000.0, -3.5]
    drawn[4] = [0.0, -0.0]
    return drawn.astype(np.float32).view(np.int32)


# ---- integers --------------------------------------------------------------------------------------------------------


@cute.jit
def integers(x: cute.Tensor, y: cute.Tensor) -> None:
    a, b, c = x[0], x[1], x[2]
    shift = c & 63
    y[0] = ptx32("mul.hi.s32 $0, $1, $2;", a, b)
    y[1] = ptx32("mul.hi.u32 $0, $1, $2;", a, b)
    y[2] = ptx32("mad.lo.s32 $0, $1, $2, $3;", a, b, c)
    y[3] = ptx32("lop3.b32 $0, $1, $2, $3, 0x96;", a, b, c)
    y[4] = ptx32("lop3.b32 $0, $1, $2, $3, 0xca;", a, b, c)
    y[5] = ptx32("shf.l.wrap.b32 $0, $1, $2, $3;", a, b, shift)
    y[6] = ptx32("shf.r.clamp.b32 $0, $1, $2, $3;", a, b, shift)
    y[7] = ptx32("shl.b32 $0, $1, $2;", a, shift)
    y[8] = ptx32("shr.s32 $0, $1, $2;", a, shift)
    y[9] = ptx32("shr.u32 $0, $1, $2;", a, shift)
    y[10] = ptx32("bfe.u32 $0, $1, $2, 7;", a, shift & 31)
    y[11] = ptx32("bfe.s32 $0, $1, $2, 7;", a, shift & 31)
    y[12] = ptx32("bfi.b32 $0, $1, $2, 9, 11;", a, b)
    y[13] = ptx32("brev.b32 $0, $1;", a)
    y[14] = ptx32("clz.b32 $0, $1;", a)
    y[15] = ptx32("popc.b32 $0, $1;", a)
    y[16] = ptx32("prmt.b32 $0, $1, $2, 0x7125;", a, b)
    y[17] = ptx32("prmt.b32 $0, $1, $2, 0x8c4f;", a, b)  # the sign of a byte, copied over it
    y[18] = ptx32("{ .reg .u32 l; add.cc.u32 l, $1, $2; addc.u32 $0, $3, 0; }", a, b, c)
    y[19] = ptx32("{ .reg .u32 l; sub.cc.u32 l, $1, $2; subc.u32 $0, $3, 0; }", a, b, c)
    y[20] = ptx32("{ .reg .u64 w; mul.wide.u32 w, $1, $2; shr.u64 w, w, 17; cvt.u32.u64 $0, w; }", a, b)
    y[21] = ptx32("{ .reg .s64 w; mul.wide.s32 w, $1, $2; shr.s64 w, w, 17; cvt.u32.u64 $0, w; }", a, b)
    y[22] = ptx32("sad.s32 $0, $1, $2, $3;", a, b, c)
    y[23] = ptx32("min.s32 $0, $1, $2;", a, b)
    y[24] = ptx32("max.u32 $0, $1, $2;", a, b)
    y[25] = ptx32("dp4a.s32.s32 $0, $1, $2, $3;", a, b, c)
    y[26] = ptx32("bfind.u32 $0, $1;", a)
    y[27] = a // 7
    y[28] = a % 7
    y[29] = ptx32("fns.b32 $0, $1, 0, 3;", a)
    y[30] = ptx32("add.sat.s32 $0, $1, $2;", a, b)
    y[31] = ptx32("abs.s32 $0, $1;", a)


def integers_reference(x: np.ndarray) -> np.ndarray:
    rows = []
    for a, b, c in x.tolist():
        ua, ub, uc = (v & 0xFFFFFFFF for v in (a, b, c))
        shift = c & 63
        wrap, clamp = shift & 31, min(shift, 32)
        start = shift & 31
        funnel = (ub << 32) | ua
        bits = f"{ua:032b}"
        field = (ua >> start) & 0x7F
        top = start + 6
        signed = field - 128 if field >> 6 else field
        if top >= 32:
            # Bits beyond the top are copies of the sign bit.
            signed = a >> start
        source = [(ua >> 8 * i) & 0xFF for i in range(4)] + [(ub >> 8 * i) & 0xFF for i in range(4)]

        def permuted(selectors: list[int], source: list[int] = source) -> int:
            out = 0
            for i, nibble in enumerate(selectors):
                byte = source[nibble & 7]
                out |= (0xFF if byte & 0x80 else 0) << 8 * i if nibble & 8 else byte << 8 * i
            return out

        def as_bytes(word: int) -> list[int]:
            return [((word >> 8 * i & 0xFF) ^ 0x80) - 0x80 for i in range(4)]

        ones = [i for i in range(32) if ua >> i & 1]
        rows.append(
            [
                (a * b) >> 32,
                (ua * ub) >> 32,
                a * b + c,
                a ^ b ^ c,
                (a & b) | (~a & c),
                ((funnel << wrap) >> 32) & 0xFFFFFFFF,
                (funnel >> clamp) & 0xFFFFFFFF,
                (ua << shift) & 0xFFFFFFFF if shift < 32 else 0,
                a >> min(shift, 31),
                ua >> shift,
                field,
                signed,
                (ub & ~(0x7FF << 9)) | ((ua & 0x7FF) << 9),
                int(bits[::-1], 2),
                32 - ua.bit_length(),
                bits.count("1"),
                permuted([5, 2, 1, 7]),
                permuted([0xF, 4, 0xC, 8]),
                uc + ((ua + ub) >> 32),
                uc - (ua < ub),
                (ua * ub) >> 17,
                (a * b) >> 17,
                c + abs(a - b),
                min(a, b),
                max(ua, ub),
                c + sum(p * q for p, q in zip(as_bytes(ua), as_bytes(ub), strict=True)),
                ua.bit_length() - 1,
                a // 7,
                int(math.fmod(a, 7)),  # the DSL's // rounds down, its % keeps the sign of the dividend
                ones[2] if len(ones) >= 3 else -1,
                max(-(2**31), min(2**31 - 1, a + b)),
                abs(a),
            ]
        )
    return (np.array([[v & 0xFFFFFFFF for v in row] for row in rows], np.int64)).astype(np.uint32).view(np.int32)


# ---- transcendental --------------------------------------------------------------------------------------------------


@cute.jit
def transcendental(x: cute.Tensor, y: cute.Tensor) -> None:
    a = x[0]
    y[0] = cute.math.exp2(a, fastmath=True)
    y[1] = cute.math.exp(a, fastmath=True)
    y[2] = cute.math.log2(a, fastmath=True)
    y[3] = cute.math.rsqrt(a, fastmath=True)
    y[4] = cute.math.sqrt(a, fastmath=True)
    y[5] = cute.math.sin(a, fastmath=True)
    y[6] = cute.math.cos(a, fastmath=True)
    y[7] = cute.math.tanh(a, fastmath=True)
    y[8] = arch.rcp_approx(a)
    y[9] = x[0] / x[1]


def transcendental_reference(x: np.ndarray) -> np.ndarray:
    a, b = x[:, 0].astype(np.float64), x[:, 1].astype(np.float64)
    columns = (np.exp2(a), np.exp(a), np.log2(a), a**-0.5, a**0.5, np.sin(a), np.cos(a), np.tanh(a), 1 / a, a / b)
    return np.stack(columns, axis=1)


FLOAT_BYTES = {
    "f16": (cutlass.Float16, torch.float16, "cvt.rn.f16(x2)?.f32"),
    "bf16": (cutlass.BFloat16, torch.bfloat16, "cvt.rn.bf16(x2)?.f32"),
    "e4m3": (cutlass.Float8E4M3FN, torch.float8_e4m3fn, "cvt.rn.satfinite.e4m3x2.f32"),
    "e5m2": (cutlass.Float8E5M2, torch.float8_e5m2, "cvt.rn.satfinite.e5m2x2.f32"),
}

FEATURES = (
    thread_feature(
        "packed_f32x2",
        packed_f32x2,
        packed_reference,
        words=6,
        results=8,
        dtype=np.float32,
        draw=draw_short_floats,
        opcodes=("add.*f32x2", "mul.*f32x2", "fma.rn.*f32x2", "fma.rz.*f32x2"),
    ),
    *(
        thread_feature(
            f"convert_{name}",
            converted(source),
            rounding_reference(dtype),
            words=4,
            results=4,
            dtype=np.float32,
            draw=draw_floats,
            opcodes=(opcode,),
        )
        for name, (source, dtype, opcode) in FLOAT_BYTES.items()
    ),
    thread_feature(
        "convert_narrow_pairs",
        narrow_pairs,
        narrow_pairs_reference,
        words=2,
        results=12,
        draw=draw_pairs,
        opcodes=(
            "cvt.rn.satfinite.e2m1x2.f32",
            "cvt.rn.f16x2.e2m1x2",
            "cvt.rp.satfinite.ue8m0x2.f32",
            "cvt.rz.satfinite.ue8m0x2.f32",
            "cvt.rn.bf16x2.ue8m0x2",
            "cvt.rna.tf32.f32",
        ),
    ),
    thread_feature(
        "integers",
        integers,
        integers_reference,
        words=3,
        results=32,
        opcodes=("lop3.b32", "shf.l.wrap.b32", "bfe.s32", "bfi.b32", "prmt.b32", "addc.u32", "dp4a.s32.s32", "fns.b32"),
    ),
    thread_feature(
        "transcendental",
        transcendental,
        transcendental_reference,
        words=2,
        results=10,
        dtype=np.float32,
        draw=lambda random, shape: random.uniform(0.25, 3.0, shape),
        opcodes=("ex2.approx", "lg2.approx", "rsqrt.approx", "sin.approx", "cos.approx", "rcp.approx"),
        tolerance=2e-3,
    ),
)
