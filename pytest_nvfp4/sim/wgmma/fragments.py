"""Register fragments: the matrix elements that each thread's registers hold.

PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of ``wgmma.mma_async.m64nNk8/k16/k32`` and "Matrix
Fragments" of ``mma.m16n8kK``. A warp of a warpgroup holds 16 of wgmma's 64 rows, in the same layout as ``mma``: with
g = lane / 4, t = lane % 4 and E elements in a 32-bit register,

    A   register r, element e:   row g + 8 (r % 2),   column (k)  E t + e + 4 E (r / 2)
    B   register r, element e:   column (n) g,        row (k)     E t + e + 4 E r             (mma only)
    D   element i:               row g + 8 (i / 2 % 2),   column  8 (i / 4) + 2 t + i % 2

D has one element in a register (f32, s32) or two, 2r and 2r + 1 (f16). All functions below reorder axes and copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.lanes import Bits


def stack(registers: Sequence[Bits]) -> NDArray[np.uint32]:
    """Return registers of a warp as one array ``(count, 32)``."""
    if not any(value.__class__ is int for value in registers):
        return np.array(registers)
    out = np.empty((len(registers), 32), np.uint32)
    for row, value in zip(out, registers, strict=True):
        row[:] = value
    return out


def a_matrix(registers: NDArray[np.uint32], codes: type[Any]) -> NDArray[Any]:
    """Return bit patterns of A: ``(..., R, 32)`` registers (R is 2 or 4) to ``(..., 16, k)``, k = 4 E R / 2."""
    *outer, count, _ = registers.shape
    halves = count // 2
    each = 4 // np.dtype(codes).itemsize
    seen = np.ascontiguousarray(registers).view(codes).reshape(*outer, halves, 2, 8, 4, each)
    n = len(outer)
    order = (*range(n), n + 1, n + 2, n, n + 3, n + 4)  # rows half, g, then k: register pair, t, element
    found: NDArray[Any] = seen.transpose(order).reshape(*outer, 16, halves * 4 * each)
    return found


def b_matrix(registers: NDArray[np.uint32], codes: type[Any]) -> NDArray[Any]:
    """Return bit patterns of mma's B: ``(R, 32)`` registers to ``(8, k)`` (a row is a column of B), k = 4 E R."""
    count = registers.shape[0]
    each = 4 // np.dtype(codes).itemsize
    seen = np.ascontiguousarray(registers).view(codes).reshape(count, 8, 4, each)
    found: NDArray[Any] = seen.transpose(1, 0, 2, 3).reshape(8, count * 4 * each)
    return found


def accumulator_registers(matrix: NDArray[Any]) -> NDArray[np.uint32]:
    """Return ``(16, n)`` float32, int32 or float16 values as registers ``(n / 2, 32)``; float16 ``(n / 4, 32)``."""
    seen = matrix.reshape(2, 8, matrix.shape[1] // 8, 4, 2)  # half, g, j, t, e
    order = (2, 0, 1, 3, 4) if matrix.dtype.itemsize == 2 else (2, 0, 4, 1, 3)
    found: NDArray[np.uint32] = np.ascontiguousarray(seen.transpose(order)).view(np.uint32).reshape(-1, 32)
    return found


def accumulator_matrix(registers: NDArray[np.uint32], dtype: type[Any]) -> NDArray[Any]:
    """Return registers as values ``(16, n)``: the inverse of ``accumulator_registers``."""
    count = registers.shape[0]
    values = np.ascontiguousarray(registers).view(dtype)
    found: NDArray[Any]
    if np.dtype(dtype).itemsize == 2:
        # j, half, g, t, e
        found = values.reshape(count // 2, 2, 8, 4, 2).transpose(1, 2, 0, 3, 4).reshape(16, count * 4)
    else:
        # j, half, e, g, t
        found = values.reshape(count // 4, 2, 2, 8, 4).transpose(1, 3, 0, 4, 2).reshape(16, count * 2)
    return found
