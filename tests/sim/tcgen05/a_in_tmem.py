"""MMAs whose A is in TMEM."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pytest_nvfp4.sim.tcgen05.mma import issue
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaForm
from pytest_nvfp4.sim.tcgen05.tmem import Tmem
from tests.sim.tcgen05.harness import make_ctas, own
from tests.sim.tcgen05.mma_case import K, draw, idesc, put, scale_words
from tests.sim.tcgen05.places import lane_column

A, SFA, SFB = 300, 400, 408


def in_containers(form: str, rows: np.ndarray) -> np.ndarray:
    """Rows of padded groups of 16 elements with each element in the middle of a byte, bit by bit."""
    bits = {"e2m1": 4, "e2m3": 6, "e3m2": 6}.get(form)
    if bits is None:
        return rows
    out = np.full(rows.shape, 0x81, np.uint8)  # what lies around an element must not matter
    for r, row in enumerate(rows):
        for group in range(0, row.size, 16):
            number = int.from_bytes(row[group : group + 16].tobytes(), "little")
            for i in range(16):
                out[r, group + i] |= (number >> bits * i & (1 << bits) - 1) << (8 - bits) // 2
    return out


def run_a_in_tmem(
    kind: str,
    form: str,
    *,
    m: int = 128,
    n: int = 32,
    group: int = 1,
    lane: int = 0,
    vector: int = 0,
    copies: bool = True,
    a_lane: int | None = None,
    spoil: Callable[[Tmem], None] | None = None,
) -> None:
    rng = np.random.default_rng(m + n)
    ctas = make_ctas(group)
    rows, k, packed = m // group, K[kind], K[kind] == 64
    values_a, values_b = [], []
    for cta in ctas:
        tmem = own(cta)
        va, da = draw(rng, form, (rows, k), packed=packed)
        vb, db = draw(rng, form, (n // group, k), packed=packed)
        b = put(cta, 1024, db, swizzle=2, mn=False)
        words = (
            in_containers(form, da.reshape(rows, 32)).view("<u4") if not packed else da.reshape(rows, 32).view("<u4")
        )
        for r in range(rows):
            at, _ = lane_column(r, 0, m=m, group=group, columns=n, align=lane)
            twice = (at, at + 64) if m // group == 64 and group == 2 and copies else (at,)
            for one in twice:
                tmem.data[A : A + 8, one] = words[r]
                tmem.some[A : A + 8, one] = True
        if vector:
            codes = rng.integers(0x30, 0x40, (max(rows, n), vector), dtype=np.uint8)
            scale_words(tmem, SFA, codes[:rows], first=0)
            scale_words(tmem, SFB, np.full((n, vector), 0x38, np.uint8), first=0)
            factors = (8 + (codes[:rows] & 7)) * 2.0 ** ((codes[:rows] >> 3).astype(int) - 10)
            va = va * np.repeat(factors, k // vector, axis=1)
        if spoil is not None:
            spoil(tmem)
        values_a.append(va)
        values_b.append(vb)
    what = MmaForm(kind, group, vector, True, 0, "test")
    d = 2 if kind == "i8" else 1
    bits = idesc(kind, form, form, m, n, d=d)
    a = (lane if a_lane is None else a_lane) << 16 | A
    issue(ctas[0].warps[0], 1, lane << 16, a, b, bits, False, (), SFA, SFB, what, 0)
    exact = np.concatenate(values_a) @ np.concatenate(values_b).T
    got = np.zeros((m, n), np.uint32)
    for rank, cta in enumerate(ctas):
        tmem = cta.unit(Tmem)
        tmem.settle(0, 512)
        for r in range(rows):
            for c in range(n):
                at, column = lane_column(r, c, m=m, group=group, columns=n, align=lane)
                got[rank * rows + r, c] = tmem.data[column, at]
    if kind == "i8":
        assert (got.view(np.int32) == exact).all()
    else:
        want = exact.astype(np.float32)
        assert np.abs(got.view(np.float32) - want).max() <= np.spacing(np.abs(want).max())
