"""Arithmetic of a chain of matrix instructions that add to one accumulator.

The PTX ISA does not specify order, width and rounding of the sum inside an instruction ("wgmma.mma_async", "mma"). An
H200 does the following, bit for bit (measured: 3.6 million sums of f16, bf16, tf32, e4m3, e5m2 by wgmma and mma.sync,
with both accumulators and depths; some are in ``tests/sim/wgmma/h200_sums.npz``): all products of the instruction and
the accumulator are truncated towards zero at 2^(e - 25), where e is the largest of: the sum of the exponents of two
factors that are not zero, the accumulator's exponent unless that is zero, and -133. A subnormal number has the least
exponent of its type. The terms are added exactly. An f32 accumulator gets the sum truncated to 24 significant bits, an
f16 one rounded to nearest. For fp8 in wgmma the truncation is at 2^(e - 13), and an f32 sum has 14 significant bits
(the counter ``wgmma.fp8.accumulation`` counts such instructions for reports). A zero is +0, of products and an
accumulator of -0, too.

A chain of instructions is one fp32 product where a bound shows that every partial sum is exact: all operands are
integers times 2^q, so that all sums are integers times 2^(qa + qb), and none exceeds 2^24 of those (2^11 for f16, 2^14
for fp8), with each subnormal number taken for the least normal one, so that no term is truncated. Rows and columns with
a NaN or an infinity have no finite sum, and do not matter to the bound of the others. Otherwise instructions are added
one by one, for the elements alone that the bound of their own row and column leaves open. Integers wrap at 32 bits, or
saturate after each instruction (.satfinite).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics.formats import lowest_bits
from pytest_nvfp4.sim.wgmma.formats import OperandType, lowest_bit

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AccumulatorType:
    """Type of an accumulator: ``digits`` of its significand, its lowest exponent and its largest value."""

    name: str
    dtype: type[Any]
    digits: int = 0
    lowest: int = 0
    largest: float = 0.0

    @property
    def undefined(self) -> Any:
        """Value of a sum over uninitialised bytes: NaN, or a conspicuous integer."""
        return self.dtype(-0x5A5A5A5B) if self.dtype is np.int32 else np.nan

    def registers(self, elements: int) -> int:
        """Return how many 32-bit registers hold so many elements."""
        return elements * np.dtype(self.dtype).itemsize // 4

    @property
    def least(self) -> int:
        """Least exponent of a normal number."""
        return self.lowest + self.digits - 1


ACCUMULATORS = {
    "f32": AccumulatorType("f32", np.float32, 24, -149, 3.4028234e38),
    "f16": AccumulatorType("f16", np.float16, 11, -24, 65504.0),
    "s32": AccumulatorType("s32", np.int32),
}


@dataclass(frozen=True, slots=True)
class AlignedSum:
    """Bits that a term keeps below the largest exponent, and fraction bits of an f32 sum."""

    kept: int
    fraction: int


_WIDE, _FP8 = AlignedSum(25, 23), AlignedSum(13, 13)
_PAIR_COST = 2
"""Time of an element with operands of its own, in that of one among all of a matrix."""
_NONE = -1023
"""Stands for the exponent of zero."""
_LEAST = -133
"""Exponent to which terms are aligned if all are smaller."""
_LARGEST = 127
"""Exponent of the largest fp32 number."""
_NARROW = 48
"""Exponents of factors up to which products and their scaled terms are exact in float32."""
_OF_ALL_VALUES = ("largest", "total", "factors", "_magnitudes", "_by_element")
"""Cached properties of a product that values which are not finite change; the quantum is that of the finite ones."""
_SMALL = 1 << 12
"""Terms up to which sums are computed without bounds."""
_TOGETHER = 1 << 16
"""Terms that are computed together: they stay in the cache, and small sums need few calls of numpy."""


@dataclass(frozen=True, slots=True)
class _Factors:
    """Factors of products that are added along the first axis.

    Attributes:
        values, exponents: The factors, and their exponents.
        finite: Whether there is no NaN and no infinity among them.
        narrow: Whether products of two such factors, and their scaled terms, are exact in float32 if they are finite.
    """

    values: NDArray[Any]
    exponents: NDArray[np.int16]
    finite: bool
    narrow: bool

    @classmethod
    def of(cls, matrix: Floats, least: int) -> _Factors:
        """Return the factors in the rows of a matrix, ``(k, rows)``; ``least`` is their type's."""
        values = np.ascontiguousarray(matrix.T)
        exponents = _exponents(values, least)
        finite = bool(exponents.max(initial=_NONE) <= _LARGEST)
        narrow = least >= -_NARROW or bool(((exponents == _NONE) | (abs(exponents) <= _NARROW)).all())
        return cls(values, exponents, finite, narrow)

    def __getitem__(self, index: Any) -> _Factors:
        return _Factors(self.values[index], self.exponents[index], self.finite, self.narrow)


