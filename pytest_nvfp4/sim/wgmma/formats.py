"""Element types of the tensor unit's operands, as numbers.

PTX ISA, "Alternate Floating-Point Data Formats": bf16, tf32, e4m3 (no infinity, NaN is ``S.1111.111``), e5m2. A tf32
operand is a 32-bit register or word of which the low 13 bits are not read ("wgmma.mma_async", "mma": they are ignored).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FORMATS", "Format", "lowest_bit"]

Floats = NDArray[np.float32]


_NONE = 1000


def _lowest_bits(values: NDArray[Any]) -> NDArray[np.int64]:
    """For each value the largest e such that it is an odd integer times 2^e; 1000 for zero and what is not finite."""
    some = np.isfinite(values) & (values != 0)
    mantissa, exponent = np.frexp(np.where(some, values, 1.0).astype(np.float64))
    whole = (mantissa * 2.0**53).astype(np.int64)
    lowest = exponent - 53 + np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return np.where(some, lowest, _NONE)


def lowest_bit(values: NDArray[Any]) -> int:
    """The largest e such that every finite value is an integer times 2^e; 1000 if all are zero."""
    return int(_lowest_bits(values).min())


@dataclass(frozen=True, eq=False)
class Format:
    """One element type.

    Attributes:
        name: As in the opcode.
        bits: Width of an element.
        codes: The unsigned type of a bit pattern.
        decode: Bit patterns to float32, exactly; NaN stays NaN.
        integer: s8 and u8.
    """

    name: str
    bits: int
    codes: type[np.unsignedinteger[Any]]
    decode: Callable[[NDArray[Any]], Floats]
    integer: bool = False

    @cached_property
    def _lowest(self) -> NDArray[np.int16]:
        every = np.arange(1 << self.bits, dtype=self.codes)
        with np.errstate(invalid="ignore"):
            values = self.decode(every).astype(np.float64)
        return _lowest_bits(values).astype(np.int16)

    def quantum(self, codes: NDArray[Any], values: Floats) -> int:
        """The largest e such that every finite value is an integer times 2^e; at least 1000 if all are zero."""
        if self.integer:
            return 0
        if self.bits == 32:
            return lowest_bit(values)
        return int(self._lowest[codes].min())


def _e4m3(codes: NDArray[Any]) -> Floats:
    values: Floats = _E4M3[codes]
    return values


def _e4m3_table() -> Floats:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    value = np.where(code >> 7, -value, value)
    value[(code & 0x7F) == 0x7F] = np.nan
    return value.astype(np.float32)


_E4M3 = _e4m3_table()


def _f16(codes: NDArray[Any]) -> Floats:
    return codes.view(np.float16).astype(np.float32)


def _bf16(codes: NDArray[Any]) -> Floats:
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _tf32(codes: NDArray[Any]) -> Floats:
    return (codes & np.uint32(0xFFFF_E000)).view(np.float32)


def _e5m2(codes: NDArray[Any]) -> Floats:
    return (codes.astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)


def _s8(codes: NDArray[Any]) -> Floats:
    return codes.view(np.int8).astype(np.float32)


def _u8(codes: NDArray[Any]) -> Floats:
    return codes.astype(np.float32)


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("f16", 16, np.uint16, _f16),
        Format("bf16", 16, np.uint16, _bf16),
        Format("tf32", 32, np.uint32, _tf32),
        Format("e4m3", 8, np.uint8, _e4m3),
        Format("e5m2", 8, np.uint8, _e5m2),
        Format("s8", 8, np.uint8, _s8, integer=True),
        Format("u8", 8, np.uint8, _u8, integer=True),
    )
}
"""By their name in the opcode."""
