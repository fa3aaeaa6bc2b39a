"""Matrices in shared memory and in registers, written element by element from the public descriptions.

Shared memory: the canonical layouts of CUTLASS's ``mma_traits_sm90_gmma`` (T elements of 16 bytes, a swizzle acting on
byte addresses). Registers: the formulas and figures of the PTX ISA ("Register Fragments").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

SWIZZLE_BITS = {0: 0, 128: 1, 64: 2, 32: 3}
SMEM = 1024
"""Address of the first byte of the kernel's shared memory."""


def descriptor(address: int, *, leading: int = 0, stride: int = 0, width: int = 0) -> int:
    return (address & 0x3FFFF) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLE_BITS[width] << 62


def byte_offset(row: int, k: int, *, size: int, width: int, leading: int, stride: int, transposed: bool) -> int:
    """Offset of element (row of m or n, k) from the start of the matrix, before the swizzle."""
    t = 16 // size
    if not transposed:
        if width == 0:  # ((8,m),(T,2)):((1T,SBO),(1,LBO))
            return row % 8 * 16 + row // 8 * stride + k % t * size + k // t * leading
        return row % 8 * width + row // 8 * stride + k * size  # ((8,m),(T,2)):((wT,SBO),(1,T))
    if width == 0:  # ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))
        return row % t * size + row // t * stride + k % 8 * 16 + k // 8 * leading
    w = width // 16  # ((T,w,m),(8,k)):((1,T,LBO),(wT,SBO))
    return row % t * size + row // t % w * 16 + row // (t * w) * leading + k % 8 * width + k // 8 * stride


def swizzled(address: int, width: int) -> int:
    """``Swizzle<b,4,3>`` of an address."""
    bits = {0: 0, 32: 1, 64: 2, 128: 3}[width]
    return address ^ (address >> 3 & ((1 << bits) - 1) << 4)


def place(
    image: NDArray[np.uint8],
    codes: NDArray[np.unsignedinteger],
    *,
    address: int,
    width: int = 0,
    leading: int = 0,
    stride: int = 0,
    transposed: bool = False,
) -> None:
    """Write a matrix (rows, k) of bit patterns into the image of shared memory (byte 0 at address ``SMEM``)."""
    size = codes.dtype.itemsize
    for row in range(codes.shape[0]):
        for k in range(codes.shape[1]):
            offset = byte_offset(row, k, size=size, width=width, leading=leading, stride=stride, transposed=transposed)
            at = swizzled(address + offset, width) - SMEM
            image[at : at + size] = np.frombuffer(codes[row, k].tobytes(), np.uint8)


def accumulator_place(thread: int, i: int) -> tuple[int, int]:
    """Row and column of element i of a thread's part of D, 64 x n (ISA, figure of m64nNk16's matrix D)."""
    warp, lane = divmod(thread, 32)
    row = 16 * warp + lane // 4 + (8 if i % 4 >= 2 else 0)
    column = lane % 4 * 2 + (i & 1) + 8 * (i // 4)
    return row, column


def a_place_16(thread: int, i: int) -> tuple[int, int]:
    """Row and k of element i (0 to 7) of A in registers, 16-bit types (ISA, m64k16)."""
    warp, lane = divmod(thread, 32)
    row = 16 * warp + lane // 4 + (0 if i in (0, 1, 4, 5) else 8)
    return row, lane % 4 * 2 + (i & 1) + (8 if i >= 4 else 0)


def a_place_32(thread: int, i: int) -> tuple[int, int]:
    """Row and k of element i (0 to 3) of A in registers, tf32 (ISA, m64k8)."""
    warp, lane = divmod(thread, 32)
    return 16 * warp + lane // 4 + (8 if i in (1, 3) else 0), lane % 4 + (4 if i >= 2 else 0)


def a_place_8(thread: int, i: int) -> tuple[int, int]:
    """Row and k of element i (0 to 15) of A in registers, 8-bit types (ISA, m64k32)."""
    warp, lane = divmod(thread, 32)
    row = 16 * warp + lane // 4 + (0 if i < 4 or 8 <= i < 12 else 8)
    return row, lane % 4 * 4 + (i & 3) + (16 if i >= 8 else 0)


A_PLACES: dict[int, Callable[[int, int], tuple[int, int]]] = {8: a_place_8, 16: a_place_16, 32: a_place_32}


def a_registers(codes: NDArray[np.unsignedinteger]) -> NDArray[np.uint32]:
    """A (rows, k) as registers (threads, 4)."""
    bits = codes.dtype.itemsize * 8
    threads = codes.shape[0] * 2
    out = np.zeros((threads, 4), np.uint32)
    each = 32 // bits
    for thread in range(threads):
        for i in range(4 * each):
            row, k = A_PLACES[bits](thread, i)
            out[thread, i // each] |= np.uint32(int(codes[row, k]) << (i % each * bits))
    return out


def from_registers(registers: NDArray[np.uint32], dtype: type) -> NDArray[np.generic]:
    """Registers (threads, count) of D as a matrix."""
    values = np.ascontiguousarray(registers).view(dtype)
    threads, count = values.shape
    out = np.zeros((threads // 2, count * 2), dtype)
    for thread in range(threads):
        for i in range(count):
            out[accumulator_place(thread, i)] = values[thread, i]
    return out


def to_registers(matrix: NDArray[np.generic]) -> NDArray[np.uint32]:
    """The inverse."""
    rows, columns = matrix.shape
    out = np.zeros((rows * 2, columns // 2), matrix.dtype)
    for thread in range(rows * 2):
        for i in range(columns // 2):
            out[thread, i] = matrix[accumulator_place(thread, i)]
    return out.view(np.uint32)


def cut(value: Fraction, place: int) -> Fraction:
    """Truncate towards zero to a multiple of 2**place."""
    unit = Fraction(2) ** place
    return int(value / unit) * unit


def exponent(value: Fraction | float) -> int:
    return math.frexp(float(value))[1] - 1


def aligned_sum(
    a: NDArray[Any], b: NDArray[Any], start: float, count: int, kept: int, fraction: int, least: int
) -> Fraction:
    """Return one element of a chain: terms truncated below the largest exponent, the sum to its own digits.

    Subnormal factors have the exponent ``least``, a subnormal accumulator -126; 2^-133 is the smallest one of a sum.
    """
    value = Fraction(float(start))
    k = len(a) // count
    for first in range(0, len(a), k):
        pairs = [(float(x), float(y)) for x, y in zip(a[first : first + k], b[first : first + k], strict=True)]
        places = [max(exponent(x), least) + max(exponent(y), least) for x, y in pairs if x and y]
        places += [max(exponent(value), -126)] * bool(value)
        terms = [Fraction(x) * Fraction(y) for x, y in pairs] + [value]
        total = sum((cut(term, max([*places, -133]) - kept) for term in terms), Fraction(0))
        value = cut(total, max(exponent(total) - fraction, -149)) if total else Fraction(0)
    return value
