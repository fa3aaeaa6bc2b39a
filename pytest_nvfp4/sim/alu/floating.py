"""f32, f64 and f32x2 arithmetic (PTX ISA, "Floating-Point Instructions").

Results are correctly rounded, ``fma`` with one rounding. ``add`` and ``mul`` without a rounding modifier are rounded to
nearest even and are never contracted into an ``fma``, which the ISA allows ptxas to do. ``.ftz`` flushes subnormal
operands and results to zero of the same sign, ``.sat`` clamps to [+0, 1] with NaN as +0.

A NaN result is the canonical one (0x7FFFFFFF), also of ``abs`` and ``neg`` of f32; of f64 it is an operand's NaN made
quiet, or 0xFFF8000000000000 (``numbers.settled64``; measured on an H200, where ``abs`` and ``neg`` keep its sign).

``min`` and ``max`` order -0 below +0, and return the number beside a NaN unless ``.NaN`` is given. Of two f64 NaNs they
return the second, made quiet (measured on an H200; the ISA requires a canonical NaN, and does not define it for f64).

Evidence: PTX ISA and IEEE 754; every rounding is tested against exact rational arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from pytest_nvfp4.sim.alu.exact import by_lane, rounded
from pytest_nvfp4.sim.alu.forms import BITS, SIGNS, atoms, packed, settle
from pytest_nvfp4.sim.alu.lift import Array, Kernel, kernels, lift, on_pairs
from pytest_nvfp4.sim.alu.numbers import NAN, flushed, flushed_half, quiet64, settled64, without_sign
from pytest_nvfp4.sim.alu.rounding import sum_to_odd, to_f32
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction

ROUNDINGS = ("rn", "rz", "rm", "rp")

FORMS = (
    "add|sub|mul [.(rn|rz|rm|rp)][.ftz][.sat].f32",
    "add|sub|mul [.(rn|rz|rm|rp)][.ftz].f32x2",
    "add|sub|mul [.(rn|rz|rm|rp)].f64",
    "fma .(rn|rz|rm|rp)[.ftz][.sat].f32",
    "fma .(rn|rz|rm|rp)[.ftz].f32x2",
    "fma|mad .(rn|rz|rm|rp).f64",
    "mad .(rn|rz|rm|rp)[.ftz][.sat].f32",
    "abs|neg [.ftz].f32",
    "abs|neg .f64",
    "min|max [.ftz][.NaN][.xorsign.abs].f32",
    "min|max [.ftz][.NaN][.abs].f32 with three sources",
    "min|max .f64",
    "copysign .(f32|f64)",
    "testp .(finite|infinite|number|notanumber|normal|subnormal).(f32|f64)",
)


# ---- what follows every f32 result ----------------------------------------------------------------------------------


def settled(result: Array, flush: bool = False) -> Array:
    """Return float32 results as patterns with canonical NaN, optionally with subnormals flushed."""
    # A sum of squares is NaN only if one of them is: one quick call instead of a comparison and a reduction.
    check = result.dot(result)
    pattern = result.view(np.uint32)
    if math.isnan(check):
        pattern = np.where(np.isnan(result), np.uint32(NAN["f32"]), pattern)
    return flushed(pattern) if flush else pattern


def saturated(result: Array) -> Array:
    """Clamp to [+0, 1]; NaN and -0 give +0."""
    # The comparison is false for NaN and -0: PTX ISA, "add", "mul", "fma": .sat flushes NaN results to +0.
    clamped: Array = np.where(result > 0, np.minimum(result, result.dtype.type(1)), result.dtype.type(0))
    return clamped


def odd_sum(a: Array, b: Array, mode: str) -> Array:
    """Add float64 numbers, rounded to odd; an exact zero has the sign of the rounding mode."""
    total = sum_to_odd(a, b)
    if mode == "rm":
        # IEEE 754, 6.3: an exact zero sum is -0 when rounding down, unless both operands are +0.
        total = np.where((total == 0) & (np.signbit(a) | np.signbit(b)), -0.0, total)
    return total


def fused(a: Array, b: Array, c: Array, mode: str) -> Array:
    """Compute a * b + c of float32 arrays as float32, rounded once."""
    product = a.astype(np.float64) * b
    if mode != "rn":
        return to_f32(odd_sum(product, c.astype(np.float64), mode), mode)
    total = product + c
    # float64 keeps 29 bits below the last bit of float32: 0x1000_0000 there is exactly half.
    # Rounding twice differs only where the first result is halfway between two float32, or below their normals.
    middle = (total.view(np.uint64) & np.uint64(0x1FFF_FFFF)) == np.uint64(0x1000_0000)
    small = np.count_nonzero(np.abs(total) < 2.0**-125)
    # A zero is exact: the exact sum is a multiple of 2^-298, which float64 represents.
    if np.count_nonzero(middle) or (small and small != total.size - np.count_nonzero(total)):
        total = sum_to_odd(product, c.astype(np.float64))
    return total.astype(np.float32)


@kernels
def f32_kernel(root: str, mode: str, flush: bool, saturates: bool) -> Kernel:
    """Return a kernel of f32 patterns for add, sub, mul or fma."""
    single = {"add": np.add, "sub": np.subtract, "mul": np.multiply}.get(root)

    def compute(*patterns: Array) -> Array:
        values = [(flushed(pattern) if flush else pattern).view(np.float32) for pattern in patterns]
        if root == "fma":
            result = fused(values[0], values[1], values[2], mode)
        elif mode == "rn" and single is not None:
            result = single(*values)
        elif root == "mul":
            result = to_f32(values[0].astype(np.float64) * values[1], mode)
        else:
            second = values[1] if root == "add" else -values[1]
            result = to_f32(odd_sum(values[0].astype(np.float64), second.astype(np.float64), mode), mode)
        return settled(saturated(result) if saturates else result, flush)

    return compute


@kernels
def f64_kernel(root: str, mode: str) -> Kernel:
    """Return a kernel of f64 patterns for add, sub, mul or fma."""
    native = {"add": np.add, "sub": np.subtract, "mul": np.multiply}

    def lane(*values: float) -> float:
        a, b = values[0], values[1]
        if root == "mul":
            return a * b if _plain(a * b, a, b) else rounded(Fraction(a) * Fraction(b), mode)
        if root == "fma":
            c = values[2]
            if not (math.isfinite(a) and math.isfinite(b)):
                return a * b + c
        else:
            # a + b is b * 1 + a
            a, b, c = (b if root == "add" else -b), 1.0, a
            if not math.isfinite(a):
                return a + c
        if not math.isfinite(c):
            return c
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        if exact:
            return rounded(exact, mode)
        negative = math.copysign(1.0, a) * math.copysign(1.0, b) < 0, math.copysign(1.0, c) < 0
        return -0.0 if all(negative) or (mode == "rm" and any(negative)) else 0.0

    def compute(*patterns: Array) -> Array:
        values = [pattern.view(np.float64) for pattern in patterns]
        result = native[root](*values) if mode == "rn" and root in native else by_lane(lane, *values)
        if root == "fma":
            first, second, third = patterns
            patterns = first, third, second
        return settled64(result, *patterns)

    return compute


def _plain(product: float, a: float, b: float) -> bool:
    """Return whether a product is exact: of a zero, an infinity or NaN."""
    return not a or not b or math.isnan(product) or math.isinf(a) or math.isinf(b)


def _arithmetic(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    root = {"mad": "fma"}.get(ins.root, ins.root)
    mode = read.one(*ROUNDINGS) if root == "fma" else read.maybe(*ROUNDINGS) or "rn"
    flush = read.has("ftz")
    saturates = read.has("sat")
    if saturates:
        kind = read.one("f32")
    elif flush or ins.root == "mad":
        kind = read.one("f32", "f32x2" if flush and ins.root != "mad" else "f64" if not flush else "f32")
    else:
        kind = read.one("f32", "f64", "f32x2")
    dst, *sources = read.end(4 if root == "fma" else 3)
    bits = BITS[kind]
    kernel = f64_kernel(root, mode) if kind == "f64" else f32_kernel(root, mode, flush, saturates)
    if kind == "f32x2":
        halves = [e.items(source, (), bits=32) for source in sources]
        if None not in halves:
            function = lift(kernel, *[32] * len(sources))
            names = [e.temporary(e.call(function, *half)) for half in zip(*halves, strict=True)]
            e.assign_packed(dst, packed(e, 32, names), names, (), bits=32)
            return
        kernel = on_pairs(kernel, 32)
    e.assign(dst, e.call(lift(kernel, *[bits] * len(sources)), *atoms(e, bits, *sources)), bits)


# ---- sign ---------------------------------------------------------------------------------------------------------


@kernels
def sign_kernel(root: str, kind: str) -> Kernel:
    """Return a kernel of patterns of any type for ``abs`` and ``neg``."""

    def compute(a: Array) -> Array:
        if kind != "f64":
            return without_sign(a, root, INFINITY[kind], NAN[kind])
        sign = np.uint64(SIGNS[64])
        return np.where(np.isnan(a.view(np.float64)), quiet64(a), a & ~sign if root == "abs" else a ^ sign)

    return compute


def _sign(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    flush = read.has("ftz")
    kind = read.one("f32") if flush else read.one("f32", "f64")
    dst, source = read.end(2)
    bits = BITS[kind]
    (a,) = atoms(e, bits, source)
    if flush:
        a = e.temporary(e.call(lift(flushed, 32), a))
    e.assign(dst, e.call(lift(sign_kernel(ins.root, kind), bits), a), bits)


def _copysign(ins: Instruction, e: Emitter) -> None:
    """Lower ``copysign``: the sign of the first source with the magnitude of the second."""
    read = OpcodeReader(ins)
    bits = BITS[read.one("f32", "f64")]
    dst, *sources = read.end(3)
    a, b = atoms(e, bits, *sources)
    e.assign(dst, f"{a} & {SIGNS[bits]} | {b} & {SIGNS[bits] - 1}", bits)


def _testp(ins: Instruction, e: Emitter) -> None:
    """Lower ``testp``: the class of a number; zeros are normal (PTX ISA, "testp"; measured on an H200)."""
    read = OpcodeReader(ins)
    what = read.one("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    kind = read.one("f32", "f64")
    dst, source = read.end(2)
    bits = BITS[kind]
    (a,) = atoms(e, bits, source)
    size = settle(e, e.temporary(f"{a} & {SIGNS[bits] - 1}"))
    infinity = INFINITY[kind]
    normal = 0x0080_0000 if kind == "f32" else 0x0010_0000_0000_0000
    text = {
        "finite": f"{size} < {infinity}",
        "infinite": f"{size} == {infinity}",
        "number": f"{size} <= {infinity}",
        "notanumber": f"{size} > {infinity}",
        "normal": f"(({size} >= {normal}) & ({size} < {infinity})) | ({size} == 0)",
        "subnormal": f"({size} != 0) & ({size} < {normal})",
    }[what]
    e.assign_predicate(dst, text)


# ---- min, max -----------------------------------------------------------------------------------------------------

INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F80_0000, "f64": 0x7FF0_0000_0000_0000}
"""Patterns of infinity."""


def extreme_of(root: str, patterns: tuple[Array, ...], infinity: int, nan: int, propagates: bool) -> Array:
    """Return the least or greatest of patterns of any binary format, ordered as numbers with -0 < +0.

    Args:
        infinity, nan: The patterns of infinity and of the NaN to give.
        propagates: ``.NaN``: one NaN makes the result NaN.
    """
    dtype = patterns[0].dtype
    width = 8 * dtype.itemsize
    signed = np.dtype(f"i{dtype.itemsize}")
    magnitude = signed.type(SIGNS[width] - 1)
    choose = np.minimum if root == "min" else np.maximum
    result, is_nan = patterns[0], (patterns[0] & dtype.type(magnitude)) > infinity
    for other in patterns[1:]:
        other_nan = (other & dtype.type(magnitude)) > infinity
        x, y = (p.view(signed) for p in (result, other))
        # Inverting the magnitude bits of negative patterns makes the order of signed integers that of the numbers,
        # with -0 < +0 (PTX ISA, "min"). The inversion undoes itself.
        x, y = (v ^ (v >> (width - 1) & magnitude) for v in (x, y))
        best = choose(x, y)
        best = (best ^ (best >> (width - 1) & magnitude)).view(dtype)
        if np.count_nonzero(is_nan) or np.count_nonzero(other_nan):
            best = np.where(is_nan, other, np.where(other_nan, result, best))
            is_nan = is_nan | other_nan if propagates else is_nan & other_nan
        result = best
    return np.where(is_nan, dtype.type(nan), result) if np.count_nonzero(is_nan) else result


@kernels
def extreme_kernel(root: str, kind: str, flush: bool, propagates: bool, modifier: str) -> Kernel:
    """Return a kernel of patterns of any type for ``min`` and ``max``; ``modifier`` is xorsign, abs or empty."""
    infinity, sign = INFINITY[kind], SIGNS[BITS[kind]]
    flush_all = flushed_half if kind == "f16" else flushed
    choose = np.minimum if root == "min" else np.maximum

    def compute(*patterns: Array) -> Array:
        if flush:
            patterns = tuple(flush_all(pattern) for pattern in patterns)
        if kind == "f32" and not modifier and len(patterns) == 2:
            quick = choose(patterns[0].view(np.float32), patterns[1].view(np.float32))
            # Numpy gives NaN if there is one, and either of two zeros: without both, its answer is the ISA's.
            if np.count_nonzero(quick) == quick.size and not math.isnan(quick.dot(quick)):
                return quick.view(np.uint32)
        # PTX ISA, "min", "max": .xorsign.abs compares magnitudes; the result's sign is the XOR of the sources' signs.
        signs = patterns[0] ^ patterns[1]
        if modifier:
            patterns = tuple(pattern & (sign - 1) for pattern in patterns)
        result = extreme_of(root, patterns, infinity, NAN[kind], propagates)
        if kind == "f64":
            return settled64(result.view(np.float64), *patterns)
        if modifier == "xorsign":
            result = np.where((result & (sign - 1)) > infinity, result, result & (sign - 1) | signs & sign)
        return result

    return compute


def _extreme(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    flush = read.has("ftz")
    propagates = read.has("NaN")
    modifier = read.maybe("xorsign", "abs")
    if modifier == "xorsign":
        read.one("abs")
    kind = read.one("f32") if flush or propagates or modifier else read.one("f32", "f64")
    dst, *sources = read.end(3) if modifier == "xorsign" or kind == "f64" else read.end(3, 4)
    if modifier == "abs" and len(sources) != 3:
        raise read.refuse(".abs without .xorsign takes three sources")
    bits = BITS[kind]
    kernel = extreme_kernel(ins.root, kind, flush, propagates, modifier)
    e.assign(dst, e.call(lift(kernel, *[bits] * len(sources)), *atoms(e, bits, *sources)), bits)


LOWERINGS: Mapping[str, Lowering] = {"copysign": _copysign, "testp": _testp}

_REALS = ("f32", "f64")
BY_TYPE: Mapping[str, Mapping[str, Lowering]] = {
    "add": dict.fromkeys((*_REALS, "f32x2"), _arithmetic),
    "sub": dict.fromkeys((*_REALS, "f32x2"), _arithmetic),
    "mul": dict.fromkeys((*_REALS, "f32x2"), _arithmetic),
    "fma": dict.fromkeys((*_REALS, "f32x2"), _arithmetic),
    "mad": dict.fromkeys(_REALS, _arithmetic),
    "abs": dict.fromkeys(_REALS, _sign),
    "neg": dict.fromkeys(_REALS, _sign),
    "min": dict.fromkeys(_REALS, _extreme),
    "max": dict.fromkeys(_REALS, _extreme),
}