class Product:
    """Sequence of ``count`` products A_i B_i^T of equal shape.

    Args:
        a, b: Bit patterns ``(m, count * k)`` and ``(n, count * k)``.
        a_format, b_format: Their types.
        count: Number of instructions.
        a_undefined, b_undefined: Rows with uninitialised bytes, by instruction: ``(count, m)``, ``(count, n)`` or None.
        negate: Whether products are added with the opposite sign.
    """

    def __init__(
        self, a: NDArray[Any], b: NDArray[Any], *, a_format: OperandType, b_format: OperandType, count: int,
        a_undefined: NDArray[np.bool_] | None = None, b_undefined: NDArray[np.bool_] | None = None,
        negate: bool = False,
    ) -> None:  # fmt: skip
        self.aligned = _FP8 if a_format.bits == 8 else _WIDE
        self.count = count
        self.a: Floats = a_format.decode(a)
        self.b: Floats = b_format.decode(b)
        if a_undefined is not None or b_undefined is not None:
            self._clear(a_undefined, b_undefined)
        self.a_undefined = a_undefined
        self.b_undefined = b_undefined
        self.integer = a_format.integer
        self._formats = (a_format, b_format)
        self._codes = (a, b)
        if negate:
            self.a = -self.a

    def _clear(self, a_undefined: NDArray[np.bool_] | None, b_undefined: NDArray[np.bool_] | None) -> None:
        """Replace undefined operands by zeros, which leave the bound tight; ``accumulate`` marks the results."""
        for name, undefined in (("a", a_undefined), ("b", b_undefined)):
            if undefined is not None:
                values = getattr(self, name).reshape(undefined.shape[1], self.count, -1).copy()
                values[undefined.T] = 0
                setattr(self, name, values.reshape(undefined.shape[1], -1))

    @property
    def small(self) -> bool:
        """Whether bounds cost more than the sums that they save."""
        return self.a.size * len(self.b) <= _SMALL

    @cached_property
    def quantum(self) -> int:
        """Exponent e of the bound: every product is an integer times 2^e."""
        return sum(f.quantum(c, v) for f, c, v in zip(self._formats, self._codes, (self.a, self.b), strict=True))

    @cached_property
    def _magnitudes(self) -> tuple[Floats, Floats]:
        """Magnitudes of a and of b, which are no smaller than their exponents in sums."""
        a, b = (_magnitudes(x, f.least) for x, f in zip((self.a, self.b), self._formats, strict=True))
        return a, b

    @cached_property
    def largest(self) -> float:
        """Upper bound of the magnitude of every partial sum; inf or NaN if an operand is not finite."""
        a, b = self._magnitudes
        with np.errstate(all="ignore"):
            by_a = float(a.sum(axis=1, dtype=np.float64).max()) * float(b.max())
            by_b = float(b.sum(axis=1, dtype=np.float64).max()) * float(a.max())
        return min(by_a, by_b)

    def exact(self, accumulator: AccumulatorType, start: NDArray[Any] | None) -> bool:
        """Return whether every order of summation provably gives the same bits."""
        quantum, largest = self.quantum, self.largest
        if start is not None:
            quantum = min(quantum, lowest_bit(start))
            largest += float(_magnitudes(start, accumulator.least).max())
        if quantum >= 1000:
            return largest == 0.0
        digits = min(accumulator.digits, self.aligned.fraction + 1)
        return quantum >= accumulator.lowest and largest <= min(2.0 ** min(quantum + digits, 1000), accumulator.largest)

    def open(self, start: NDArray[Any] | None, accumulator: AccumulatorType, *, rows: slice) -> NDArray[np.bool_]:
        """Return of which elements of an accumulator the order of summation may change the bits, ``(rows, n)``."""
        magnitudes, a_lowest, b_lowest = self._by_element
        quantum, largest = a_lowest[rows, None] + b_lowest[None, :], magnitudes[rows]
        if start is not None:
            quantum = np.minimum(quantum, lowest_bits(start))
            largest = largest + _magnitudes(start, accumulator.least)
        digits = min(accumulator.digits, self.aligned.fraction + 1)
        with np.errstate(all="ignore"):
            limit = np.minimum(np.ldexp(1.0, np.minimum(quantum + digits, 999)), accumulator.largest)
            sure = (quantum >= accumulator.lowest) & (largest <= limit)
        return ~np.asarray(sure)

    @cached_property
    def _by_element(self) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]]:
        """Upper bound of the sum of magnitudes of each element, and the lowest bits of rows of a and of b."""
        k = self.a.shape[1]
        with np.errstate(all="ignore"):
            a, b = self._magnitudes
            sums = (a @ b.T).astype(np.float64)
        # Each of k additions and products is off by half a unit in the last place, or less than the least number.
        largest = sums * (1 + k * 2.0**-22) + k * 2.0**-148
        return largest, *(lowest_bits(values).min(axis=1).astype(np.int32) for values in (self.a, self.b))

    @cached_property
    def factors(self) -> tuple[_Factors, _Factors]:
        """The factors of a and of b."""
        a, b = self._formats
        return _Factors.of(self.a, a.least), _Factors.of(self.b, b.least)

    @cached_property
    def total(self) -> Floats:
        """Sum of all instructions as one fp32 product; use it only where it is exact."""
        return self.a @ self.b.T

    @cached_property
    def lost(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which rows of a and of b are not finite."""
        a, b = (np.asarray(~np.isfinite(values).all(axis=1)) for values in (self.a, self.b))
        return a, b

    @cached_property
    def finite(self) -> Product:
        """The product with zeros for rows that are not finite."""
        made = copy.copy(self)
        for name in _OF_ALL_VALUES:
            made.__dict__.pop(name, None)
        made.a, made.b = (
            np.where(rows[:, None], np.float32(0), v) for rows, v in zip(self.lost, (self.a, self.b), strict=True)
        )
        return made

    @cached_property
    def whole(self) -> NDArray[np.int64]:
        """Sum of all integer products: exact in float64 (each is below 2^16), and in float32 if it is below 2^24."""
        if self.largest < 1 << 24:
            return self.total.astype(np.int64)
        return (self.a.astype(np.float64) @ self.b.T.astype(np.float64)).astype(np.int64)

    @cached_property
    def each(self) -> NDArray[np.float64]:
        """Sum of each instruction in float64, ``(count, m, n)``."""
        with np.errstate(all="ignore"):
            k = self.a.shape[1] // self.count
            a = self.a.astype(np.float64).reshape(-1, self.count, k).transpose(1, 0, 2)
            b = self.b.astype(np.float64).reshape(-1, self.count, k).transpose(1, 2, 0)
            sums: NDArray[np.float64] = np.matmul(a, b)
        return sums


def accumulate(
    product: Product, start: NDArray[Any] | None, accumulator: AccumulatorType, *, rows: slice, saturate: bool = False
) -> NDArray[Any]:  # fmt: skip
    """Return rows of the accumulator after all of a product's instructions; ``start`` None stands for zeros."""
    result: NDArray[Any]
    if product.integer:
        result = _integers(product, start, rows=rows, saturate=saturate)
    elif product.small:
        result = _aligned(product, start, accumulator, rows=rows)
    elif product.exact(accumulator, start):
        result = product.total[rows]
        result = (result if start is None else result + start).astype(accumulator.dtype)
    elif (apart := _without_others(product, start, accumulator, rows=rows)) is not None:
        result = apart
    else:
        result = _aligned(product, start, accumulator, rows=rows)
    if product.a_undefined is not None:
        result = result.copy()
        result[np.asarray(product.a_undefined.any(axis=0))[rows]] = accumulator.undefined
    if product.b_undefined is not None:
        result = result.copy()
        result[:, product.b_undefined.any(axis=0)] = accumulator.undefined
    return result


def _without_others(
    product: Product, start: NDArray[Any] | None, accumulator: AccumulatorType, *, rows: slice
) -> NDArray[Any] | None:
    """Return the accumulator if it has sums that are not finite and all other ones are exact; None otherwise.

    A NaN or an infinity in a row makes its sums with all columns NaN or infinite, with a zero too.
    """
    lost = product.lost[0][rows, None] | product.lost[1][None, :]
    base = start
    if start is not None:
        lost = lost | ~np.isfinite(start)
        base = np.where(lost, start.dtype.type(0), start)
    if not lost.any() or not product.finite.exact(accumulator, base):
        return None
    sums = product.finite.total[rows]
    sums = (sums if base is None else sums + base).astype(accumulator.dtype)
    return np.where(lost, _one_by_one(product, start, accumulator, rows=rows), sums)


def _integers(product: Product, start: NDArray[Any] | None, *, rows: slice, saturate: bool) -> NDArray[np.int32]:
    base = np.int64(0) if start is None else start.astype(np.int64)
    if not saturate or product.largest + float(np.abs(base).max()) < 2.0**31:
        return (product.whole[rows] + base).astype(np.int32)
    for part in product.each:
        base = np.clip(base + part[rows].astype(np.int64), -(1 << 31), (1 << 31) - 1)
    return np.asarray(base).astype(np.int32)


def _magnitudes(values: NDArray[Any], least: int) -> NDArray[Any]:
    """Return magnitudes, that of a subnormal number as the least normal one."""
    result: NDArray[Any] = np.abs(values)
    normal = result.dtype.type(2.0**least)
    subnormal = (result < normal) & (result != 0)
    if subnormal.any():
        result[subnormal] = normal
    return result


def _exponents(values: NDArray[Any], least: int) -> NDArray[np.int16]:
    """Return the exponents, that of a subnormal number as ``least``, and ``_NONE`` for zero."""
    if values.dtype == np.float32:
        result = ((values.view(np.int32) >> 23 & 0xFF) - 127).astype(np.int16)
    else:
        result = ((values.view(np.int64) >> 52 & 0x7FF) - 1023).astype(np.int16)
    low = result < least
    if low.any():
        result[low] = np.where(values[low] == 0, _NONE, least)
    return result


def _aligned(
    product: Product, start: NDArray[Any] | None, accumulator: AccumulatorType, *, rows: slice
) -> NDArray[Any]:
    """Return the sums with the instruction's own rounding."""
    a, b = product.factors
    a = a[:, rows]
    shape = a.values.shape[1], b.values.shape[1]
    value = np.zeros(shape) if start is None else start.astype(np.float64)
    at = None if product.small else np.nonzero(product.open(start, accumulator, rows=rows))
    with np.errstate(all="ignore"):
        if at is not None and len(at[0]) * _PAIR_COST < value.size:
            sums = product.total[rows] + value
            sums[at] = _aligned_sums(
                a[:, at[0]], b[:, at[1]], value[at], product.aligned, accumulator, count=product.count
            )
        else:
            sums = _aligned_sums(a[:, :, None], b[:, None, :], value, product.aligned, accumulator, count=product.count)
        result = sums.astype(accumulator.dtype)
    if a.finite and b.finite and (start is None or np.isfinite(start).all()):
        return result
    lost = product.lost[0][rows, None] | product.lost[1][None, :]
    if start is not None:
        lost |= ~np.isfinite(start)
    return np.where(lost, _one_by_one(product, start, accumulator, rows=rows), result)


def _aligned_sums(
    a: _Factors, b: _Factors, value: NDArray[np.float64], how: AlignedSum, accumulator: AccumulatorType, *, count: int
) -> NDArray[np.float64]:  # fmt: skip
    """Return ``value`` and the sums of the products of a and b, with the instruction's own rounding."""
    narrow = a.narrow and b.narrow
    wide = np.float32 if narrow else np.float64
    k = len(a.values) // count
    step = max(1, min(k, _TOGETHER // max(1, value.size)))
    for first in range(0, count * k, k):
        parts = [slice(at, min(at + step, first + k)) for at in range(first, first + k, step)]
        largest = np.maximum(_exponents(value, accumulator.least), _LEAST)
        for part in parts:
            np.maximum(largest, (a.exponents[part] + b.exponents[part]).max(axis=0), out=largest)
        up = np.ldexp(1.0, how.kept - largest.astype(np.int32))
        total = np.trunc(value * up)
        # Where the limit holds, all terms are zero.
        factor = np.minimum(up, 2.0**126).astype(np.float32) if narrow else up
        for part in parts:
            terms = np.multiply(a.values[part], b.values[part], dtype=wide)
            terms *= factor
            if narrow:  # a term is below 2^(kept + 2): 32 bits hold 16 of them with 25 bits, or 32 with 13
                total += terms.astype(np.int32).sum(axis=0, dtype=np.int32)
            else:
                total += np.trunc(terms, out=terms).sum(axis=0)
        total /= up
        if accumulator.dtype is np.float16:
            value = total.astype(np.float16).astype(np.float64)
        elif largest.min(initial=0) >= -100 and largest.max(initial=0) <= 100:  # the sum is zero or normal
            value = total
            value.view(np.int64)[...] &= -(1 << 52 - how.fraction)
        else:
            value = _truncated(total, how)
    return value + 0.0  # which turns -0 into 0


def _truncated(sums: NDArray[np.float64], how: AlignedSum) -> NDArray[np.float64]:
    """Return sums truncated towards zero to their fraction bits, and to multiples of the least fp32 number."""
    exponents = _exponents(sums, _NONE).astype(np.int32)
    last = np.maximum(exponents - how.fraction, ACCUMULATORS["f32"].lowest)
    cut = np.ldexp(np.trunc(np.ldexp(sums, -last)), last)
    return np.where(exponents > _LARGEST, np.copysign(np.inf, sums), cut)


def _one_by_one(
    product: Product, start: NDArray[Any] | None, accumulator: AccumulatorType, *, rows: slice
) -> NDArray[Any]:
    parts = product.each
    with np.errstate(all="ignore"):
        if start is None:
            value = parts[0, rows].astype(accumulator.dtype)
            rest = parts[1:]
        else:
            value, rest = start, parts
        for part in rest:
            value = (part[rows] + value).astype(accumulator.dtype)
    return canonical(value)


def canonical(values: NDArray[Any]) -> NDArray[Any]:
    """Return values with the canonical NaN, which is the tensor unit's and that of additions."""
    missing = np.isnan(values)
    if missing.any():
        values = values.copy()
        if values.itemsize == 4:
            values.view(np.uint32)[missing] = 0x7FFF_FFFF
        else:
            values.view(np.uint16)[missing] = 0x7FFF
    return values
