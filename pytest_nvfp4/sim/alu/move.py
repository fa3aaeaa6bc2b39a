"""Data movement (PTX ISA, "mov", "cvta", "isspacep").

``mov`` from a vector packs its items, the first one lowest; ``mov`` to a vector unpacks them. A 128-bit register is an
int, or an array of Python ints.

Generic addresses: the shared window starts at ``SHARED_WINDOW``, the local window lies below it, and other addresses
are global (the ISA does not define the windows' places). Constants and parameters are in global memory here, so their
addresses are generic already.

Evidence: PTX ISA; 32-bit halves and 16-bit quarters in NVIDIA's kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_nvfp4.sim.alu.forms import BITS, MASKS, atom, inline, literal
from pytest_nvfp4.sim.alu.lift import kernels, parts
from pytest_nvfp4.sim.lanes import DTYPES
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.local import LOCAL_WINDOW
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SHARED_WINDOW
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Operand, Register, Sink, Vector
from pytest_nvfp4.sim.run.warp import Warp

_TYPES = (*tuple(f"{letter}{width}" for letter in "bus" for width in (16, 32, 64)), "f32", "f64", "b128")

FORMS = (
    "mov .(pred|b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64|b128)",
    "mov .(b16|b32|b64|b128) to and from vectors",
    "cvta [.to].(global|shared|shared::cta|shared::cluster|local|const|param|param::entry).u64",
    "isspacep .(global|shared|shared::cta|shared::cluster|local)",
)


def pack(bits: int, *items: Any) -> Any:
    """Pack items of ``bits`` each into one value, the first lowest."""
    total = bits * len(items)
    if total == 128:
        result: Any = 0
        for number, item in enumerate(items):
            result = result | (item if item.__class__ is int else item.astype(object)) << bits * number
        return result
    lanes = max(item.size for item in items if item.__class__ is not int)  # of one warp, or of several (``gang``)
    result = np.empty(lanes * len(items), DTYPES[bits])
    for number, item in enumerate(items):
        result[number :: len(items)] = item
    return result.view(DTYPES[total])


def _item_bits(read: OpcodeReader, vector: Vector, total: int) -> int:
    count = len(vector.items)
    if count not in (2, 4) or total // count not in (8, 16, 32, 64):
        raise read.refuse(f"{count} items in {total} bits")
    return total // count


def _pack(read: OpcodeReader, e: Emitter, dst: Operand, source: Vector, total: int) -> None:
    bits = _item_bits(read, source, total)
    names = [atom(e, item, bits) for item in source.items]
    on_ints = " | ".join(f"{name} << {bits * number}" if number else name for number, name in enumerate(names))
    if total == 128:
        e.assign(dst, inline(e, on_ints, _packer(bits), *names), total)
    elif isinstance(dst, Register) and dst.slot in e.apart:
        e.assign_packed(dst, f"({', '.join(names)})", names, source.items, bits=bits)
    else:
        e.assign_packed(dst, inline(e, on_ints, _packer(bits), *names), names, source.items, bits=bits)


@kernels
def _packer(bits: int) -> Any:
    return lambda *items: pack(bits, *items)


def _unpack(read: OpcodeReader, e: Emitter, dst: Vector, source: Operand, total: int) -> None:
    bits = _item_bits(read, dst, total)
    known = e.items(source, dst.items, bits=bits)
    if known is not None:
        for item, name in zip(dst.items, known, strict=True):
            if not isinstance(item, Sink):
                e.assign(item, name, bits)
        return
    a = atom(e, source, total)
    apart = isinstance(source, Register) and source.slot in e.apart
    count = len(dst.items)
    last = count - 1
    names: list[str] = []
    for number, item in enumerate(dst.items):
        if isinstance(item, Sink):
            names.append("")
            continue
        if apart:
            names.append(e.temporary(f"{a}[{number}]"))
            continue
        shift = f" >> {bits * number}" if number else ""
        cut = f" & {MASKS[bits]}" if number != last else ""
        on_ints = f"{a}{shift}{cut}"
        names.append(e.temporary(on_ints if literal(a) is not None else inline(e, on_ints, _part(bits, number), a)))
    for item, name in zip(dst.items, names, strict=True):
        if name:
            e.assign(item, name, bits)


@kernels
def _part(bits: int, number: int) -> Any:
    dtype, shift, mask = DTYPES[bits], bits * number, MASKS[bits]

    def part(value: Any) -> Any:
        if value.dtype == object:
            return (value >> shift & mask).astype(dtype)
        return parts(value, bits)[number :: value.itemsize * 8 // bits].copy()

    return part


def _mov(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    kind = read.one("pred", *_TYPES)
    dst, source = read.end(2)
    if kind == "pred":
        e.assign_predicate(dst, e.predicate(source))
        return
    bits = BITS[kind]
    if isinstance(dst, Vector) and isinstance(source, Vector):
        raise read.refuse("a vector to a vector")
    if isinstance(dst, Vector):
        _unpack(read, e, dst, source, bits)
    elif isinstance(source, Vector):
        _pack(read, e, dst, source, bits)
    else:
        e.assign(dst, e.value(source, bits), bits)


# ---- address spaces -------------------------------------------------------------------------------------------------

_SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry")


def _cvta(ins: Instruction, e: Emitter) -> None:
    """Lower ``cvta`` between a state space and generic addresses, which have 64 bits from sm_90 on."""
    read = OpcodeReader(ins)
    to = read.has("to")
    space = read.one(*_SPACES)
    read.one("u64")
    dst, source = read.end(2)
    a = e.value(source, 64)
    if space.startswith("shared"):
        a = f"{a} & {MASKS[32]}" if to else f"{a} & {MASKS[32]} | {SHARED_WINDOW}"
    elif space == "local" and not to:
        a = f"{a} & {MASKS[32]} | {LOCAL_WINDOW}"
    e.assign(dst, a, 64)


def _in_own_shared(w: Warp, address: Any) -> Any:
    return address >> RANK_SHIFT == (SHARED_WINDOW >> RANK_SHIFT) + w.cta.rank


def _isspacep(ins: Instruction, e: Emitter) -> None:
    """Lower ``isspacep``: whether a generic address lies in a state space; not of ``.const`` and ``.param``."""
    read = OpcodeReader(ins)
    space = read.one("global", "shared", "shared::cta", "shared::cluster", "local")
    dst, source = read.end(2)
    a = atom(e, source, 64)
    if space in ("shared", "shared::cta"):
        e.assign_predicate(dst, e.call(_in_own_shared, "w", a))
    elif space == "shared::cluster":
        e.assign_predicate(dst, f"{a} >= {SHARED_WINDOW}")
    elif space == "global":
        e.assign_predicate(dst, f"{a} < {LOCAL_WINDOW}")
    else:
        e.assign_predicate(dst, f"({a} >= {LOCAL_WINDOW}) & ({a} < {SHARED_WINDOW})")


LOWERINGS: Mapping[str, Lowering] = {"mov": _mov, "cvta": _cvta, "isspacep": _isspacep}
