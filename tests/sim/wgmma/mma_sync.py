"""``mma.sync`` with operands placed by the tables of the ISA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sim.ptx_case import Ran, run_ptx

ml_dtypes = pytest.importorskip("ml_dtypes")
TYPES = {
    "f16": (np.float16, 16),
    "bf16": (ml_dtypes.bfloat16, 16),
    "tf32": (np.float32, 32),
    "e4m3": (ml_dtypes.float8_e4m3fn, 8),
    "e5m2": (ml_dtypes.float8_e5m2, 8),
    "s8": (np.int8, 8),
    "u8": (np.uint8, 8),
}
CODES = {8: np.uint8, 16: np.uint16, 32: np.uint32}


def b_place(lane: int, i: int, bits: int) -> tuple[int, int]:
    """k and n of element i of B (ISA, matrix B of m16n8k8 to k32)."""
    g, t = lane // 4, lane % 4
    if bits == 32:
        return t + 4 * i, g
    if bits == 16:
        return t * 2 + (i & 1) + (8 if i >= 2 else 0), g
    return t * 4 + (i & 3) + (16 if i >= 4 else 0), g


def pack(codes: NDArray[Any], place: Callable[[int, int], tuple[int, int]], count: int) -> NDArray[np.uint32]:
    bits = codes.dtype.itemsize * 8
    each = 32 // bits
    out = np.zeros((32, count), np.uint32)
    for lane in range(32):
        for i in range(count * each):
            out[lane, i // each] |= np.uint32(int(codes[place(lane, i)]) << (i % each * bits))
    return out


def draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    dtype, bits = TYPES[name]
    values = rng.integers(0 if name == "u8" else -6, 7, size=shape)
    typed = values.astype(np.float32).astype(dtype)
    return typed.view(CODES[bits]), typed.astype(np.float64)


def run(
    opcode: str,
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    *,
    body: str | None = None,
    block: tuple[int, int, int] = (32, 1, 1),
) -> Ran:
    """a, b, c: registers (32, count); gives those of D."""
    lines = ["mov.u32 %r1, %tid.x;"]
    for number, (array, first) in enumerate(((a, 10), (b, 20), (c, 30))):
        count = array.shape[1]
        lines += [f"mul.wide.u32 %rd1, %r1, {4 * count};", f"add.s64 %rd2, %rd{100 + number}, %rd1;"]
        lines += [f"ld.global.b32 %r{first + i}, [%rd2+{4 * i}];" for i in range(count)]
    d_count = c.shape[1]
    group = lambda first, count: "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"  # noqa: E731
    text = f"{opcode} {group(40, d_count)}, {group(10, a.shape[1])}, {group(20, b.shape[1])}, {group(30, d_count)};"
    lines += [(body or "{}").format(text), f"mul.wide.u32 %rd1, %r1, {4 * d_count};", "add.s64 %rd2, %rd103, %rd1;"]
    lines += [f"st.global.b32 [%rd2+{4 * i}], %r{40 + i};" for i in range(d_count)]
    buffers = {"a": a, "b": b, "c": c, "d": np.zeros_like(c)}
    return run_ptx("\n".join(lines), buffers=buffers, block=block, arch="sm_90a")
