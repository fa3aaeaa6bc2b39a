"""The exact result of a block-scaled product, with no rounding but the last.

    C[m, n] = sum_k  a[m, k] * sfa[m, k // 16]  *  b[n, k] * sfb[n, k // 16]

**Fixed point.** An E2M1 value is an integer (at most 12) times 2^-1 and an E4M3 value an integer (at most 229376)
times 2^-9, so an operand ``a * sfa`` is an integer of at most 12 * 229376 = 2752512 times 2^-10 and a product an
integer of at most 2752512^2 < 2^42.8 times 2^-20. C is therefore an integer times 2^-20, the *unit* of this module. An
int64 holds it for every K up to ``MAX_K`` = 1217394 whatever the data (K = 7168 needs 56 bits); beyond, the limit is
checked against the scale factors at hand and :class:`OracleLimitError` is raised.

**Exact products from float64 BLAS.** The sum is taken over chunks of k. With operands of at most A and B units, a
chunk of c terms is chosen such that ``c * A * B <= 2^53``. Every partial sum that a classical matrix product can form,
in whatever order, blocking or number of threads and with or without fused multiply-add, is then a sum of some of those
terms: an integer of magnitude at most 2^53, which float64 represents, so no operation rounds and the chunk is exact.
(``c >= 1188`` even for the largest operands.) Chunks are added in int64. Often the same holds for 2^24 and float32,
which takes half the time. An operand is below 2^22 units, which float32 represents. All partial sums of an output are
multiples of the product of the powers of two that divide its rows of A and of B, and none exceeds the product of their
Euclidean norms (Cauchy-Schwarz): while that is below 2^24 such multiples, float32 represents every one. The argument
needs a BLAS that sums products, as OpenBLAS, MKL and Accelerate do, rather than a Strassen scheme; so each chunk's row
sums are compared with the same sums computed in integers, and :class:`OracleError` is raised if they differ.

**Sums of magnitudes** tell which outputs are exact in fp32 in every order, and bound the others. Where the norms of
all of k already show that every output is, nobody needs them: they are a second product, made when they are asked for.

**Memory** besides inputs and result (9 bytes an output, 17 with the sums of magnitudes): for each of up to 8 threads
512 rows of B by 2048 k, decoded, 12 MB; and at most 4096 rows of A by 2048 k, 100 MB at most and 6 MB for 256 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from pytest_nvfp4.numerics import fp16, matmul
from pytest_nvfp4.numerics.arrays import (
    Bytes,
    Float32,
    Float64,
    Half,
    Int32,
    Int64,
    Mask,
    NumericsError,
    ceil_div,
    frozen,
    require_bytes,
)
from pytest_nvfp4.numerics.formats import E2M1, E4M3
from pytest_nvfp4.numerics.quantise import BLOCK
from pytest_nvfp4.numerics.threads import shared

UNIT_BITS = 20
"""C is an integer times 2^-20."""
LARGEST_OPERAND = E2M1.largest_units * E4M3.largest_units
"""2752512: the largest operand (6 * 448) in units of 2^-10."""
MAX_K = (2**63 - 1) // LARGEST_OPERAND**2
"""1217394: up to this K the result fits an int64 for any data."""

_MANTISSA = 2**53
_SINGLE = 2**24
_MARGIN = 1 + 2.0**-10
"""Factor above the error of a sum of 2048 squares in float32, or of its root."""
_ROWS_A, _ROWS_B, _CHUNK = 4096, 512, 2048

# Both elements of a packed byte at once: one 64-bit look-up gives two int32 in units of 1/2, low nibble first.
_PAIRS: Int64 = frozen(
    np.stack([np.tile(E2M1.decode_units(np.arange(16, dtype=np.uint8)), 16),
              np.repeat(E2M1.decode_units(np.arange(16, dtype=np.uint8)), 16)], axis=1).view(np.int64)[:, 0].copy()
)  # fmt: skip


class OracleError(RuntimeError):
    """The platform's matrix product is not exact where exactness is required."""


