"""``mma.sync``: a warp's matrix instruction on registers (PTX ISA, "Matrix multiply-accumulate operation: mma").

D = A B + C with A 16 x k row-major, B k x 8 column-major, C and D 16 x 8. ``fragments`` defines the registers,
``product`` the arithmetic. Modelled: m16n8k8 and k16 of f16 and bf16, k4 and k8 of tf32, k16 and k32 of e4m3, e5m2, s8
and u8.

For fp8, ptxas (CUDA 13.0, sm_90a and sm_100a) converts to f16: one instruction adds the elements 0 and 1 of every four
along k to zero, a second one the elements 2 and 3 to its sum, and an addition of threads adds C. sm_120 has
instructions of its own for fp8, of which nothing was measured; they are computed in the same way.

Counters: ``mma.instructions`` (of warps), ``mma.macs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import FULL, Bits
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.wgmma.formats import OPERAND_TYPES, OperandType
from pytest_nvfp4.sim.wgmma.fragments import a_matrix, accumulator_matrix, accumulator_registers, b_matrix, stack
from pytest_nvfp4.sim.wgmma.mma_kinds import mma_of_kind
from pytest_nvfp4.sim.wgmma.opcode_types import MmaShape, mma_types
from pytest_nvfp4.sim.wgmma.product import AccumulatorType, Product, accumulate, canonical

_ALL_ROWS = slice(0, 16)
_F16 = OPERAND_TYPES["f16"]


@dataclass(frozen=True, slots=True, eq=False)
class MmaSyncForm:
    """One ``mma.sync`` of the code."""

    name: str
    k: int
    a: OperandType
    b: OperandType
    accumulator: AccumulatorType
    saturate: bool = False


def multiply(
    w: Warp, mask: int, form: MmaSyncForm, a: tuple[Bits, ...], b: tuple[Bits, ...], c: tuple[Bits, ...]
) -> tuple[NDArray[np.uint32], ...]:
    """Return the registers of D. Raises Fault: not all lanes of the warp execute the instruction."""
    if mask != FULL:
        raise Fault("mma", f"{form.name}: executed by lanes {mask:#010x}; .aligned requires all 32 of the warp")
    counters = w.cta.launch.counters
    w.does.add("mma")
    counters["mma.instructions"] += 1
    counters["mma.macs"] += 16 * 8 * form.k
    a_codes = np.ascontiguousarray(a_matrix(stack(a), form.a.codes))
    b_codes = np.ascontiguousarray(b_matrix(stack(b), form.b.codes))
    start: NDArray[Any] = accumulator_matrix(stack(c), form.accumulator.dtype)
    result = multiplied(a_codes, b_codes, start, form.a, form.b, form.accumulator, saturate=form.saturate)
    return tuple(accumulator_registers(result))


def multiplied(
    a: NDArray[Any], b: NDArray[Any], start: NDArray[Any], a_type: OperandType, b_type: OperandType,
    accumulator: AccumulatorType, *, saturate: bool = False,
) -> NDArray[Any]:  # fmt: skip
    """Return ``start`` (16, 8) and the product of codes (16, k) and (8, k)."""
    if a_type.bits > 8 or a_type.integer:
        product = Product(a, b, a_format=a_type, b_format=b_type, count=1)
        return accumulate(product, start, accumulator, rows=_ALL_ROWS, saturate=saturate)
    product = Product(_halves(a, a_type), _halves(b, b_type), a_format=_F16, b_format=_F16, count=2)
    with np.errstate(all="ignore"):
        return canonical(start + accumulate(product, None, accumulator, rows=_ALL_ROWS))


def _halves(codes: NDArray[Any], form: OperandType) -> NDArray[np.uint16]:
    """Return fp8 codes ``(rows, k)`` as f16 codes: elements 0 and 1 of every four, then elements 2 and 3."""
    f16 = form.decode(codes).astype(np.float16).view(np.uint16)
    rows, k = f16.shape
    return np.ascontiguousarray(f16.reshape(rows, k // 4, 2, 2).swapaxes(1, 2)).reshape(rows, k)


def mma_sync(ins: Instruction, e: Emitter) -> None:
    """Lower ``mma.sync.aligned.m16n8kK.row.col{.satfinite}.d.a.b.c``, and with a ``.kind`` what ``mma_kinds`` has."""
    if any(part.startswith("kind::") for part in ins.parts):
        mma_of_kind(ins, e)
        return
    read = OpcodeReader(ins)
    if read.has("sp", "sp::ordered_metadata"):
        raise read.refuse("sparse A is not modelled")
    read.each("sync", "aligned")
    saturate = read.has("satfinite", anywhere=True)
    shape_text = read.part()
    read.each("row", "col")
    d_name, a_name, b_name, c_name = (read.part() for _ in range(4))
    read.end(4)
    shape = MmaShape.parse(shape_text)
    if c_name != d_name:
        raise read.refuse(f"types {d_name} of D and {c_name} of C")
    a, b, accumulator = mma_types(read, d_name, a_name, b_name, saturate=saturate)
    if shape is None or (shape.m, shape.n) != (16, 8) or shape.k not in (256 // a.bits, 128 // a.bits):
        raise read.refuse(f"shape {shape_text}")
    b_count = shape.k * a.bits // 128
    d_count = accumulator.registers(4)
    for operand, count, what in zip(ins.operands, (d_count, 2 * b_count, b_count, d_count), "DABC", strict=True):
        read.items(operand, count, f"registers of {what}")
    form = MmaSyncForm(ins.opcode, shape.k, a, b, accumulator, saturate)
    values = [e.tuple(operand, 32) for operand in ins.operands[1:]]
    e.assign_all(ins.operands[0], e.call(multiply, "w", e.mask, e.constant(form, "form"), *values), 32)
