"""Bit operations on a word (PTX ISA, "Integer Arithmetic Instructions" and "prmt"): prmt, bfe, bfi, brev, clz, popc,
bfind, fns, szext, bmsk.

``bfe`` and ``bfi`` of 32 bits use the low 8 bits of position and length; the ISA restricts both to 0 to 255. Those of
64 bits use the whole operands (measured on an H200), so 0x80000001 is past the word there. ``fns`` with the offset
0x80000000 gives 0 whatever the rest (measured on an H200; the ISA leaves it open).

Evidence: PTX ISA; tested against Python's integers, ``prmt`` for every mode and selector.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from pytest_nvfp4.sim.alu.forms import BITS, MASKS, atoms, literal
from pytest_nvfp4.sim.alu.lift import Array, Kernel, kernels, lift, signed
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction

FORMS = (
    "prmt .b32[.(f4e|b4e|rc8|ecl|ecr|rc16)]",
    "bfe .(u32|u64|s32|s64)",
    "bfi .(b32|b64)",
    "brev|clz|popc .(b32|b64)",
    "bfind [.shiftamt].(u32|u64|s32|s64)",
    "fns .b32",
    "szext .(clamp|wrap).(u32|s32)",
    "bmsk .(clamp|wrap).b32",
)


# ---- prmt -----------------------------------------------------------------------------------------------------------

_MODES: Mapping[str, tuple[tuple[int, int, int, int], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}
"""Source bytes of the result's bytes 0 to 3, by the two low bits of the selector."""


_NIBBLES = np.arange(0, 16, 4, dtype=np.uint32)
"""Positions of the selector's four nibbles."""


@lru_cache(maxsize=64)
def _first_bytes(count: int) -> Array:
    """Return the position of each lane's first byte of eight, as a column."""
    return np.arange(0, 8 * count, 8)[:, None]


def _permute(a: Array, b: Array, selector: Array) -> Array:
    pairs = np.empty((selector.size, 2), np.uint32)
    pairs[:, 0], pairs[:, 1] = a, b
    nibbles = selector[:, None] >> _NIBBLES
    chosen = pairs.view(np.uint8).reshape(-1)[(nibbles & 7) + _first_bytes(selector.size)]
    if (signs := nibbles & 8).any():
        chosen = np.where(signs, np.where(chosen & 0x80, np.uint8(0xFF), np.uint8(0)), chosen)
    result: Array = chosen.view(np.uint32).reshape(-1)
    return result


def _selector(row: tuple[int, int, int, int]) -> int:
    return sum(byte << 4 * place for place, byte in enumerate(row))


@kernels
def _permute_mode(mode: str) -> Kernel:
    selectors = np.array([_selector(row) for row in _MODES[mode]], np.uint32)
    return lambda a, b, selector: _permute(a, b, selectors[selector & 3])


def _shuffle(a: str, b: str, selector: int) -> str | None:
    """Return the expression of a permutation without sign replication: bytes that move equally far move together."""
    moves: dict[tuple[str, int], int] = {}
    for place in range(4):
        nibble = selector >> 4 * place & 15
        if nibble & 8:
            return None
        key = (a if nibble < 4 else b, place - (nibble & 3))
        moves[key] = moves.get(key, 0) | 0xFF << 8 * (nibble & 3)
    terms = []
    for (name, far), mask in moves.items():
        value = literal(name)
        part = name if mask == MASKS[32] else f"({name} & {mask})"
        if value is not None:
            terms.append(str((value & mask) << 8 * far if far >= 0 else (value & mask) >> -8 * far))
        else:
            terms.append(f"({part} << {8 * far})" if far > 0 else f"({part} >> {-8 * far})" if far < 0 else part)
    return " | ".join(terms)


