"""Elements of outputs by the names of torch's types: their bits as numbers, NaN, order, and a poison."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics import fp16
from pytest_nvfp4.numerics.arrays import Float64, Int64, Mask, NumericsError
from pytest_nvfp4.numerics.formats import FloatFormat

Bits = NDArray[Any]
"""Elements as unsigned integers of their size."""

_FLOATS: Final = {
    "float64": FloatFormat("f64", 11, 52),
    "float32": FloatFormat("f32", 8, 23),
    "float16": FloatFormat("f16", 5, 10),
    "bfloat16": FloatFormat("bf16", 8, 7),
    "float8_e4m3fn": FloatFormat("e4m3", 4, 3, special="nan"),
    "float8_e5m2": FloatFormat("e5m2", 5, 2),
}
_POISONS: Final = {1: 0xFF, 2: 0xFFDA, 4: 0xFFDA_FE5A, 8: 0xFFFA_FE5A_FFDA_FE5A}
"""NaNs of a sign and payload that no conversion makes, except for one byte; as integers, rare values."""


@dataclass(frozen=True, slots=True)
class Element:
    """A type of elements.

    Attributes:
        name: Its name in torch.
        item: Its size in bytes.
        format: Its format if it is a floating-point type.
        signed: Whether an integer has a sign.
    """

    name: str
    item: int
    format: FloatFormat | None = None
    signed: bool = False

    @property
    def sign(self) -> int:
        """Bits of -0; 0 for an integer, which has none."""
        return 0 if self.format is None else self.format.sign

    @property
    def poison(self) -> int:
        """Bits that fill an output before a call."""
        return fp16.POISON if self.name == "float16" else _POISONS[self.item]

    @property
    def overflow(self) -> float:
        """Smallest magnitude that rounds to infinity, or to what stands for it."""
        if self.format is None or self.name == "float64":
            return float("inf")
        largest = self._magnitude(self.format.largest)
        return largest + (largest - self._magnitude(self.format.largest - 1)) / 2

    def _magnitude(self, code: int) -> float:
        return float(self.to_float64(np.array([code], dtype=f"u{self.item}"))[0])

    def is_nan(self, bits: Bits) -> Mask:
        """Return which elements are NaN."""
        if self.format is None:
            return np.zeros(bits.shape, dtype=bool)
        most = self.format.infinity - (self.format.special == "nan")
        return np.asarray((bits & bits.dtype.type(self.format.sign - 1)) > most)

    def to_float64(self, bits: Bits) -> Float64:
        """Return the values as float64, exact but for integers beyond 2^53."""
        bits = np.ascontiguousarray(bits)
        if self.format is None:
            return bits.view(f"{'i' if self.signed else 'u'}{self.item}").astype(np.float64)
        if self.item == 1:
            return self.format.values[bits]
        if self.name == "bfloat16":
            bits = bits.astype(np.uint32) << np.uint32(16)
        with np.errstate(invalid="ignore"):
            return bits.view(f"f{bits.itemsize}").astype(np.float64)

    def distance(self, one: Bits, other: Bits) -> Int64:
        """Return the number of values from one element to the other, at most 2^62; 0 where either is NaN."""
        first, second = self._ordinal(one), self._ordinal(other)
        either = self.is_nan(one) | self.is_nan(other)
        if self.item < 8:
            near: Int64 = np.where(either, np.int64(0), np.abs(first - second))
            return near
        apart = np.minimum(np.abs(first.astype(np.float64) - second), 2.0**62)
        close = apart < 2.0**52
        exact = np.where(close, np.abs(np.where(close, first, 0) - np.where(close, second, 0)), apart.astype(np.int64))
        return np.where(either, 0, exact).astype(np.int64)

    def _ordinal(self, bits: Bits) -> Int64:
        bits = np.ascontiguousarray(bits)
        if self.format is None:
            return bits.view(f"{'i' if self.signed else 'u'}{self.item}").astype(np.int64)
        magnitude: Int64 = (bits & bits.dtype.type(self.format.sign - 1)).astype(np.int64)
        return np.where(bits & bits.dtype.type(self.format.sign), -magnitude, magnitude)

    def shown(self, bits: int) -> float | int:
        """Return the value of one element."""
        array = np.array([bits], dtype=f"u{self.item}")
        if self.format is None:
            return int(array.view(f"{'i' if self.signed else 'u'}{self.item}")[0])
        return float(self.to_float64(array)[0])


@lru_cache(maxsize=32)
def element(name: str) -> Element:
    """Return the element of a type of torch. Raises NumericsError for one that no output may have."""
    if name in _FLOATS:
        form = _FLOATS[name]
        return Element(name, form.codes.bit_length() // 8, form)
    if name == "bool":
        return Element(name, 1)
    kind = name.removeprefix("u")
    if kind in ("int8", "int16", "int32", "int64"):
        return Element(name, int(kind[3:]) // 8, signed=kind == name)
    raise NumericsError(f"an output of type {name} cannot be judged; {', '.join(_FLOATS)}, integers and bool can")


FLOAT16: Final = element("float16")
