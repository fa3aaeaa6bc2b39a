"""Conversion between integers and f16, bf16, f32, f64, tf32 (PTX ISA, "cvt"); see also ``narrow`` and ``stochastic``.

Rules: an integer result is extended to its register by the sign of its type. Float to integer rounds (``.rni`` ...),
clamps to the destination's range, and converts NaN to 0, or to ``1 << (bits - 1)`` if the source is f64 or the
destination has 64 bits. Integer to integer wraps, or clamps with ``.sat``. Float to float rounds once; ``.sat`` clamps
to [+0, 1], ``.satfinite`` to the largest finite value, ``.relu`` replaces negative values by +0, and NaN stays NaN.

The ISA does not define which NaN; these rules were measured on an H200. The result is the canonical NaN, except:
``cvt.f32.f32``, ``cvt.f64.f64`` without modifiers and ``cvt.f32.bf16`` move the bits; to and from f64 the sign and the
part of the payload that fits are kept and the NaN becomes quiet (``.ftz`` makes it the canonical one, which from f32 to
f64 is widened). ``cvt.tf32`` keeps 10 bits of the canonical NaN; ``.rna`` cuts the payload instead, so a NaN can become
an infinity, and with ``.satfinite`` a value whose exponent bits are all set becomes NaN. ``.ftz`` does not flush the
operand of ``cvt.f16.f32``.

Evidence: PTX ISA; all codes of f16 and bf16 are tested, the rest against exact rational arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pytest_nvfp4.numerics.formats import BF16, F16, TF32
from pytest_nvfp4.sim.alu.floating import ROUNDINGS, saturated, settled
from pytest_nvfp4.sim.alu.forms import BITS, MASKS, SIGNS, atom, atoms, inline, literal
from pytest_nvfp4.sim.alu.half import half_patterns
from pytest_nvfp4.sim.alu.lift import Array, Kernel, kernels, lift, parts, signed
from pytest_nvfp4.sim.alu.narrow import NARROW, lower_narrow
from pytest_nvfp4.sim.alu.numbers import NAN, floats, flushed, settled64
from pytest_nvfp4.sim.alu.rounding import sum_to_odd, to_f32
from pytest_nvfp4.sim.alu.stochastic import lower_stochastic
from pytest_nvfp4.sim.lanes import DTYPES
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction

_INTEGERS = tuple(f"{letter}{width}" for letter in "us" for width in (8, 16, 32, 64))
_FLOATS = ("f16", "bf16", "f32", "f64")
_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_FORMATS = {"f16": F16, "bf16": BF16}

FORMS = (
    "cvt [.sat].(u8|u16|u32|u64|s8|s16|s32|s64).(u8|u16|u32|u64|s8|s16|s32|s64)",
    "cvt .(rni|rzi|rmi|rpi)[.ftz][.sat].(u8 ... s64).(f16|bf16|f32|f64)",
    "cvt .(rn|rz|rm|rp)[.ftz][.sat].(f16|bf16|f32|f64).(u8 ... s64)",
    "cvt .(rn|rz|rm|rp)[.ftz][.sat].(f16|bf16|f32|f64) from a wider type, f16 or bf16",
    "cvt [.ftz][.sat].(f16|f32|f64) from a narrower type or the same",
    "cvt [.(rn|rz|rm|rp)][.ftz].(f32|f64).bf16",
    "cvt .(rni|rzi|rmi|rpi)[.ftz][.sat].(f16|f32|f64) from the same type",
    "cvt .(rn|rz)[.relu][.satfinite].(f16|bf16|f16x2|bf16x2).f32",
    "cvt .(rn|rz)[.relu][.satfinite].tf32.f32",
    "cvt .rna[.satfinite].tf32.f32",
)


# ---- integer to integer ---------------------------------------------------------------------------------------------


@kernels
def extend(kind: str, bits: int) -> Kernel:
    """Return a kernel from patterns of an integer type to ``bits``, extended by its sign or cut."""

    def compute(a: Array) -> Array:
        if kind[0] == "s" and bits > BITS[kind]:
            return signed(a).astype(f"i{bits // 8}").view(DTYPES[bits])
        return a.astype(DTYPES[bits])

    return compute


def _extension(e: Emitter, a: str, kind: str, bits: int) -> str:
    """Return the expression of an atom of an integer type in ``bits``."""
    source = BITS[kind]
    if source == bits:
        return a
    if kind[0] == "s" and bits > source:
        sign = SIGNS[source]
        value = literal(a)
        text = f"(({a} ^ {sign}) - {sign} & {MASKS[bits]})"
        return str((value ^ sign) - sign & MASKS[bits]) if value is not None else inline(e, text, extend(kind, bits), a)
    return inline(e, a if bits > source else f"{a} & {MASKS[bits]}", extend(kind, bits), a)


def _limits(kind: str) -> tuple[int, int]:
    bits = BITS[kind]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


@kernels
def _clamp(source: str, target: str) -> Kernel:
    (low_source, high_source), (low_target, high_target) = _limits(source), _limits(target)
    low, high = max(low_source, low_target), min(high_source, high_target)

    def compute(a: Array) -> Array:
        value = signed(a) if source[0] == "s" else a
        return np.clip(value, value.dtype.type(low), value.dtype.type(high)).astype(DTYPES[BITS[target]])

    return compute


def _finish_integer(e: Emitter, ins: Instruction, text: str, kind: str) -> None:
    """Assign a result of an integer type, extended to its register."""
    dst = ins.operands[0]
    width = e.width(dst) or BITS[kind]
    if width > BITS[kind] and kind[0] == "s":
        name = e.temporary(text)
        e.assign(dst, _extension(e, name, kind, width), width)
    else:
        e.assign(dst, text, BITS[kind])


# ---- float to integer, integer to float -----------------------------------------------------------------------------


@kernels
def _float_to_integer(mode: str, flush: bool, target: str, source: str) -> Kernel:
    bits = BITS[target]
    low, high = _limits(target)
    dtype = DTYPES[bits]
    nan = 1 << bits - 1 if source == "f64" or bits == 64 else 0
    number = np.int64 if target[0] == "s" else np.uint64

    def compute(a: Array) -> Array:
        value = floats(a, source, flush=flush).astype(np.float64)
        value = _TO_INTEGER[mode](value)
        # 2**63 and 2**64 are float64, their predecessors are not: compare with the first value past the range.
        over, under = value >= float(high + 1), value < float(low)
        inside = np.where(over | under | np.isnan(value), 0.0, value).astype(number).astype(dtype)
        inside = np.where(over, dtype(high & MASKS[bits]), np.where(under, dtype(low & MASKS[bits]), inside))
        return np.where(np.isnan(value), dtype(nan), inside)

    return compute


def _odd_of_integer(a: Array, kind: str) -> Array:
    """Convert integers to float64 rounded to odd."""
    if BITS[kind] < 64:
        return (signed(a) if kind[0] == "s" else a).astype(np.float64)
    return sum_to_odd(*_parts(a, kind))


def _parts(a: Array, kind: str) -> tuple[Array, Array]:
    shift = np.uint64(32)
    upper = a >> shift << shift
    return (signed(upper) if kind[0] == "s" else upper).astype(np.float64), (a & np.uint64(MASKS[32])).astype(
        np.float64
    )


def _f64_of_integer(a: Array, kind: str, mode: str) -> Array:
    if BITS[kind] < 64:
        return _odd_of_integer(a, kind)
    upper, lower = _parts(a, kind)
    total = upper + lower
    if mode == "rn":
        return total
    other = total - upper
    error = (upper - (total - other)) + (lower - other)
    down = (mode == "rm") | ((mode == "rz") & (total > 0))
    wrong = np.where(down, error < 0, error > 0)
    return np.where(wrong, np.nextafter(total, np.where(down, -np.inf, np.inf)), total)


def to_float(value: Array, kind: str, mode: str, *, saturates: bool = False) -> Array:
    """Convert float64 values, exact or rounded to odd, to patterns of f16, bf16 or f32."""
    if kind == "f32":
        return settled(to_f32(value, mode))
    if kind == "f16" and mode == "rn" and not saturates:
        pattern = value.astype(np.float16).view(np.uint16)
        return np.where(np.isnan(value), np.uint16(NAN["f16"]), pattern)
    return _FORMATS[kind].encode(value, mode, saturate=saturates).astype(np.uint16)


@kernels
def _integer_to_float(mode: str, flush: bool, clamps: bool, target: str, source: str) -> Kernel:
    def compute(a: Array) -> Array:
        if target == "f64":
            value = _f64_of_integer(a, source, mode)
            return settled64(saturated(value) if clamps else value)
        value = _odd_of_integer(a, source)
        return to_float(saturated(value) if clamps else value, target, mode)

    return compute


# ---- float to float -------------------------------------------------------------------------------------------------


_FIELDS = {"f16": (16, 10), "bf16": (16, 7), "f32": (32, 23), "f64": (64, 52)}
"""Bits and fraction bits."""


def _nan_of(a: Array, source: str, target: str) -> Array:
    """Convert a NaN to another type with its sign and payload; quiet if one of the types is f64."""
    (width, fraction), (to_width, to_fraction) = _FIELDS[source], _FIELDS[target]
    wide = a.astype(np.uint64)
    payload = wide & np.uint64((1 << fraction) - 1)
    far = to_fraction - fraction
    payload = payload << np.uint64(far) if far >= 0 else payload >> np.uint64(-far)
    code = (wide >> np.uint64(width - 1)) << np.uint64(to_width - 1) | payload
    code |= np.uint64((1 << to_width - 1) - (1 << to_fraction))
    if "f64" in (source, target):
        code |= np.uint64(1 << to_fraction - 1)
    return code.astype(DTYPES[to_width])


@kernels
def _float_to_float(mode: str, flush: bool, clamps: bool, target: str, source: str) -> Kernel:
    """Return a kernel; ``mode`` rounds the value, or to an integral value (``rni`` ...), or is empty."""

    keeps = "f64" in (source, target) or (source, target) in (("bf16", "f32"), ("f32", "f32"))
    keeps = keeps and not (flush and source != "f64") and not (mode in _TO_INTEGER and target == "f32")

    def compute(a: Array) -> Array:
        pattern = plain(a)
        if clamps:
            return pattern
        wrong = np.isnan(floats(a, source))
        if not np.count_nonzero(wrong):
            return pattern
        if keeps:
            return np.where(wrong, a if source == target and not mode else _nan_of(a, source, target), pattern)
        if target == "f64":
            return np.where(wrong, np.uint64(0x7FFF_FFFF_E000_0000), pattern)
        return pattern

    def plain(a: Array) -> Array:
        value = floats(a, source, flush=flush and source == "f32" and target != "f16").astype(np.float64)
        if mode in _TO_INTEGER:
            value = _TO_INTEGER[mode](value)
        if clamps:
            value = saturated(value)
        if target == "f64":
            return value.view(np.uint64)
        pattern = to_float(value, target, mode if mode in ROUNDINGS else "rn")
        return flushed(pattern) if flush and target == "f32" else pattern

    return compute


def _single_of_half(a: Array) -> Array:
    """Convert as ``cvt.f32.f16``, which is exact; subnormals of f16 are normal numbers of f32."""
    return settled(a.view(np.float16).astype(np.float32))


@kernels
def _narrowed(mode: str, relu: bool, saturates: bool, target: str) -> Kernel:
    """Return a kernel from f32 to f16, bf16 or tf32."""

    def compute(a: Array) -> Array:
        value = a.view(np.float32).astype(np.float64)
        if relu:
            # NaN stays NaN; -0 becomes +0
            value = np.where(value <= 0, 0.0, value)
        if target == "tf32":
            code = TF32.encode(value, mode, saturate=saturates).astype(np.uint32) << 13
            if mode != "rna":
                return code
            cut = (a & np.uint32(0xFFFF_E000)) - np.uint32(0x2000 if saturates else 0)
            return np.where(np.isnan(value), cut, code)
        return to_float(value, target, mode, saturates=saturates)

    return compute


def half_pair(a: Array, b: Array) -> Array:
    """Convert as ``cvt.rn.f16x2.f32``, ``a`` in the upper half: most epilogues use it, so it takes few numpy calls."""
    low, high = b.view(np.float32), a.view(np.float32)
    result = np.empty(low.size, np.uint32)
    halves = result.view(np.float16)
    halves[0::2] = low
    halves[1::2] = high
    if math.isnan(low.dot(low)) or math.isnan(high.dot(high)):
        codes = result.view(np.uint16)
        codes[0::2][np.isnan(low)] = NAN["f16"]
        codes[1::2][np.isnan(high)] = NAN["f16"]
    return result


def _half(a: Array) -> Array:
    """Convert as ``cvt.rn.f16.f32``."""
    return half_patterns(a.view(np.float32))


def _bfloat(a: Array) -> Array:
    """Convert as ``cvt.rn.bf16.f32``: add half of the last place kept, less one if that place is even."""
    value = a.view(np.float32)
    codes = parts(a + (a >> _SHIFT & _ONE) + _HALF, 16)[1::2]
    if math.isnan(value.dot(value)):
        return np.where(np.isnan(value), np.uint16(NAN["bf16"]), codes)
    return codes


# bf16 is the upper half of f32. Adding 0x7FFF plus the lowest kept bit carries into it exactly where nearest-even
# rounds up; the carry out of the mantissa increments the exponent, up to infinity.
_SHIFT, _ONE, _HALF = np.uint32(16), np.uint32(1), np.uint32(0x7FFF)


def _bfloat_pair(a: Array, b: Array) -> Array:
    """Convert as ``cvt.rn.bf16x2.f32``."""
    result = np.empty(a.size, np.uint32)
    codes = result.view(np.uint16)
    codes[0::2] = _bfloat(b)
    codes[1::2] = _bfloat(a)
    return result


@kernels
def _pair(mode: str, relu: bool, saturates: bool, target: str) -> Kernel:
    if mode == "rn" and not relu and not saturates:
        return half_pair if target == "f16" else _bfloat_pair
    one = _narrowed(mode, relu, saturates, target)

    def compute(a: Array, b: Array) -> Array:
        return one(a).astype(np.uint32) << 16 | one(b)

    return compute


# ---- lowering -------------------------------------------------------------------------------------------------------


def _cvt(ins: Instruction, e: Emitter) -> None:
    if "rs" in ins.parts:
        lower_stochastic(ins, e)
        return
    if not NARROW.isdisjoint(ins.parts):
        lower_narrow(ins, e)
        return
    read = OpcodeReader(ins)
    mode = read.maybe(*ROUNDINGS, "rna", *_TO_INTEGER)
    relu = read.has("relu")
    if relu or "satfinite" in ins.parts or "tf32" in ins.parts or "x2" in ins.parts[-2]:
        _special(ins, e, read, mode, relu)
        return
    flush = read.has("ftz")
    clamps = read.has("sat")
    target = read.one(*_INTEGERS, *_FLOATS)
    source = read.one(*_INTEGERS, *_FLOATS)
    _, operand = read.end(2)
    bits = BITS[source]
    if flush and "f32" not in (target, source):
        raise read.refuse(".ftz without .f32")
    _check(read, target, source, clamps=clamps)
    a = atom(e, operand, bits)
    if target in _INTEGERS and source in _INTEGERS:
        if mode or flush:
            raise read.refuse("an integer conversion does not round")
        text = e.call(lift(_clamp(source, target), bits), a) if clamps else _extension(e, a, source, BITS[target])
        _finish_integer(e, ins, text, target)
    elif target in _INTEGERS:
        if mode not in _TO_INTEGER:
            raise read.refuse("a float to an integer needs .rni, .rzi, .rmi or .rpi")
        _finish_integer(e, ins, e.call(lift(_float_to_integer(mode, flush, target, source), bits), a), target)
    elif source in _INTEGERS:
        if mode not in ROUNDINGS:
            raise read.refuse("an integer to a float needs .rn, .rz, .rm or .rp")
        kernel = _integer_to_float(mode, flush, clamps, target, source)
        e.assign(ins.operands[0], e.call(lift(kernel, bits), a), BITS[target])
    else:
        _real(read, e, a, mode, flush, clamps, target, source)


def _check(read: OpcodeReader, target: str, source: str, *, clamps: bool) -> None:
    """Raise Unsupported for combinations that ptxas rejects."""
    if clamps and target in _INTEGERS and source in _INTEGERS:
        (low, high), (least, most) = _limits(source), _limits(target)
        if least <= low and high <= most:
            raise read.refuse(f".sat is not allowed: every .{source} fits a .{target}")
    if "bf16" in (target, source) and (clamps or 8 in (BITS[target], BITS[source])):
        raise read.refuse(".bf16 takes neither .sat nor 8-bit integers")


def _real(
    read: OpcodeReader, e: Emitter, a: str, mode: str, flush: bool, clamps: bool, target: str, source: str
) -> None:
    """Lower a conversion of the atom ``a`` from float to float."""
    widens = BITS[target] > BITS[source] or target == source
    # From bf16 the ISA requires a rounding modifier even where the conversion is exact.
    rounds_nothing = widens and mode in ROUNDINGS and (source != "bf16" or target == source)
    if mode == "rna" or rounds_nothing or (mode in _TO_INTEGER and target != source):
        raise read.refuse(f".{mode} from .{source} to .{target}")
    if not widens and not mode:
        raise read.refuse(f"from .{source} to .{target} a rounding modifier is required")
    kernel = _float_to_float(mode, flush, clamps, target, source)
    if (mode, flush, clamps, source) == ("rn", False, False, "f32"):
        kernel = {"f16": _half, "bf16": _bfloat}.get(target, kernel)
    elif (mode, clamps, target, source) == ("", False, "f32", "f16"):
        kernel = _single_of_half
    e.assign(read.ins.operands[0], e.call(lift(kernel, BITS[source]), a), BITS[target])


def _special(ins: Instruction, e: Emitter, read: OpcodeReader, mode: str, relu: bool) -> None:
    """Lower the forms with ``.relu``, ``.satfinite``, a pair, or tf32. ptxas accepts both orders of the two flags."""
    saturates = read.has("satfinite")
    relu = relu or read.has("relu")
    target = read.one("f16", "bf16", "f16x2", "bf16x2", "tf32")
    read.one("f32")
    if mode not in (("rn", "rz", "rna") if target == "tf32" and not relu else ("rn", "rz")):
        raise read.refuse(f"rounding .{mode or 'none'}")
    pair = target.endswith("x2")
    dst, *sources = read.end(3 if pair else 2)
    names = atoms(e, 32, *sources)
    if pair:
        e.assign(dst, e.call(lift(_pair(mode, relu, saturates, target[:-2]), 32, 32), *names), 32)
    else:
        e.assign(dst, e.call(lift(_narrowed(mode, relu, saturates, target), 32), *names), BITS[target])


LOWERINGS: Mapping[str, Lowering] = {"cvt": _cvt}
