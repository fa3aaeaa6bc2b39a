"""A chain of NVFP4 instructions with one accumulator, and its value in exact arithmetic."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.sim.tcgen05.mma import issue
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaForm
from tests.sim.tcgen05.harness import make_ctas, matrix_bits, own
from tests.sim.tcgen05.places import E2M1, E4M3, k_major

FORM = MmaForm("mxf4nvf4", 1, 4, False, 0, "test")
N = 32
IDESC = 1 << 7 | 1 << 10 | (N >> 3) << 17 | 1 << 27
PLACES = np.array([[k_major(r, k, swizzle=2, stride=1024) for k in range(32)] for r in range(128)])


class Kernel:
    """One CTA that multiplies what it is given."""

    def __init__(self) -> None:
        [self.cta] = make_ctas()
        self.tmem = own(self.cta)
        self.sums: list[np.ndarray] = []

    def add(self, a: np.ndarray, b: np.ndarray, sfa: np.ndarray, sfb: np.ndarray, *, enable: bool) -> None:
        """One instruction: codes of A [128][64] and B [N][64], scale codes [.][4]."""
        data = self.cta.shared.data
        data[PLACES] = a[:, 0::2] | a[:, 1::2] << 4
        data[PLACES[:N] + 32768] = b[:, 0::2] | b[:, 1::2] << 4
        self.cta.shared.written[:65536] = True
        for column, codes in ((256, sfa), (264, sfb)):
            count = codes.shape[0] // 32
            words = np.ascontiguousarray(codes).view("<u4").reshape(count, 32)
            self.tmem.data[column : column + count] = np.tile(words, (1, 4))
            self.tmem.wrote(column, count)
        bits = [matrix_bits(1024 + start, stride=1024, swizzle=2) for start in (0, 32768)]
        issue(self.cta.warps[0], 1, 0, bits[0], bits[1], IDESC, enable, (), 256, 264, FORM, 0)
        va = E2M1[a] * np.repeat(E4M3[sfa], 16, axis=1)
        vb = E2M1[b] * np.repeat(E4M3[sfb], 16, axis=1)
        self.sums.append(vb @ va.T)

    def value(self) -> np.ndarray:
        """What TMEM holds, [n][row]."""
        self.tmem.settle(0, N)
        return self.tmem.floats[:N].copy()

    def rule(self, start: np.ndarray | None = None) -> np.ndarray:
        """Exact sums, rounded after each instruction: in Python's integers where float64 is not enough."""
        value = np.zeros((N, 128), np.float32) if start is None else start
        for products in self.sums:
            value = (value.astype(np.float64) + products).astype(np.float32)
        return value


def draw(rng: np.random.Generator, low: int, high: int) -> tuple[np.ndarray, ...]:
    return (
        rng.integers(0, 16, (128, 64), dtype=np.uint8),
        rng.integers(0, 16, (N, 64), dtype=np.uint8),
        rng.integers(low, high, (128, 4), dtype=np.uint8),
        rng.integers(low, high, (N, 4), dtype=np.uint8),
    )
