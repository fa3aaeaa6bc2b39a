"""Lowerings of ``wgmma`` and ``mma``.

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Warp Level Matrix Instructions". Unsupported: sparse
(.sp), single-bit (.b1), sub-byte and f64 forms, and ``mma.m8n8k4``.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Operand, Register, Vector
from pytest_nvfp4.sim.wgmma import unit
from pytest_nvfp4.sim.wgmma.mma_sync import mma_sync
from pytest_nvfp4.sim.wgmma.opcode_types import MmaShape, mma_types
from pytest_nvfp4.sim.wgmma.operation import WgmmaForm


def _immediate(read: OpcodeReader, operand: Operand, allowed: tuple[int, ...], what: str) -> int:
    value = read.immediate(operand, what)
    value -= (1 << 32) if value >= 1 << 31 else 0
    if value not in allowed:
        raise read.refuse(f"{what} must be one of {allowed}, found {value}")
    return value


def _mma_async(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins, 2)
    if read.has("sp"):
        raise read.refuse("sparse A is not modelled")
    read.each("sync", "aligned")
    # The ISA's grammar puts .satfinite after the shape; its examples and NVIDIA's kernels put it after the types.
    saturate = read.has("satfinite", anywhere=True)
    shape_text, *type_names = (read.part() for _ in range(4))
    read.done()
    a, b, accumulator = mma_types(read, *type_names, saturate=saturate)
    shape = MmaShape.parse(shape_text)
    if shape is None or shape.m != 64 or shape.k != 256 // a.bits or not 8 <= shape.n <= 256 or shape.n % 8:
        raise read.refuse(f"shape {shape_text}")
    if a.integer and shape.n % 16 and shape.n not in (8, 24):
        raise read.refuse(f"shape {shape_text}; integers take N of 8, 24 or a multiple of 16")
    d_operand, a_operand, b_operand, scale_d, *flags = read.operands(*range(4, 9))
    count = accumulator.registers(shape.n // 2)
    if not isinstance(d_operand, Vector) or len(d_operand.items) != count:
        raise read.refuse(f"the accumulator must be {count} registers")
    if not all(isinstance(item, Register) and item.bits == 32 for item in d_operand.items):
        raise read.refuse("the accumulator must be 32-bit registers")
    from_registers = isinstance(a_operand, Vector)
    if isinstance(a_operand, Vector) and len(a_operand.items) != 4:
        raise read.refuse("A must be 4 registers or a descriptor")
    # imm-scale-a and -b of floats, then imm-trans-a (if A is in shared memory) and -b of 16-bit types.
    read.operands(4 + (0 if a.integer else 2 + (2 - from_registers if a.bits == 16 else 0)))
    scales = [_immediate(read, x, (1, -1), "imm-scale") for x in flags[:2]]
    transposes = [_immediate(read, x, (0, 1), "imm-trans") for x in flags[2:]]
    form = WgmmaForm(
        name=".".join(part for part in ins.parts if part not in ("sync", "aligned")),
        at=ins.index,
        n=shape.n,
        k=shape.k,
        a=a,
        b=b,
        accumulator=accumulator,
        from_registers=from_registers,
        a_transposed=len(transposes) == 2 and bool(transposes[0]),
        b_transposed=bool(transposes) and bool(transposes[-1]),
        negate=bool(scales) and scales[0] * scales[1] < 0,
        saturate=saturate,
        copied=e.deferred.copied,
        unfenced=e.notes.get(ins.index, ""),
    )
    registers = e.tuple(d_operand, 32)
    a_value = e.tuple(a_operand, 32) if from_registers else e.value(a_operand, 64)
    values = (e.constant(form, "form"), registers, a_value, e.value(b_operand, 64), e.predicate(scale_d))
    e.replace_all(d_operand, e.temporary(e.call(unit.issue, "w", e.mask, *values)), 32)


def _operands(ins: Instruction, count: int) -> tuple[Operand, ...]:
    """Return the operands of an instruction whose only modifiers are ``.sync.aligned``."""
    read = OpcodeReader(ins, 2)
    read.each("sync", "aligned")
    return read.end(count)


def _fence(ins: Instruction, e: Emitter) -> None:
    _operands(ins, 0)
    e.line(e.call(unit.fence, "w", e.mask))


def _commit(ins: Instruction, e: Emitter) -> None:
    _operands(ins, 0)
    e.line(e.call(unit.commit, "w", e.mask))


def _wait(ins: Instruction, e: Emitter) -> None:
    (number,) = _operands(ins, 1)
    pending = _immediate(OpcodeReader(ins), number, tuple(range(8)), "the number of pending groups")
    e.park_if_none(e.temporary(e.call(unit.wait, "w", e.mask, str(pending))))


LOWERINGS: Mapping[str, Lowering] = {
    "wgmma.mma_async": _mma_async,
    "wgmma.fence": _fence,
    "wgmma.commit_group": _commit,
    "wgmma.wait_group": _wait,
    "mma": mma_sync,
}
BLOCKING = frozenset({"wgmma.wait_group"})
