"""Matrix moves between shared memory and the registers of a warp: ``ldmatrix``, ``stmatrix``, ``movmatrix``.

PTX ISA, "Warp-level matrix load instruction: ldmatrix", "... store ...: stmatrix", "... transpose ...: movmatrix". With
g = lane / 4 and q = lane % 4:

=============== ===================================== =======================================================
shape            lane t gives the address of           register j of a lane holds
=============== ===================================== =======================================================
m8n8.b16         row t % 8 of matrix t / 8 (16 bytes)  matrix j: row g, columns 2q and 2q + 1
  .trans                                               matrix j: rows 2q and 2q + 1 of column g
m8n16.b8x16      row t % 8 of matrix t / 8 (16 bytes)  matrix j: row g, columns 4q .. 4q + 3
m16n16.trans.b8  row t % 16 of matrix t / 16           matrix j / 2: rows 4q .. 4q + 3 of column g + 8 (j % 2)
m16n8.trans.b8   row t % 8 of matrix t / 8, stored     matrix j, transposed: rows 2q, 2q + 1 of column g, then of
                 (stmatrix)                            column g + 8
=============== ===================================== =======================================================

Packed sources (``b8x16.b4x16_p64``, ``b8x16.b6x16_p32``): a row of 16 bytes starts with 16 elements of 4 or 6 bits,
the first in the lowest bits, and ends in padding, which is not read. Each element becomes a zero-extended byte (the ISA
calls the elements unsigned; CUTLASS shifts 4-bit ones to the position that the MMA expects).

Evidence: the ISA's figures for m8n8; CUTLASS's ``copy_sm100.hpp`` and its traits, and published measurements on sm_120,
for m16n16 and m16n8.

All 32 lanes take part. Each address is that of one matrix row and a multiple of 16. Bank conflicts are counted as for
16-byte accesses (``shared.load`` and ``shared.store`` of ``tally``): 8 rows can take one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.access import READ, WRITE, Access
from pytest_nvfp4.sim.memory.locate import check_written, count, gather, locate_shared, mark_written, scatter
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW, SharedMemory
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Address, Instruction, Operand, Register
from pytest_nvfp4.sim.run.following import FollowedValues
from pytest_nvfp4.sim.run.undefined import loaded_undefined
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.addresses import shared_operand


@dataclass(frozen=True, slots=True, eq=False)
class MatrixShape:
    """Operands of an ``ldmatrix`` or ``stmatrix``.

    Attributes:
        kind: ``m8n8``, ``m8n16``, ``m16n16`` or ``m16n8``.
        rows: Number of row addresses, taken from the first lanes.
        transposed: Whether ``.trans`` is given.
        packed: Bits of a packed source element, or 0.
        generic: Whether the addresses are generic.
        access: The access to one row.
        mask: Lanes whose addresses are used.
    """

    kind: str
    rows: int
    transposed: bool
    packed: int
    generic: bool
    access: Access
    mask: int


def load_matrix(w: Warp, mask: int, address: lanes.Bits, shape: MatrixShape, at: int) -> tuple[NDArray[np.uint32], ...]:
    """Execute ``ldmatrix`` and return the registers in order. Raises Fault."""
    where = _addresses(w, mask, address, shape)
    shared = w.cta.shared
    access = shape.access
    index, pattern = locate_shared(shape.mask, where, shared, access)
    try:
        if shape.packed:
            _check_packed(shared, index, pattern.offsets, shape)
        else:
            check_written(shared, index, pattern, access)
    except Fault as fault:
        if fault.kind not in ("uninitialised", "in-flight"):
            raise
        bad, registers = _unwritten(shared, index, pattern, shape)
        loaded_undefined(w, at, bad, fault, registers=registers, ends=True)
    count(w, ("shared.load", pattern, index & 127))
    monitor = w.cta.launch.machine.monitor
    if monitor is not None:
        monitor.shared_accessed(w, at, shared, index, pattern, READ)
    rows = gather(shared.data, index, pattern, access).view(np.uint8).reshape(shape.rows, 16)
    if shape.packed:
        rows = unpacked(rows, shape.packed)
    return tuple(fragments(rows, shape.kind, transposed=shape.transposed))


def fragments(rows: NDArray[np.uint8], kind: str, *, transposed: bool) -> NDArray[np.uint32]:
    """Return the registers, by (number, lane), that hold matrix rows of 16 bytes."""
    if kind == "m16n16":
        # (matrix, q, byte, half, g): register (matrix, half), lane (g, q), byte: the row within 4.
        parts = rows.reshape(-1, 4, 4, 2, 8).transpose(0, 3, 4, 1, 2)
        return np.ascontiguousarray(parts).view(np.uint32).reshape(-1, 32)
    if not transposed:
        return np.ascontiguousarray(rows).view(np.uint32).reshape(-1, 32)
    elements = rows.view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)
    return np.ascontiguousarray(elements).view(np.uint32).reshape(-1, 32)


def matrix_rows(registers: NDArray[np.uint32], kind: str, *, transposed: bool) -> NDArray[np.uint8]:
    """Return the matrix rows of 16 bytes that ``stmatrix`` stores from registers by (number, lane)."""
    if kind == "m16n8":
        # (matrix, g, q, half, row): row 2q + row, column g + 8 half.
        parts = registers.view(np.uint8).reshape(-1, 8, 4, 2, 2).transpose(0, 2, 4, 3, 1)
        return np.ascontiguousarray(parts).reshape(-1, 16)
    if not transposed:
        return registers.view(np.uint8).reshape(-1, 16)
    elements = registers.view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)
    return np.ascontiguousarray(elements).view(np.uint8).reshape(-1, 16)


def store_matrix(
    w: Warp, mask: int, address: lanes.Bits, values: tuple[lanes.Bits, ...], shape: MatrixShape, at: int
) -> None:
    """Execute ``stmatrix``. Two rows at one address with different bytes are a finding. Raises Fault."""
    where = _addresses(w, mask, address, shape)
    shared = w.cta.shared
    access = shape.access
    index, pattern = locate_shared(shape.mask, where, shared, access)
    count(w, ("shared.store", pattern, index & 127))
    monitor = w.cta.launch.machine.monitor
    if monitor is not None:
        monitor.shared_accessed(w, at, shared, index, pattern, WRITE)
    registers = np.empty((len(values), 32), np.uint32)
    for number, value in enumerate(values):
        registers[number] = value
    rows = matrix_rows(registers, shape.kind, transposed=shape.transposed)
    scatter(shared.data, index, pattern, rows, access)
    if monitor is not None and monitor.doubts:
        monitor.stored()
    mark_written(shared.written, index, pattern, access)
    if (followed := w.units.get(FollowedValues)) is not None:
        passed, why = followed.stored(at, mask)
        if why is not None:
            held = np.zeros_like(registers)
            for number, of in passed.items():
                held[number, lanes.bools(of)] = _ALL_BITS
            bytes_of = matrix_rows(held, shape.kind, transposed=shape.transposed)
            places = (pattern.offsets[:, None] + np.arange(16) + index)[bytes_of != 0]
            shared.undefine(places, why)
    w.cta.launch.machine.changes += 1
    if pattern.distinct != shape.rows:
        present = gather(shared.data, index, pattern, access).view(np.uint8).reshape(-1, 16)
        lost = (present != rows).any(axis=1)
        if lost.any():
            lane = int(np.argmax(lost))
            w.cta.launch.report(
                "lanes-race",
                f"{access.opcode}: another lane writes different bytes to the row of lane {lane} at byte "
                f"{index + int(pattern.offsets[lane])} of shared memory",
                hint="check the lanes' addresses: each row of each matrix needs its own",
            )


def move_matrix(mask: int, value: lanes.Bits, opcode: str) -> NDArray[np.uint32]:
    """Execute ``movmatrix``: transpose an 8 by 8 matrix of 16-bit elements. Raises Fault."""
    _all_lanes(mask, opcode)
    registers = np.ascontiguousarray(lanes.spread(value, 32)).reshape(1, 32)
    elements = registers.view(np.uint16).reshape(8, 8).T
    return np.ascontiguousarray(elements).view(np.uint32).reshape(32)


def _all_lanes(mask: int, opcode: str) -> None:
    if mask != lanes.FULL:
        raise Fault(
            "divergence",
            f"{opcode}: only lanes {mask:#010x} of the warp execute it",
            hint="an instruction with .sync.aligned needs all 32 lanes; check the branch or predicate around it",
        )


def _addresses(w: Warp, mask: int, address: lanes.Bits, shape: MatrixShape) -> NDArray[Any]:
    _all_lanes(mask, shape.access.opcode)
    where = lanes.spread(address, 64)
    if shape.generic:
        used = where[: shape.rows]
        if (used < np.uint64(SHARED_WINDOW)).any():
            lane = int(np.argmax(used < np.uint64(SHARED_WINDOW)))
            raise Fault(
                "out-of-bounds",
                f"{shape.access.opcode}: lane {lane}'s generic address {int(used[lane]):#x} is not in shared memory",
                hint="the address must be a shared address, or a generic one made by cvta.shared",
            )
        where = (where & np.uint64(0xFFFF_FFFF)).astype(np.uint32)
    return where


def _check_packed(shared: SharedMemory, index: int, offsets: NDArray[Any], shape: MatrixShape) -> None:
    for lane, offset in enumerate(offsets.tolist()):
        shared.read(index + offset, 2 * shape.packed, what=f"{shape.access.opcode}, lane {lane}")


def _unwritten(shared: SharedMemory, index: int, pattern: Pattern, shape: MatrixShape) -> tuple[int, frozenset[int]]:
    """Return which lanes and which registers of an ``ldmatrix`` hold bytes that were never written."""
    known = gather(shared.written, index, pattern, shape.access).view(np.uint8).reshape(shape.rows, 16)
    bad = known == 0
    if shape.packed:
        bad[:] = bad[:, : 2 * shape.packed].any(axis=1, keepdims=True)
    held = fragments(bad.view(np.uint8), shape.kind, transposed=shape.transposed) != 0
    return lanes.bits_of(held.any(axis=0)), frozenset(np.flatnonzero(held.any(axis=1)).tolist())


def unpacked(groups: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return the 16 elements of 4 or 6 bits in each group ``[..., 16]``, each in the low bits of a byte."""
    elements = np.unpackbits(groups[..., : 2 * bits], axis=-1, bitorder="little").reshape(*groups.shape, bits)
    return np.packbits(elements, axis=-1, bitorder="little")[..., 0]


