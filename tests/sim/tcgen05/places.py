"""Where things lie, written element by element from the ISA's tables and figures, and from nothing of the simulator."""

from __future__ import annotations

import numpy as np

PITCH = {2: 128, 4: 64, 6: 32, 1: 128}


def k_major(row: int, byte: int, *, swizzle: int, stride: int, leading: int = 0) -> int:
    """Offset of a byte of K of a row. The start is aligned to 1,024 bytes."""
    if swizzle == 0:
        return row // 8 * stride + row % 8 * 16 + byte // 16 * leading + byte % 16
    pitch = PITCH[swizzle]
    chunk = byte // 16
    # Figures 'K-major 128B / 64B / 32B swizzle': the 16-byte columns of a row are permuted by the row.
    chunk ^= {2: row % 8, 4: row // 2 % 4, 6: row // 4 % 2}[swizzle]
    return row // 8 * stride + row % 8 * pitch + chunk * 16 + byte % 16


def mn_major(row: int, k: int, size: int, *, swizzle: int, stride: int, leading: int) -> int:
    """Offset of the first byte of element (row of M or N, k)."""
    byte = row * size
    if swizzle == 0:
        return byte // 16 * stride + k // 8 * leading + k % 8 * 16 + byte % 16
    pitch = PITCH[swizzle]
    block, inside = divmod(byte, pitch)
    if swizzle == 1:
        unit = inside // 32 ^ k % 4
        return block * leading + k // 4 * stride + k % 4 * 128 + unit * 32 + inside % 32
    chunk = inside // 16 ^ {2: k % 8, 4: k // 2 % 4, 6: k // 4 % 2}[swizzle]
    return block * leading + k // 8 * stride + k % 8 * pitch + chunk * 16 + inside % 16


def lane_column(
    row: int, n: int, *, m: int, group: int, columns: int, align: int = 0, ws: bool = False
) -> tuple[int, int]:
    """Lane and column of accumulator element (row of this CTA, n); ``columns`` is N."""
    if ws:  # m lanes for each part of N
        part = columns * m // 128
        return m * (n // part) + row, n % part
    if m // group == 128:
        return row, n
    if group == 2:
        return (row, n) if n < columns // 2 else (64 + row, n - columns // 2)
    return 32 * (row // 16) + row % 16 + align, n


def minifloat(code: int, e: int, m: int, bias: int) -> float:
    """The value of a small float without special codes."""
    sign = -1 if code >> (e + m) & 1 else 1
    exponent, mantissa = code >> m & (1 << e) - 1, code & (1 << m) - 1
    if exponent == 0:
        return sign * mantissa / (1 << m) * 2.0 ** (1 - bias)
    return sign * (1 + mantissa / (1 << m)) * 2.0 ** (exponent - bias)


E2M1 = np.array([minifloat(c, 2, 1, 1) for c in range(16)])
E4M3 = np.array([minifloat(c, 4, 3, 7) for c in range(256)])
E5M2 = np.array([minifloat(c, 5, 2, 15) for c in range(256)])
E2M3 = np.array([minifloat(c, 2, 3, 1) for c in range(64)])
E3M2 = np.array([minifloat(c, 3, 2, 3) for c in range(64)])
