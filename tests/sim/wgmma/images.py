"""Operands in shared memory, drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sim.wgmma import oracle

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


def draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Small whole numbers (and quarters where the type has them) as codes and as float64."""
    dtype, bits = TYPES[name]
    low = 0 if name == "u8" else -6
    values = rng.integers(low, 7, size=shape).astype(np.float64)
    if name not in ("s8", "u8", "e5m2"):
        values /= 4
    typed = values.astype(np.float32).astype(dtype)
    return typed.view(CODES[bits]), typed.astype(np.float64)


def steps(
    rng: np.random.Generator, name: str, n: int, count: int, *, width: int = 128
) -> tuple[NDArray[np.uint8], Any, Any, Any]:
    """An image with ``count`` k-steps of A and B side by side in 128-byte rows, and their values."""
    k = 256 // TYPES[name][1]
    a_codes, a = draw(rng, name, (64, k * count))
    b_codes, b = draw(rng, name, (n, k * count))
    image = np.zeros(8192 + 128 * n, np.uint8)
    for start, codes in ((oracle.SMEM, a_codes), (oracle.SMEM + 8192, b_codes)):
        oracle.place(image, codes, address=start, width=width, stride=1024)
    pairs = [
        (
            oracle.descriptor(oracle.SMEM + 32 * i, width=width, stride=1024),
            oracle.descriptor(oracle.SMEM + 8192 + 32 * i, width=width, stride=1024),
        )
        for i in range(count)
    ]
    return image, a, b, pairs
