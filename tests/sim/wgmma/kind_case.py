"""Operands of ``mma.sync`` with a ``.kind``, placed element by element, and scale factors, lane by lane."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sim.ptx_case import Ran, run_ptx
from tests.sim.wgmma import oracle

ml_dtypes = pytest.importorskip("ml_dtypes")
DTYPES = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "ue4m3": ml_dtypes.float8_e4m3fn,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
}


def values_of(name: str, codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    values: NDArray[np.float64] = codes.view(DTYPES[name]).astype(np.float64)
    return values


def a_place(lane: int, i: int, bits: int) -> tuple[int, int]:
    """Row and k of element i of A (ISA, matrix A of m16n8k32 of 8 bits and m16n8k64 of 4 bits)."""
    each = 32 // bits
    row = lane // 4 + (8 if i // each % 2 else 0)
    return row, lane % 4 * each + i % each + (4 * each if i >= 2 * each else 0)


def b_place(lane: int, i: int, bits: int) -> tuple[int, int]:
    """Column and k of element i of B."""
    each = 32 // bits
    return lane // 4, lane % 4 * each + i % each + (4 * each if i >= each else 0)


def registers(
    codes: NDArray[np.uint8], bits: int, count: int, *, of_a: bool, shift: int, noise: int
) -> NDArray[np.uint32]:
    """Registers (32, count) of elements of 4 bits, or of bytes with the element at a bit and noise around it."""
    out = np.zeros((32, count), np.uint32)
    for lane in range(32):
        for i in range(count * 32 // bits):
            code = int(codes[(a_place if of_a else b_place)(lane, i, bits)]) << shift | noise
            out[lane, i * bits // 32] |= np.uint32(code << i * bits % 32)
    return out


def scale_register(codes: NDArray[np.uint8], *, of_a: bool, byte: int, thread: int) -> NDArray[np.uint32]:
    """One register of each lane with the factors ``[row][vector]``; other lanes and bytes have something else."""
    out = np.full((32, 4), 0x77, np.uint8)
    for row, factors in enumerate(codes):
        lane = 4 * (row % 8) + 2 * thread + row // 8 if of_a else 4 * row + thread
        out[lane, byte : byte + len(factors)] = factors
    return out.view("<u4")


def run(
    opcode: str, a: NDArray[np.uint32], b: NDArray[np.uint32], c: NDArray[np.uint32],
    scales: list[tuple[NDArray[np.uint32], str]], arch: str = "sm_120a",
) -> Ran:  # fmt: skip
    buffers = {"a": a, "b": b, "c": c, **{f"s{i}": words for i, (words, _) in enumerate(scales)}}
    lines = ["mov.u32 %r1, %tid.x;", "mov.b16 %rs1, 0;", "mov.b16 %rs2, 1;", "cvt.u16.u32 %rs3, %r1;"]
    for number, array in enumerate(buffers.values()):
        width = array.shape[1]
        lines += [f"mul.wide.u32 %rd1, %r1, {4 * width};", f"add.s64 %rd2, %rd{100 + number}, %rd1;"]
        lines += [f"ld.global.b32 %r{10 * (number + 1) + i}, [%rd2+{4 * i}];" for i in range(width)]
    group = lambda first, count: "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"  # noqa: E731
    n = c.shape[1]
    operands = [group(60, n), group(10, 4), group(20, 2), group(30, n)]
    for i, (_, selectors) in enumerate(scales):
        operands += [("%r40", "{%r50}")[i], f"{{{selectors}}}"]  # CUDA writes a register, the DSL a vector of one
    lines += [f"{opcode} {', '.join(operands)};", f"mul.wide.u32 %rd1, %r1, {4 * n};"]
    lines += [f"add.s64 %rd2, %rd{100 + len(buffers)}, %rd1;"]
    lines += [f"st.global.b32 [%rd2+{4 * i}], %r{60 + i};" for i in range(n)]
    return run_ptx("\n".join(lines), buffers={**buffers, "d": np.zeros_like(c)}, arch=arch)


def exact(a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float32]) -> NDArray[np.float64]:
    """A B^T + C in rationals, rounded once."""
    out = np.empty((16, 8))
    for m in range(16):
        for n in range(8):
            total = sum((Fraction(x) * Fraction(y) for x, y in zip(a[m], b[n], strict=True)), Fraction(float(c[m, n])))
            out[m, n] = float(np.float32(float(total)))
    return out


def d_of(ran: Ran, dtype: type) -> NDArray[np.float64]:
    values: NDArray[np.float64] = oracle.from_registers(ran["d"], dtype).astype(np.float64)
    return values
