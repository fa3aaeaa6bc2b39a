"""Shape and element types of a matrix instruction, as its opcode names them."""

from __future__ import annotations

import re
from typing import NamedTuple

from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.wgmma.formats import OPERAND_TYPES, OperandType
from pytest_nvfp4.sim.wgmma.product import ACCUMULATORS, AccumulatorType

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_ACCUMULATORS = {
    ("f16", "f16"): ("f16", "f32"),
    ("bf16", "bf16"): ("f32",),
    ("tf32", "tf32"): ("f32",),
    **dict.fromkeys([(a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")], ("f16", "f32")),
    **dict.fromkeys([(a, b) for a in ("s8", "u8") for b in ("s8", "u8")], ("s32",)),
}
"""Legal types of the accumulator, by the types of A and B."""


class MmaShape(NamedTuple):
    """Rows, columns and depth of a product in elements: ``m64n192k16``."""

    m: int
    n: int
    k: int

    @classmethod
    def parse(cls, text: str) -> MmaShape | None:
        """Return the shape that a part of an opcode names, None if it names none."""
        match = _SHAPE.fullmatch(text)
        return None if match is None else cls(*map(int, match.groups()))


class MmaTypes(NamedTuple):
    """Element types of A, B and the accumulator."""

    a: OperandType
    b: OperandType
    accumulator: AccumulatorType


def mma_types(read: OpcodeReader, d: str, a: str, b: str, *, saturate: bool) -> MmaTypes:
    """Return the types of an instruction. Raises Unsupported for an illegal combination."""
    if d not in _ACCUMULATORS.get((a, b), ()):
        raise read.refuse(f"types {d}, {a}, {b}")
    types = MmaTypes(OPERAND_TYPES[a], OPERAND_TYPES[b], ACCUMULATORS[d])
    if saturate and not types.a.integer:
        raise read.refuse(".satfinite is for integers")
    return types
