"""Operands, and their products by other means than the oracle."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from pytest_nvfp4.numerics.formats import E2M1, E4M3
from pytest_nvfp4.numerics.oracle import Exact, exact_product
from pytest_nvfp4.numerics.packing import pack
from tests.numerics.oracles import dequantise


def random_operand(rng: np.random.Generator, rows: int, k: int, *, low: int = 0, high: int = 127) -> tuple:
    codes = rng.integers(0, 16, (rows, k), dtype=np.uint8)
    return pack(codes), rng.integers(low, high, (rows, -(-k // 16)), dtype=np.uint8)


def random_exact(seed: int, m: int, n: int, k: int, *, low: int = 0, high: int = 127) -> tuple[Exact, tuple]:
    rng = np.random.default_rng(seed)
    a, sfa = random_operand(rng, m, k, low=low, high=high)
    b, sfb = random_operand(rng, n, k, low=low, high=high)
    return exact_product(a=a, b=b, sfa=sfa, sfb=sfb), (a, b, sfa, sfb)


def value(packed: np.ndarray, scales: np.ndarray, row: int, index: int) -> Fraction:
    code = int(packed[row, index // 2]) >> 4 * (index % 2) & 15
    element = E2M1.decode(np.array([code], np.uint8))[0]
    return Fraction(float(element)) * Fraction(float(E4M3.decode(scales[row, index // 16 : index // 16 + 1])[0]))


def wide_sum(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Operands whose sum needs more than 53 bits: k - 16 largest products and one of 2^-20."""
    codes = np.full((1, k), 7, dtype=np.uint8)
    codes[0, -16:] = [1] + [0] * 15
    scales = np.full((1, k // 16), E4M3.largest, dtype=np.uint8)
    scales[0, -1] = 1
    return pack(codes), scales


def products_of(parts: tuple, row: int, col: int) -> np.ndarray:
    a, b, sfa, sfb = parts
    return dequantise(a[row : row + 1], sfa[row : row + 1])[0] * dequantise(b[col : col + 1], sfb[col : col + 1])[0]


def fp32_sum(products: np.ndarray) -> np.float32:
    return np.add.accumulate(products.astype(np.float32), dtype=np.float32)[-1]


def tensor_core(products: np.ndarray, *, truncate: bool) -> np.ndarray:
    """Accumulators ``[..., k]``: 64 products an instruction, the sum rounded or truncated to fp32 each time."""
    total = np.zeros(products.shape[:-1])
    for start in range(0, products.shape[-1], 64):
        total = total + products[..., start : start + 64].sum(axis=-1)
        rounded = total.astype(np.float32)
        if truncate:
            too_far = np.abs(rounded.astype(np.float64)) > np.abs(total)
            rounded = np.where(too_far, np.nextafter(rounded, np.float32(0)), rounded)
        total = rounded.astype(np.float64)
    return total