def _prmt(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    read.one("b32")
    mode = read.maybe(*_MODES)
    dst, *sources = read.end(4)
    a, b, c = atoms(e, 32, *sources)
    selector = literal(c)
    text = None
    if selector is not None:
        if mode:
            selector, mode = _selector(_MODES[mode][selector & 3]), ""
        text, c = _shuffle(a, b, selector), str(selector)
    e.assign(dst, text or e.call(lift(_permute_mode(mode) if mode else _permute, 32, 32, 32), a, b, c), 32)


# ---- fields ---------------------------------------------------------------------------------------------------------


def _reach(value: Array, width: int) -> Array:
    """Cut a position or length to the width: of 32 bits the low 8 bits of the operand count, of 64 all."""
    return np.minimum(value & np.uint32(0xFF) if width == 32 else value, np.uint32(width))


def _extract_unsigned(a: Array, position: Array, length: Array) -> Array:
    """Extract bits from ``position`` on; bits above the word are 0."""
    width = 8 * a.itemsize
    dtype = a.dtype.type
    position, length = (_reach(v, width).astype(a.dtype) for v in (position, length))
    moved = np.where(position < width, a >> np.minimum(position, dtype(width - 1)), dtype(0))
    mask = np.where(length < width, (dtype(1) << np.minimum(length, dtype(width - 1))) - dtype(1), ~dtype(0))
    result: Array = moved & mask
    return result


def _extract_signed(a: Array, position: Array, length: Array) -> Array:
    """Extract bits and fill with the field's top bit, or the word's where the field reaches past it."""
    width = 8 * a.itemsize
    dtype = a.dtype.type
    field = _extract_unsigned(a, position, length)
    start, size = (_reach(v, width) for v in (position, length))
    top = np.minimum(start + size - np.uint32(1), width - 1).astype(a.dtype)
    sign = np.where(size == 0, dtype(0), a >> top & dtype(1))
    filled = np.minimum(np.minimum(size, np.maximum(width - start.astype(np.int64), 0)), width - 1).astype(a.dtype)
    whole = np.minimum(size, np.maximum(width - start.astype(np.int64), 0)) >= width
    fill = np.where((sign != 0) & ~whole, ~dtype(0) << filled, dtype(0))
    result: Array = field | fill
    return result


def _bfe(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    kind = read.one("u32", "u64", "s32", "s64")
    dst, source, position, length = read.end(4)
    bits = BITS[kind]
    kernel = _extract_unsigned if kind[0] == "u" else _extract_signed
    (a,) = atoms(e, bits, source)
    b, c = atoms(e, 32, position, length)
    start, size = literal(b), literal(c)
    if kind[0] == "u" and start is not None and size is not None and start < bits and size < 256:
        e.assign(dst, f"{a} >> {start} & {(1 << min(size, bits)) - 1}", bits)
    else:
        e.assign(dst, e.call(lift(kernel, bits, 32, 32), a, b, c), bits)


def _insert(a: Array, b: Array, position: Array, length: Array) -> Array:
    """Insert ``a`` into ``b``."""
    width = 8 * a.itemsize
    dtype = a.dtype.type
    position, length = (_reach(v, width).astype(a.dtype) for v in (position, length))
    ones = np.where(length < width, (dtype(1) << np.minimum(length, dtype(width - 1))) - dtype(1), ~dtype(0))
    start = np.minimum(position, dtype(width - 1))
    mask = np.where(position < width, ones << start, dtype(0))
    result: Array = (b & ~mask) | (a << start & mask)
    return result


def _bfi(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    bits = BITS[read.one("b32", "b64")]
    dst, first, second, position, length = read.end(5)
    names = atoms(e, bits, first, second) + atoms(e, 32, position, length)
    e.assign(dst, e.call(lift(_insert, bits, bits, 32, 32), *names), bits)


@kernels
def _szext_kernel(mode: str, kind: str) -> Kernel:
    """Return a kernel that extends the low ``size`` bits with zeros or the sign; 32 and more keep the word."""

    def compute(a: Array, size: Array) -> Array:
        amount = _limited(size, mode)
        shift = (32 - np.maximum(amount, 1)).astype(np.uint32)
        moved = a << shift
        value = (signed(moved) >> shift.astype(np.int32)).view(np.uint32) if kind == "s32" else moved >> shift
        return np.where(amount == 0, np.uint32(0), value)

    return compute


def _limited(amount: Array, mode: str) -> Array:
    """Apply ``.clamp`` or ``.wrap`` to a position or length in a word of 32 bits."""
    result: Array = np.minimum(amount, 32) if mode == "clamp" else amount & 31
    return result


def _szext(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    mode = read.one("clamp", "wrap")
    kind = read.one("u32", "s32")
    dst, *sources = read.end(3)
    e.assign(dst, e.call(lift(_szext_kernel(mode, kind), 32, 32), *atoms(e, 32, *sources)), 32)


@kernels
def _mask_kernel(mode: str) -> Kernel:
    def compute(position: Array, length: Array) -> Array:
        start, size = (_limited(v, mode).astype(np.uint64) for v in (position, length))
        return (((np.uint64(1) << size) - np.uint64(1)) << start).astype(np.uint32)

    return compute


def _bmsk(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    mode = read.one("clamp", "wrap")
    read.one("b32")
    dst, *sources = read.end(3)
    e.assign(dst, e.call(lift(_mask_kernel(mode), 32, 32), *atoms(e, 32, *sources)), 32)


# ---- counting -------------------------------------------------------------------------------------------------------


def _reverse(a: Array) -> Array:
    width = 8 * a.itemsize
    bytes_ = a.astype(a.dtype.newbyteorder(">")).view(np.uint8)
    bits = np.unpackbits(bytes_.reshape(a.size, width // 8), axis=1)
    return np.packbits(bits[:, ::-1], axis=1).reshape(-1).view(a.dtype.newbyteorder(">")).astype(a.dtype)


def _population(a: Array) -> Array:
    return np.bitwise_count(a).astype(np.uint32)


def _length(a: Array) -> Array:
    """Return Python's ``bit_length``."""
    filled = a.copy()
    shift = 1
    while shift < 8 * a.itemsize:
        filled |= filled >> shift
        shift *= 2
    return _population(filled)


def _leading_zeros(a: Array) -> Array:
    return np.uint32(8 * a.itemsize) - _length(a)


_COUNTING = {"brev": _reverse, "clz": _leading_zeros, "popc": _population}


def _counting(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    bits = BITS[read.one("b32", "b64")]
    dst, source = read.end(2)
    (a,) = atoms(e, bits, source)
    e.assign(dst, e.call(lift(_COUNTING[ins.root], bits), a), bits if ins.root == "brev" else 32)


@kernels
def _find_kernel(shift: bool, signs: bool) -> Kernel:
    def compute(a: Array) -> Array:
        if signs:
            a = np.where(signed(a) < 0, ~a, a)
        place = _length(a) - np.uint32(1)  # wraps to 0xFFFFFFFF if no bit is set, as the ISA requires
        if shift:
            place = np.where(a == 0, place, np.uint32(8 * a.itemsize - 1) - place)
        return place

    return compute


def _bfind(ins: Instruction, e: Emitter) -> None:
    """Lower ``bfind``: the place of the highest bit that differs from the sign, 0xFFFFFFFF if there is none."""
    read = OpcodeReader(ins)
    shift = read.has("shiftamt")
    kind = read.one("u32", "u64", "s32", "s64")
    dst, source = read.end(2)
    bits = BITS[kind]
    e.assign(dst, e.call(lift(_find_kernel(shift, kind[0] == "s"), bits), *atoms(e, bits, source)), 32)


def _nth(mask: int, base: int, offset: int) -> int:
    base &= 0xFFFF_FFFF
    if offset == 0x8000_0000:
        return 0
    if base > 31:
        return 0xFFFF_FFFF
    offset = (offset ^ 0x8000_0000) - 0x8000_0000
    if not offset:
        return base if mask >> base & 1 else 0xFFFF_FFFF
    places = range(base, 32) if offset > 0 else range(base, -1, -1)
    left = abs(offset)
    for place in places:
        left -= mask >> place & 1
        if not left:
            return place
    return 0xFFFF_FFFF


def _find_nth(mask: Array, base: Array, offset: Array) -> Array:
    """Return the place of the n-th set bit from ``base`` on, upwards or, for a negative n, downwards."""
    lanes = zip(mask.tolist(), base.tolist(), offset.tolist(), strict=True)
    return np.array([_nth(*lane) for lane in lanes], np.uint32)


def _fns(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    read.one("b32")
    dst, *sources = read.end(4)
    e.assign(dst, e.call(lift(_find_nth, 32, 32, 32), *atoms(e, 32, *sources)), 32)


LOWERINGS: Mapping[str, Lowering] = {
    "prmt": _prmt,
    "bfe": _bfe,
    "bfi": _bfi,
    "szext": _szext,
    "bmsk": _bmsk,
    "brev": _counting,
    "clz": _counting,
    "popc": _counting,
    "bfind": _bfind,
    "fns": _fns,
}
