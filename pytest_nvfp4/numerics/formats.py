"""Binary floating-point formats: one description of each, from which tables and conversions are derived.

Sources: OCP "8-bit Floating Point Specification" (E4M3, E5M2) and "Microscaling Formats" (E2M1, E2M3, E3M2, E8M0); PTX
ISA, "Alternate Floating-Point Data Formats" (UE4M3 is E4M3 without a sign bit). E4M3 is the "fn" variant, as in
``torch.float8_e4m3fn``: no infinity, NaN is ``S.1111.111``, and the largest value is 448.

NVFP4 uses E2M1 for elements (magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6; no infinity, no NaN) and UE4M3 for scale factors.
What hardware does with the sign bit of a scale factor is not documented, so no input has one, and ``oracle`` rejects
them by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_nvfp4.numerics.arrays import (
    Bytes,
    Float32,
    Float64,
    Int32,
    Int64,
    Mask,
    NumericsError,
    frozen,
    require_bytes,
)

NO_BITS = 1000
"""Lowest bit of zero and of values that are not finite: no constraint."""


def lowest_bits(values: NDArray[Any]) -> Int64:
    """Return for each value the largest e such that it is an odd integer times 2^e; ``NO_BITS`` if there is none."""
    some = np.isfinite(values) & (values != 0)
    mantissa, exponent = np.frexp(np.where(some, values, 1.0).astype(np.float64))
    integer = (mantissa * 2.0**53).astype(np.int64)
    # x & -x isolates the lowest set bit; frexp of 2^i gives the exponent i + 1.
    lowest = exponent - 53 + np.frexp((integer & -integer).astype(np.float64))[1] - 1
    return np.where(some, lowest, NO_BITS)


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format whose codes are ``sign : exponent : mantissa``.

    A code with exponent field e and mantissa field m is ``2^(e - bias) * (1 + m / 2^mantissa)``; e = 0 is subnormal,
    ``2^(1 - bias) * m / 2^mantissa``, unless the format has no subnormals.

    Attributes:
        name: As in PTX opcodes.
        exponent: Width of the exponent field in bits.
        mantissa: Width of the mantissa field in bits.
        special: ``ieee`` (an exponent of all ones is infinity or NaN), ``nan`` (only all ones is NaN, and there is no
            infinity) or ``none`` (every code is a number).
        signed: Whether codes have a sign bit.
        subnormals: Whether exponent field 0 is subnormal.
    """

    name: str
    exponent: int
    mantissa: int
    special: Literal["ieee", "nan", "none"] = "ieee"
    signed: bool = True
    subnormals: bool = True

    @property
    def bias(self) -> int:
        """Bias of the exponent field."""
        return (1 << self.exponent - 1) - 1

    @property
    def sign(self) -> int:
        """Bit above the magnitude: the sign bit of a signed format."""
        return 1 << self.exponent + self.mantissa

    @property
    def codes(self) -> int:
        """Number of codes."""
        return self.sign << self.signed

    @property
    def infinity(self) -> int:
        """Code after the largest finite value: infinity if the format has one, else NaN or no code at all."""
        ones = self.sign - 1
        if self.special == "ieee":
            return ones ^ (1 << self.mantissa) - 1
        return ones if self.special == "nan" else ones + 1

    @property
    def largest(self) -> int:
        """Code of the largest finite value."""
        return self.infinity - 1

    @property
    def nan(self) -> int:
        """Code that NVIDIA's conversions make of a NaN: all ones, which is the largest value if there is no NaN."""
        return self.sign - 1

    @property
    def unit(self) -> int:
        """Exponent of the smallest subnormal: every finite value is an integer times ``2^unit``."""
        return 1 - self.bias - self.mantissa

    @property
    def largest_units(self) -> int:
        """Largest finite value as an integer in units of ``2^unit``."""
        return int(np.ldexp(self.values[self.largest], -self.unit))

    # ---- tables ------------------------------------------------------------------------------------------------------

    @cached_property
    def values(self) -> Float64:
        """Value of every code, in order, exact."""
        codes = np.arange(self.codes)
        exponent, fraction = codes >> self.mantissa & (1 << self.exponent) - 1, codes & (1 << self.mantissa) - 1
        normal = (exponent > 0) | (not self.subnormals)
        integer = fraction + np.where(normal, 1 << self.mantissa, 0)
        size = np.ldexp(integer.astype(np.float64), np.where(normal, exponent - 1, 0) + self.unit)
        magnitude = codes & self.sign - 1
        if self.special != "none":
            size[magnitude >= self.infinity] = np.nan
        if self.special == "ieee":
            size[magnitude == self.infinity] = np.inf
        return frozen(np.where(codes & self.sign, -size, size))

    @cached_property
    def float32(self) -> Float32:
        """``values`` as float32, exact for every format here of 16 bits and fewer."""
        return frozen(self.values.astype(np.float32))

    @cached_property
    def _units(self) -> Int32:
        return frozen(np.nan_to_num(np.ldexp(self.values, -self.unit), nan=0.0).astype(np.int32))

    @cached_property
    def midpoints(self) -> Float64:
        """Values halfway between codes i and i + 1, for i below ``largest``: where rounding to nearest changes."""
        magnitudes = self.values[: self.largest + 1]
        return frozen((magnitudes[:-1] + magnitudes[1:]) / 2)

    def bounds(self, dtype: type[np.floating[Any]] = np.float64, *, factor: float = 1.0) -> NDArray[Any]:
        """Return for each code below ``largest`` the largest number whose quotient by ``factor`` rounds to it.

        A tie goes to the even code: the bound of an even code is ``factor`` times the midpoint above it, that of an odd
        code the number just below. So ``searchsorted(bounds, magnitude)`` rounds to nearest even with saturation.
        ``factor`` must keep those products exact, as a number of a few bits does.
        """
        bounds = (self.midpoints * factor).astype(dtype)
        bounds[1::2] = np.nextafter(bounds[1::2], dtype(0))
        return bounds

    # ---- conversions -------------------------------------------------------------------------------------------------

    def _checked(self, codes: Bytes) -> Bytes:
        require_bytes("codes", codes)
        if self.codes < 256 and codes.size and int(codes.max()) >= self.codes:
            raise NumericsError(
                f"{self.name.upper()} code {int(codes.max())} is above {self.codes - 1}; unpack packed bytes first"
            )
        return codes

    def decode(self, codes: Bytes) -> Float32:
        """Return the values of codes (one a byte), same shape, exact; -0 keeps its sign.

        Raises:
            NumericsError: Not uint8, or a code that the format does not have.
        """
        return np.take(self.float32, self._checked(codes))

    def decode_units(self, codes: Bytes) -> Int32:
        """Return the values of codes as integers in units of ``2^unit``; NaN gives 0, see ``is_nan``.

        Raises:
            NumericsError: Not uint8, or a code that the format does not have.
        """
        return np.take(self._units, self._checked(codes))

    def is_nan(self, codes: Bytes) -> Mask:
        """Return which codes are NaN."""
        return np.take(np.isnan(self.float32), self._checked(codes))

    def round(self, value: Float64, mode: str) -> tuple[Int64, Mask]:
        """Round magnitudes to codes without sign; return the codes, not clamped, and where they overflow.

        Args:
            value: Any shape. The codes of NaN and infinity have no meaning.
            mode: ``rn`` (ties to even), ``rna`` (ties away from zero), ``rz``, ``rm`` (down) or ``rp`` (up).
        """
        size = np.abs(value)
        # Below the smallest normal exponent the step stays that of subnormals.
        exponent = np.maximum(np.frexp(size)[1].astype(np.int64) - 1, 1 - self.bias)
        exponent = np.where(size == 0, 1 - self.bias, exponent)
        scaled = np.ldexp(size, (self.mantissa - exponent).astype(np.int32))
        if mode == "rn":
            steps = np.rint(scaled)
        else:
            steps = np.floor(scaled)
            if mode == "rna":
                steps += scaled - steps >= 0.5
            elif mode in ("rm", "rp"):
                away = np.signbit(value) if mode == "rm" else ~np.signbit(value)
                steps += away & (scaled != steps)
        steps = np.where(np.isfinite(steps), steps, 0).astype(np.int64)
        # The hidden bit in `steps` adds 1 to the exponent field; a carry out of the mantissa adds another.
        code = (exponent + self.bias - 1 << self.mantissa) + steps
        overflow: Mask = code > self.largest
        return code, overflow

    def encode(self, values: ArrayLike, mode: str = "rn", *, saturate: bool = False) -> Int64:
        """Return the codes of values, rounded once; a value that rounds to zero keeps its sign, NaN becomes ``nan``.

        Args:
            values: float64, exact or rounded to odd.
            mode: See ``round``.
            saturate: ``.satfinite``: infinity and overflow become the largest finite value. A format without infinity
                and NaN always saturates.
        """
        value = np.asarray(values, dtype=np.float64)
        code, overflow = self.round(value, mode)
        infinite, negative = np.isinf(value), np.signbit(value)
        if saturate or self.special == "none":
            code = np.where(overflow | infinite, self.largest, code)
        elif np.count_nonzero(overflow) or np.count_nonzero(infinite):
            # IEEE 754, 7.4: overflow gives infinity only in the directions that round away from zero.
            if mode in ("rn", "rna"):
                past = overflow
            elif mode == "rz":
                past = np.zeros_like(overflow)
            else:
                past = overflow & (negative if mode == "rm" else ~negative)
            code = np.where(infinite | past, self.infinity, np.where(overflow, self.largest, code))
        code = np.where(negative, code | self.sign, code)
        return np.where(np.isnan(value), self.nan, code)


TF32 = FloatFormat("tf32", 8, 10)
BF16 = FloatFormat("bf16", 8, 7)
F16 = FloatFormat("f16", 5, 10)
E5M2 = FloatFormat("e5m2", 5, 2)
E4M3 = FloatFormat("e4m3", 4, 3, "nan")
E3M2 = FloatFormat("e3m2", 3, 2, "none")
E2M3 = FloatFormat("e2m3", 2, 3, "none")
E2M1 = FloatFormat("e2m1", 2, 1, "none")
UE4M3 = FloatFormat("ue4m3", 4, 3, "nan", signed=False)
UE8M0 = FloatFormat("ue8m0", 8, 0, "nan", signed=False, subnormals=False)
"""Powers of two from 2^-127 to 2^127; 255 is NaN."""

FORMATS = {format.name: format for format in (TF32, BF16, F16, E5M2, E4M3, E3M2, E2M3, E2M1, UE4M3, UE8M0)}
"""Formats by name."""