# ---- lowering ----------------------------------------------------------------------------------------------------

_ALL_BITS = np.uint32(0xFFFF_FFFF)
_NUMBERS = {"x1": 1, "x2": 2, "x4": 4}
_PACKED = {"b4x16_p64": 4, "b6x16_p32": 6}
_LOADS = {
    ("m8n8", False, "b16"): 1,
    ("m8n8", True, "b16"): 1,
    ("m16n16", True, "b8"): 2,
    ("m16n16", True, "b4x16_p64"): 2,
    ("m16n16", True, "b6x16_p32"): 2,
    ("m8n16", False, "b4x16_p64"): 1,
    ("m8n16", False, "b6x16_p32"): 1,
}
"""Registers per matrix, by shape, transposition and source format."""
_STORES = {("m8n8", False, "b16"): 1, ("m8n8", True, "b16"): 1, ("m16n8", True, "b8"): 1}


def _shape(
    ins: Instruction, table: Mapping[tuple[str, bool, str], int], registers: Operand, address: Operand
) -> MatrixShape:
    """Parse the modifiers and check the number of registers. Raises Unsupported."""
    read = OpcodeReader(ins, ordered=False)
    read.each("sync", "aligned")
    source = read.last(*{source for _, _, source in table})
    if source in _PACKED:
        read.one("b8x16")
    kind = read.one(*{kind for kind, _, _ in table})
    number = _NUMBERS[read.one(*_NUMBERS)]
    transposed = read.has("trans")
    base = address.base if isinstance(address, Address) else None
    # CuTe DSL 4.4 writes a shared address without its state space: as a 32-bit register.
    generic = not read.has("shared", "shared::cta") and not (isinstance(base, Register) and base.bits == 32)
    read.done()
    each = table.get((kind, transposed, source))
    if each is None or (kind == "m16n16" and number > 2):
        raise read.refuse("no such shape, transposition and type")
    read.items(registers, each * number, "registers")
    rows = (16 if kind == "m16n16" else 8) * number
    return MatrixShape(
        kind=kind,
        rows=rows,
        transposed=transposed,
        packed=_PACKED.get(source, 0),
        generic=generic,
        access=Access(ins.opcode, "shared", 32, 4),
        mask=(1 << rows) - 1,
    )


def _ldmatrix(ins: Instruction, e: Emitter) -> None:
    target, address = OpcodeReader(ins).operands(2)
    shape = _shape(ins, _LOADS, target, address)
    where = e.address(address) if shape.generic else shared_operand(e, address)
    text = e.call(load_matrix, "w", e.mask, where, e.constant(shape, "shape"), str(e.at))
    e.assign_all(target, text, 32)


def _stmatrix(ins: Instruction, e: Emitter) -> None:
    address, source = OpcodeReader(ins).operands(2)
    shape = _shape(ins, _STORES, source, address)
    where = e.address(address) if shape.generic else shared_operand(e, address)
    values = e.tuple(source, 32)
    e.line(e.call(store_matrix, "w", e.mask, where, values, e.constant(shape, "shape"), str(e.at)))


def _movmatrix(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    read.each("sync", "aligned", "m8n8", "trans", "b16")
    target, source = read.end(2)
    e.assign(target, e.call(move_matrix, e.mask, e.value(source, 32), repr(ins.opcode)), 32)


LOWERINGS: Mapping[str, Lowering] = {"ldmatrix": _ldmatrix, "stmatrix": _stmatrix, "movmatrix": _movmatrix}
