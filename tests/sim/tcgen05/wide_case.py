"""MMAs of K = 96 over three pipeline stages of 128 bytes, placed byte by byte, as NVIDIA's sm_103 kernels do."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.tcgen05.mma import issue
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaForm
from pytest_nvfp4.sim.tcgen05.tmem import Tmem
from tests.sim.tcgen05.harness import make_ctas, matrix_bits, own
from tests.sim.tcgen05.mma_case import idesc
from tests.sim.tcgen05.places import E2M1, E4M3, k_major, lane_column

SFA, SFB, ELEMENTS, MMAS = 256, 320, 768, 8
STAGES = {"A": (1024 + 2 * 16384, 1024, 1024 + 16384), "B": (1024 + 65536, 1024 + 98304 + 32768, 1024 + 98304)}
"""Starts of the three stages, neither in order nor together."""


def make_b300s(count: int) -> list[Cta]:
    ctas = make_ctas(count, shared_bytes=229376)
    machine = Machine(model=for_arch("sm_103a"))
    for cta in ctas:
        cta.launch.machine = machine
    return ctas


def put_rows(cta: Cta, codes: np.ndarray, name: str) -> None:
    """Write rows of 768 packed elements into the three stages."""
    data = codes[:, 0::2] | codes[:, 1::2] << 4
    for row in range(len(data)):
        for byte in range(384):
            at = STAGES[name][byte // 128] - 1024 + k_major(row, byte % 128, swizzle=2, stride=1024)
            cta.shared.data[at] = data[row, byte]
            cta.shared.written[at] = True


def circular(name: str, number: int) -> int:
    """Descriptor of instruction ``number``: it begins in one stage and may go on in the next."""
    stage, offset = divmod(48 * number, 128)
    bits = matrix_bits(STAGES[name][stage] + offset, stride=1024, swizzle=2)
    then = STAGES[name][(stage + 1) % 3]
    return bits | 1 << 52 | then >> 4 << 16


def put_factors(tmem: Tmem, first: int, codes: np.ndarray) -> None:
    """Factor j of row r: byte j % 4 of lane r % 32, in four columns for each 128 rows and four factors."""
    rows, count = codes.shape
    blocks = -(-rows // 128)
    for r in range(rows):
        for j in range(count):
            column = first + j // 4 * 4 * blocks + r // 128 * 4 + r % 128 // 32
            for lane in range(r % 32, 128, 32):
                word = int(tmem.data[column, lane]) & ~(0xFF << 8 * (j % 4)) | int(codes[r, j]) << 8 * (j % 4)
                tmem.data[column, lane] = word
                tmem.some[column, lane] = True


def run_wide(kind: str, scale: str, vector: int, *, n: int = 128, group: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """D of eight instructions, as float32 ``[row][n]``, and what it should be.

    ``vector``: factors of a row and 64 elements, as the opcode has it.
    """
    rng = np.random.default_rng(vector + n)
    ctas = make_b300s(group)
    each, size = 3 * vector // 2, 64 // vector
    table = E4M3 if scale == "ue4m3" else 2.0 ** (np.arange(256) - 127)
    low, high = (0x30, 0x48) if scale == "ue4m3" else (125, 131)
    factors_b = rng.integers(low, high, (n, ELEMENTS // size), dtype=np.uint8)
    values_a, values_b = [], []
    for cta in ctas:
        tmem = own(cta)
        a, b = (rng.integers(0, 16, (rows, ELEMENTS), dtype=np.uint8) for rows in (128, n // group))
        put_rows(cta, a, "A")
        put_rows(cta, b, "B")
        factors_a = rng.integers(low, high, (128, ELEMENTS // size), dtype=np.uint8)
        put_factors(tmem, SFA, factors_a)
        put_factors(tmem, SFB, factors_b)
        values_a.append(E2M1[a] * np.repeat(table[factors_a], size, axis=1))
        values_b.append(E2M1[b])
    bits = idesc(kind, "e2m1", "e2m1", 128 * group, n, scale=int(scale == "ue8m0")) | 1 << 31
    form = MmaForm(kind, group, vector, False, 0, "test")
    blocks = -(-n // 128)
    for number in range(MMAS):
        word, sf_id = divmod(each * number, 4)
        issue(
            ctas[0].warps[0], 1, 0, circular("A", number), circular("B", number),
            bits | sf_id << 29 | sf_id << 4, number > 0, (),
            SFA + 4 * word | sf_id << 30, SFB + 4 * blocks * word | sf_id << 30, form, 0,
        )  # fmt: skip
    got = np.zeros((128 * group, n), np.uint32)
    for rank, cta in enumerate(ctas):
        tmem = cta.unit(Tmem)
        tmem.settle(0, 512)
        for r in range(128):
            for c in range(n):
                lane, column = lane_column(r, c, m=128 * group, group=group, columns=n)
                got[128 * rank + r, c] = tmem.data[column, lane]
    right = np.concatenate(values_b) * np.repeat(table[factors_b], size, axis=1)
    return got.view(np.float32), np.concatenate(values_a) @ right.T
