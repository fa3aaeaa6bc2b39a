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

from pytest_nvfp4.sim.alu.forms import BITS, MASKS, atom, packed
from pytest_nvfp4.sim.alu.lift import kernels, parts
from pytest_nvfp4.sim.lanes import DTYPES
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.local import LOCAL_WINDOW
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SHARED_WINDOW
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Operand, Sink, Vector
from pytest_nvfp4.sim.run.warp import Warp

_TYPES = (*tuple(f"{letter}{width}" for letter in "bus" for width in (16, 32, 64)), "f32", "f64", "b128")

FORMS = (
    "mov .(pred|b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64|b128)",
    "mov .(b16|b32|b64|b128) to and from vectors",
    "cvta [.to].(global|shared|shared::cta|shared::cluster|local|const|param|param::entry).u64",
    "isspacep .(global|shared|shared::cta|shared::cluster|local)",
)


def _item_bits(read: OpcodeReader, vector: Vector, total: int) -> int:
    count = len(vector.items)
    if count not in (2, 4) or total // count not in (8, 16, 32, 64):
        raise read.refuse(f"{count} items in {total} bits")
    return total // count


def _pack(read: OpcodeReader, e: Emitter, dst: Operand, source: Vector, total: int) -> None:
    bits = _item_bits(read, source, total)
    names = [atom(e, item, bits) for item in source.items]
    if total == 128:
        e.assign(dst, packed(e, bits, names), total)
    else:
        e.assign_packed(dst, packed(e, bits, names), names, source.items, bits=bits)


def _unpack(read: OpcodeReader, e: Emitter, dst: Vector, source: Operand, total: int) -> None:
    bits = _item_bits(read, dst, total)
    known = e.items(source, dst.items, bits=bits)
    if known is not None:
        for item, name in zip(dst.items, known, strict=True):
            if not isinstance(item, Sink):
                e.assign(item, name, bits)
        return
    a = atom(e, source, total)
    names = [
        "" if isinstance(item, Sink) else e.temporary(e.call(_part(bits, number), a))
        for number, item in enumerate(dst.items)
    ]
    for item, name in zip(dst.items, names, strict=True):
        if name:
            e.assign(item, name, bits)


@kernels
def _part(bits: int, number: int) -> Any:
    """Return a function that cuts an item out of a value; its ``together`` does so for several values (``batches``)."""
    dtype, shift, mask = DTYPES[bits], bits * number, MASKS[bits]

    def part(value: Any) -> Any:
        if value.__class__ is int:
            return value >> shift & mask
        if value.dtype == object:
            return (value >> shift & mask).astype(dtype)
        return parts(value, bits)[number :: value.itemsize * 8 // bits].copy()

    def together(values: tuple[Any, ...]) -> Any:
        if any(value.__class__ is int or value.dtype == object for value in values):
            return [part(value) for value in values]
        return part(np.concatenate(values)).reshape(len(values), -1)

    part.together = together  # type: ignore[attr-defined]
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
