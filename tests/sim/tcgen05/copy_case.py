"""Matrices in shared memory to copy to TMEM."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.sim.run.cta import Cta
from tests.sim.tcgen05.harness import matrix_bits
from tests.sim.tcgen05.places import PITCH, k_major


def matrix_in_shared(cta: Cta, start: int, rows: int, size: int, swizzle: int, seed: int) -> tuple[int, np.ndarray]:
    data = np.random.default_rng(seed).integers(0, 256, (rows, size), dtype=np.uint8)
    stride, leading = 8 * PITCH.get(swizzle, 16), 0 if swizzle else 128 * 20
    for r in range(rows):
        for k in range(size):
            at = start - 1024 + k_major(r, k, swizzle=swizzle, stride=stride, leading=leading)
            cta.shared.data[at] = data[r, k]
            cta.shared.written[at] = True
    return matrix_bits(start, stride=stride, leading=leading, swizzle=swizzle), data