class OracleLimitError(NumericsError):
    """A result that does not fit an int64 in units of 2^-20."""


@dataclass(frozen=True, eq=False)
class Exact:
    """An exact product, with the data that a judgement needs.

    Attributes:
        units: ``[m, n]`` int64, C in units of 2^-20 (0 where NaN).
        magnitudes: makes ``magnitude``; it must return the same at any time.
        step_a: ``[m]`` int64, a power of two that divides every operand of that row of A, in units of 2^-10.
        step_b: ``[n]`` int64, the same for rows of B.
        nan_rows: ``[m]``, rows of A with a NaN scale factor: NaN in every column.
        nan_columns: ``[n]``, rows of B with a NaN scale factor.
        k: number of products an output sums.
        all_order_free: whether the norms of the operands show that every output is exact in every order.
    """

    units: Int64
    magnitudes: Callable[[], Int64]
    step_a: Int64
    step_b: Int64
    nan_rows: Mask
    nan_columns: Mask
    k: int
    all_order_free: bool = False

    @cached_property
    def magnitude(self) -> Int64:
        """Sum of ``|a * b|`` in units of 2^-20 (NaN terms left out), ``[m, n]`` int64."""
        return self.magnitudes()

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(m, n)`` of C."""
        return self.units.shape[0], self.units.shape[1]

    @property
    def nan(self) -> Mask:
        """Which outputs are NaN, ``[m, n]``."""
        return self.nan_rows[:, None] | self.nan_columns[None, :]

    def rounded(self) -> Half:
        """Return C rounded once to fp16 ``[m, n]``: nearest even, overflow to infinity, zero as +0, NaN as 0x7FFF."""
        rounded = fp16.round_units(self.units, unit_bits=UNIT_BITS)
        rounded.view(np.uint16)[self.nan] = fp16.CANONICAL_NAN
        return rounded

    def values(self) -> Float64:
        """Return C as float64 ``[m, n]`` (exact below 2^33, else correctly rounded), with NaN."""
        values = self.units.astype(np.float64) * 2.0**-UNIT_BITS
        values[self.nan] = np.nan
        return values

    def sum_of_magnitudes(self) -> Float64:
        """Return ``sum |a * b|`` as float64 ``[m, n]`` (rounded only from 2^33 on)."""
        return self.magnitude.astype(np.float64) * 2.0**-UNIT_BITS

    def order_free(self) -> Mask:
        """Return where fp32 accumulation is exact in *every* order, so only one result is right, ``[m, n]``.

        All products are multiples of the quantum ``q = step_a * step_b``, and so is every partial sum; none exceeds
        ``sum |a * b|``. Where that is below ``2^24 * q`` every partial sum is an integer below 2^24 times a power of
        two, which fp32 represents, so no addition rounds. (Products themselves always fit: 11 significant bits.)
        """
        if self.all_order_free:
            return np.ones(self.shape, np.bool_)
        quantum = self.step_a.astype(np.float64)[:, None] * self.step_b.astype(np.float64)[None, :]
        return self.magnitude.astype(np.float64) < 2.0**24 * quantum


def exact_product(*, a: Bytes, b: Bytes, sfa: Bytes, sfb: Bytes, signed_scales: bool = False) -> Exact:
    """Compute the exact C of one group.

    Args:
        a: ``[m, k // 2]`` packed E2M1, see :mod:`~pytest_nvfp4.numerics.packing`; ``m`` may be 0.
        b: ``[n, k // 2]`` packed E2M1.
        sfa: ``[m, ceil(k / 16)]`` E4M3 bytes, plain.
        sfb: ``[n, ceil(k / 16)]`` E4M3 bytes, plain.
        signed_scales: read the sign bit of scale factors (as ``torch.float8_e4m3fn``) instead of rejecting it.

    Returns:
        The result with its error model. A NaN scale factor (0x7F) makes its whole row or column NaN, since NaN times
        any element, zero included, is NaN.

    Raises:
        NumericsError: a wrong dtype or shape, or a scale factor with its sign bit set and not ``signed_scales``.
        OracleLimitError: K is beyond ``MAX_K`` and the scale factors are too large for an int64.
        OracleError: the matrix product of this platform is not exact on integers below 2^53.
    """
    for name, array in (("a", a), ("b", b)):
        if require_bytes(name, array).ndim != 2:
            raise NumericsError(f"{name} has shape {list(array.shape)}, not [rows, k // 2]")
    k = a.shape[1] * 2
    if b.shape[1] * 2 != k:
        raise NumericsError(f"a has k = {k} but b has k = {b.shape[1] * 2}")
    blocks = ceil_div(k, BLOCK)
    units_a = _scale_units("sfa", sfa, shape=(a.shape[0], blocks), signed=signed_scales)
    units_b = _scale_units("sfb", sfb, shape=(b.shape[0], blocks), signed=signed_scales)
    largest_a, largest_b = _largest_operand(units_a), _largest_operand(units_b)
    if k * largest_a * largest_b > 2**63 - 1:
        raise OracleLimitError(
            f"K = {k} with operands up to {largest_a / 1024:g} and {largest_b / 1024:g} may exceed int64 in units of "
            f"2^-20; up to K = {MAX_K} any data fits: split the product along k and add the parts as Python integers"
        )
    a, b = _whole_blocks(a, blocks), _whole_blocks(b, blocks)
    most = min(_MANTISSA // max(1, largest_a * largest_b), _CHUNK) // BLOCK
    scaled_a, scaled_b = _Scaled(a, units_a, most), _Scaled(b, units_b, most)
    units = _sums(scaled_a, scaled_b)
    return Exact(
        units=units,
        magnitudes=lambda: _sums(scaled_a, scaled_b, absolute=True),
        step_a=scaled_a.steps,
        step_b=scaled_b.steps,
        nan_rows=np.any(E4M3.is_nan(sfa), axis=1),
        nan_columns=np.any(E4M3.is_nan(sfb), axis=1),
        k=k,
        all_order_free=scaled_a.norm * scaled_b.norm * _MARGIN < _SINGLE,
    )


class _Scaled:
    """One matrix of a product.

    Args:
        packed: ``[rows, 8 * blocks]`` packed E2M1.
        scales: ``[rows, blocks]`` scale factors in units of 2^-9.
        most: blocks of k in a chunk.

    Attributes:
        chunks: the chunks of its blocks.
        bits: the bits that are set in any operand of a row, once all of it has been decoded.
        squares: the sums of squares of the rows in units of 2^-20, likewise, with the error of a float32.
    """

    def __init__(self, packed: Bytes, scales: Int32, most: int) -> None:
        self._packed = packed
        self._scales = scales
        self.rows = len(packed)
        self.chunks = tuple(_spans(scales.shape[1], most))
        self.bits = np.zeros(self.rows, np.int32)
        self.squares = np.zeros(self.rows)

    def part(self, rows: slice, chunk: slice, *, seen: bool) -> _Part:
        """Decode a chunk of some rows; ``seen`` tells whether ``bits`` and ``squares`` have it already."""
        units = _operands(self._packed[rows], self._scales[rows], chunk)
        values = units.astype(np.float32)
        bits = np.bitwise_or.reduce(units, axis=1)
        squares = np.einsum("ij,ij->i", values, values).astype(np.float64)
        if not seen:
            self.bits[rows] |= bits
            self.squares[rows] += squares
        return _Part(units, values, _norm(squares, _lowest_bit(bits)))

    @property
    def steps(self) -> Int64:
        """Powers of two that divide every operand of a row."""
        return _lowest_bit(self.bits)

    @property
    def norm(self) -> float:
        """The largest Euclidean norm of a row in its steps."""
        return _norm(self.squares, self.steps)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A chunk of some rows: operands in units of 2^-10, the same in float32, the largest norm of a row in its steps."""

    units: Int32
    values: Float32
    norm: float


def _norm(squares: Float64, steps: Int64) -> float:
    return float(np.max(np.sqrt(squares) / steps, initial=0.0))


def _sums(a: _Scaled, b: _Scaled, *, absolute: bool = False) -> Int64:
    """Return the sums of the products of rows ``[m, n]``, or of their magnitudes, in units of 2^-20.

    The first call that is not ``absolute`` also finds the bits and the squares of the rows.
    """
    sums = np.zeros((a.rows, b.rows), dtype=np.int64)

    def add(part_a: _Part, rows: slice, chunk: slice, columns: slice) -> None:
        part_b = b.part(columns, chunk, seen=absolute or rows.start > 0)
        sums[rows, columns] += _product(part_a, part_b, absolute=absolute)

    for rows in _spans(a.rows, _ROWS_A):
        for chunk in a.chunks:
            part_a = a.part(rows, chunk, seen=absolute)
            work = partial(add, part_a, rows, chunk)
            shared(work, _spans(b.rows, _ROWS_B), large=part_a.units.size * b.rows >= matmul.LARGE)
    return sums


def _product(a: _Part, b: _Part, *, absolute: bool) -> Int64:
    """Return the sums of the products of rows, or of their magnitudes: in float32 if that is exact."""
    left, right = a.values, b.values
    if absolute:
        left, right = np.abs(left), np.abs(right)
    if a.norm * b.norm * _MARGIN < _SINGLE:
        product = matmul.on_one_thread(left, right).astype(np.int64)
    else:
        product = matmul.on_one_thread(left.astype(np.float64), right.astype(np.float64)).astype(np.int64)
    if not absolute:
        certify_product(product, a.units, b.units)
    return product


def certify_product(product: Int64, a: Int32, b: Int32) -> None:
    """Check ``product [m, n]`` of integers ``a [m, c]`` and ``b [n, c]`` by its row sums, in int64.

    Raises:
        OracleError: they differ.
    """
    expected = a.astype(np.int64) @ b.sum(axis=0, dtype=np.int64)
    if not np.array_equal(product.sum(axis=1), expected):
        raise OracleError(
            "numpy's float64 matrix product is not exact on integers whose partial sums stay below 2^53; the linked "
            "BLAS does not sum products in float64 (see numpy.show_config()), so it cannot give an exact reference"
        )


def _scale_units(name: str, scales: Bytes, *, shape: tuple[int, int], signed: bool) -> Int32:
    require_bytes(name, scales, shape=shape)
    negative = scales >= E4M3.sign
    if not signed and negative.any():
        row, block = (int(i) for i in np.argwhere(negative)[0])
        raise NumericsError(
            f"{name}[{row}, {block}] = 0x{int(scales[row, block]):02X} has its sign bit set; a scale factor is UE4M3 "
            "(0x00..0x7F) and the hardware's handling of the bit is not documented. Pass signed_scales=True to read it "
            "as torch.float8_e4m3fn does"
        )
    return E4M3.decode_units(scales)


def _largest_operand(units: Int32) -> int:
    return E2M1.largest_units * int(np.abs(units).max(initial=0))


def _whole_blocks(packed: Bytes, blocks: int) -> Bytes:
    """Return the packed operand with its last block of k zero-filled."""
    missing = blocks * BLOCK // 2 - packed.shape[1]
    return np.pad(packed, ((0, 0), (0, missing))) if missing else packed


def _operands(packed: Bytes, scale_units: Int32, chunk: slice) -> Int32:
    """Decode the operands of a chunk of k-blocks: ``[rows, 16 * blocks]`` in units of 2^-10."""
    width = BLOCK // 2
    pairs = np.take(_PAIRS, packed[:, chunk.start * width : chunk.stop * width])
    values = pairs.view(np.int32).reshape(packed.shape[0], chunk.stop - chunk.start, BLOCK)
    values *= scale_units[:, chunk, None]
    return values.reshape(packed.shape[0], -1)


def _lowest_bit(bits: Int32) -> Int64:
    lowest = (bits & -bits).astype(np.int64)
    return np.where(lowest == 0, 1, lowest)


def _spans(length: int, step: int) -> Iterator[slice]:
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))
