"""``mma.sync`` with a ``.kind``: 8-bit containers and FP4 with and without block scaling (sm_120; PTX ISA, "mma").

- ``f8f6f4`` and ``mxf8f6f4``, m16n8k32: A and B of e4m3, e5m2, e3m2, e2m3 or e2m1, each element in a byte. A 6-bit
  element is in its low bits, a 4-bit one in bits 2-5 (sources: the ISA's ``ldmatrix`` with ``.b8x16``, and CUTLASS,
  which shifts 4-bit elements by 2 after it); the other bits are not read.
- ``mxf4`` and ``mxf4nvf4``, m16n8k64: two e2m1 elements in a byte.

The registers of A, B, C and D are those of ``fragments``. With ``.block_scale``, row m of A and column n of B have one,
two or four scale factors (``scale_vec::1X``, ``2X``, ``4X``), each for an equal part of K, in consecutive bytes of one
register from byte-id on. The factors of row m are in lane ``4 (m % 8) + 2 thread-id + m / 8``, those of column n in
lane ``4 n + thread-id`` (PTX ISA, "Block Scaling for mma.sync"; a public probe on an RTX 5090 found the same lanes).
Products and their sum are exact in float64, or nearly so for scale factors of extreme range; the sum with C is rounded
once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics.formats import FORMATS
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import FULL, Bits, uniform
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.wgmma.fragments import a_matrix, accumulator_matrix, accumulator_registers, b_matrix, stack
from pytest_nvfp4.sim.wgmma.product import ACCUMULATORS, AccumulatorType, canonical

_BYTES = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
_SHIFTS = {"e2m1": 2}
"""Bits below an element in its byte."""
_SCALES: dict[str, dict[str, tuple[str, ...]]] = {
    "f8f6f4": {},
    "mxf8f6f4": {"": ("ue8m0",), "scale_vec::1X": ("ue8m0",)},
    "mxf4": {"": ("ue8m0",), "scale_vec::2X": ("ue8m0",)},
    "mxf4nvf4": {"scale_vec::2X": ("ue8m0",), "scale_vec::4X": ("ue8m0", "ue4m3")},
}
"""Types of scale factors by kind and scale vector size (PTX ISA, table of "Block Scaling for mma.sync")."""
_VECTORS = {"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4}
_DEFAULT_VECTOR = {"mxf8f6f4": 1, "mxf4": 2}
_A_LANE = 4 * (np.arange(16) % 8) + np.arange(16) // 8
_B_LANE = 4 * np.arange(8)
KINDS = tuple(_SCALES)
"""Values of ``.kind``."""


@dataclass(frozen=True, slots=True, eq=False)
class KindForm:
    """One instruction of the code.

    Attributes:
        packed: Whether a byte holds two elements.
        vector: Scale factors of a row, 0 without block scaling.
        scale: Their type.
    """

    name: str
    a: str
    b: str
    packed: bool
    vector: int
    scale: str
    accumulator: AccumulatorType


def multiply(
    w: Warp, mask: int, form: KindForm, registers: tuple[tuple[Bits, ...], ...], scales: tuple[tuple[Bits, ...], ...]
) -> tuple[NDArray[np.uint32], ...]:
    """Return the registers of D.

    Args:
        registers: Those of A, B and C.
        scales: For A and for B the scale factors, byte-id and thread-id; empty without block scaling.

    Raises:
        Fault: not all lanes execute the instruction, or a selector differs between lanes or is out of range.
    """
    if mask != FULL:
        raise Fault("mma", f"{form.name}: executed by lanes {mask:#010x}; .aligned requires all 32 of the warp")
    a, b, c = registers
    values = [
        _decoded(a_matrix(stack(a), np.uint8), form.a, packed=form.packed),
        _decoded(b_matrix(stack(b), np.uint8), form.b, packed=form.packed),
    ]
    counters = w.cta.launch.counters
    w.does.add("mma")
    counters["mma.instructions"] += 1
    counters["mma.macs"] += 16 * 8 * values[0].shape[1]
    for number, (factors, lanes, threads) in enumerate(zip(scales, (_A_LANE, _B_LANE), (2, 4), strict=False)):
        values[number] = _scaled(values[number], form, factors, lanes, threads, "AB"[number])
    start = accumulator_matrix(stack(c), form.accumulator.dtype)
    with np.errstate(all="ignore"):
        result = (values[0] @ values[1].T + start).astype(form.accumulator.dtype)
    return tuple(accumulator_registers(canonical(result)))


def _decoded(matrix: NDArray[np.uint8], element: str, *, packed: bool) -> NDArray[np.float64]:
    """Return the values of bytes ``[row][k]``."""
    table = FORMATS[element]
    if packed:
        matrix = np.stack([matrix & 15, matrix >> 4], axis=2).reshape(len(matrix), -1)
    else:
        matrix = matrix >> np.uint8(_SHIFTS.get(element, 0)) & np.uint8(table.codes - 1)
    values: NDArray[np.float64] = table.values[matrix]
    return values


def _scaled(
    values: NDArray[np.float64], form: KindForm, factors: tuple[Bits, ...], lanes: NDArray[np.intp], threads: int,
    name: str,
) -> NDArray[np.float64]:  # fmt: skip
    """Return the values of A or B times the scale factors of their rows."""
    byte, thread = (uniform(selector, FULL) for selector in factors[1:])
    if byte is None or thread is None or byte not in range(0, 4, form.vector) or thread >= threads:
        raise Fault(
            "mma",
            f"{form.name}: byte-id {byte}, thread-id {thread} of the scale factors of {name}; both must be the same in "
            f"all lanes, the first one of {', '.join(map(str, range(0, 4, form.vector)))}, the second below {threads}",
        )
    codes = stack(factors[:1])[0][lanes + thread * (2 if name == "A" else 1)].astype("<u4")
    chosen = codes.view(np.uint8).reshape(-1, 4)[:, byte : byte + form.vector] & np.uint8(FORMATS[form.scale].codes - 1)
    with np.errstate(invalid="ignore"):
        scaled: NDArray[np.float64] = values * np.repeat(
            FORMATS[form.scale].values[chosen], values.shape[1] // form.vector, axis=1
        )
    return scaled


def mma_of_kind(ins: Instruction, e: Emitter) -> None:
    """Lower ``mma.sync.aligned.m16n8kK.row.col.kind::K{.block_scale{.scale_vec}}.d.a.b.c{.stype}``, in any order."""
    read = OpcodeReader(ins, ordered=False)
    kind = read.one(*(f"kind::{name}" for name in KINDS)).removeprefix("kind::")
    if read.has("sp", "sp::ordered_metadata"):
        raise read.refuse("sparse A is not modelled")
    for name in ("sync", "aligned", "row", "col"):
        read.one(name)
    scaled = read.has("block_scale")
    if scaled != bool(_SCALES[kind]):
        raise read.refuse(".block_scale is required with the mx kinds and allowed with no others")
    vector_text = read.maybe(*_VECTORS)
    packed = kind in ("mxf4", "mxf4nvf4")
    shape = "m16n8k64" if packed else "m16n8k32"
    read.one(shape)
    scale = ""
    if scaled:
        scale = read.last("ue8m0", "ue4m3")
        if scale not in _SCALES[kind].get(vector_text, ()):
            raise read.refuse(f".{scale} with {vector_text or 'no scale vector size'} for .kind::{kind}")
    elif vector_text:
        raise read.refuse(f".{vector_text} without .block_scale")
    d_name, a_name, b_name, c_name = (read.part() for _ in range(4))
    legal = ("e2m1",) if packed else _BYTES
    if (
        a_name not in legal or b_name not in legal or d_name != c_name
        or d_name not in (("f32",) if scaled else ("f16", "f32"))
    ):  # fmt: skip
        raise read.refuse(f"types {d_name}, {a_name}, {b_name}, {c_name}")
    operands = read.end(8 if scaled else 4)
    accumulator = ACCUMULATORS[d_name]
    d_count = accumulator.registers(4)
    for operand, count, what in zip(operands[:4], (d_count, 4, 2, d_count), "DABC", strict=True):
        read.items(operand, count, f"registers of {what}")
    vector = _VECTORS.get(vector_text, _DEFAULT_VECTOR.get(kind, 0))
    form = KindForm(ins.opcode, a_name, b_name, packed, vector, scale, accumulator)
    registers = "(" + "".join(f"{e.tuple(operand, 32)}, " for operand in operands[1:4]) + ")"
    scales = "()"
    if scaled:
        for factors, selector in (operands[4:6], operands[6:8]):
            read.items(factors, 1, "registers of scale factors")  # the DSL writes a vector of one
            read.items(selector, 2, "selectors of scale factors")
        parts = [f"(*{e.tuple(operands[i], 32)}, *{e.tuple(operands[i + 1], 16)})" for i in (4, 6)]
        scales = f"({', '.join(parts)})"
    e.assign_all(operands[0], e.call(multiply, "w", e.mask, e.constant(form, "form"), registers, scales), 32)
