"""Element types of the operands of ``wgmma`` and ``mma``: bit patterns as float32.

A tf32 operand is a 32-bit register or word whose low 13 bits are ignored (PTX ISA, "wgmma.mma_async", "mma").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics.formats import E4M3, E5M2, FloatFormat, lowest_bits

Floats = NDArray[np.float32]


def lowest_bit(values: NDArray[Any]) -> int:
    """Return the largest e such that every finite value is an integer times 2^e; ``NO_BITS`` if all are zero."""
    return int(lowest_bits(values).min())


@dataclass(frozen=True, eq=False)
class OperandType:
    """Element type of an operand.

    Attributes:
        name: As in the opcode.
        bits: Width of an element.
        codes: The unsigned type of a bit pattern.
        decode: Bit patterns to float32, exactly; NaN stays NaN.
        least: Least exponent of a normal number.
        integer: s8 and u8.
    """

    name: str
    bits: int
    codes: type[np.unsignedinteger[Any]]
    decode: Callable[[NDArray[Any]], Floats]
    least: int = 0
    integer: bool = False

    @cached_property
    def _lowest(self) -> NDArray[np.int16]:
        every = np.arange(1 << self.bits, dtype=self.codes)
        with np.errstate(invalid="ignore"):
            values = self.decode(every).astype(np.float64)
        return lowest_bits(values).astype(np.int16)

    def quantum(self, codes: NDArray[Any], values: Floats) -> int:
        """Return the largest e such that every finite value is an integer times 2^e; ``NO_BITS`` if all are zero."""
        if self.integer:
            return 0
        if self.bits == 32:
            return lowest_bit(values)
        return int(self._lowest[codes].min())


def _f16(codes: NDArray[Any]) -> Floats:
    return codes.view(np.float16).astype(np.float32)


def _bf16(codes: NDArray[Any]) -> Floats:
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _tf32(codes: NDArray[Any]) -> Floats:
    return (codes & np.uint32(0xFFFF_E000)).view(np.float32)


def _table(format: FloatFormat) -> Callable[[NDArray[Any]], Floats]:
    return lambda codes: format.float32[codes]


def _s8(codes: NDArray[Any]) -> Floats:
    return codes.view(np.int8).astype(np.float32)


def _u8(codes: NDArray[Any]) -> Floats:
    return codes.astype(np.float32)


OPERAND_TYPES = {
    kind.name: kind
    for kind in (
        OperandType("f16", 16, np.uint16, _f16, -14),
        OperandType("bf16", 16, np.uint16, _bf16, -126),
        OperandType("tf32", 32, np.uint32, _tf32, -126),
        OperandType("e4m3", 8, np.uint8, _table(E4M3), -6),
        OperandType("e5m2", 8, np.uint8, _table(E5M2), -14),
        OperandType("s8", 8, np.uint8, _s8, integer=True),
        OperandType("u8", 8, np.uint8, _u8, integer=True),
    )
}
"""Operand types by their name in the opcode."""
