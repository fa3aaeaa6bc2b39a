"""``tcgen05.mma`` with A in TMEM, in each datapath layout."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.tcgen05.mma import issue
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaForm
from pytest_nvfp4.sim.tcgen05.tmem import Tmem
from tests.sim.tcgen05.harness import make_ctas, own
from tests.sim.tcgen05.mma_case import K, draw, idesc, put, scale_words
from tests.sim.tcgen05.places import lane_column

A, SFA, SFB = 300, 400, 408


def _run(kind, form, *, m=128, n=32, group=1, lane=0, vector=0, copies=True, a_lane=None, spoil=None):
    rng = np.random.default_rng(m + n)
    ctas = make_ctas(group)
    rows, k, packed = m // group, K[kind], K[kind] == 64
    values_a, values_b = [], []
    for cta in ctas:
        tmem = own(cta)
        va, da = draw(rng, form, (rows, k), packed=packed)
        vb, db = draw(rng, form, (n // group, k), packed=packed)
        b = put(cta, 1024, db, swizzle=2, mn=False)
        words = da.reshape(rows, 32).view("<u4")
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


@pytest.mark.parametrize(
    ("kind", "form", "how"),
    [
        ("f16", "f16", {}),
        ("f16", "bf16", {"m": 64}),
        ("f16", "bf16", {"m": 64, "lane": 16}),
        ("f16", "f16", {"m": 256, "group": 2}),
        ("f16", "f16", {"m": 128, "group": 2}),
        ("tf32", "tf32", {}),
        ("f8f6f4", "e4m3", {}),
        ("i8", "s8", {}),
        ("mxf4nvf4", "e2m1", {"vector": 4}),
    ],
)
def test_every_layout(kind, form, how) -> None:
    _run(kind, form, **how)


def test_a_copy_is_missing_in_layout_b() -> None:
    with pytest.raises(Fault, match="lane 64 of TMEM column 300 was never written"):
        _run("f16", "f16", m=128, group=2, copies=False)


def test_the_copies_differ_in_layout_b() -> None:
    def spoil(tmem: Tmem) -> None:
        tmem.data[A + 3, 70] ^= 1

    with pytest.raises(Unsupported, match="do not hold a copy"):
        _run("f16", "f16", m=128, group=2, spoil=spoil)


def test_a_and_d_must_be_in_the_same_lanes() -> None:
    with pytest.raises(Fault, match="must start at the same lane"):
        _run("f16", "f16", m=64, lane=0, a_lane=16)


def test_containers_of_six_bits_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="8-bit containers"):
        _run("f8f6f4", "e2m3")


def test_a_waits_for_nobody_but_the_accumulator_it_was() -> None:
    """A product that is the next one's A is computed first."""
    ctas = make_ctas()
    tmem = own(ctas[0])
    rng = np.random.default_rng(0)
    _, da = draw(rng, "tf32", (128, 8), packed=False)
    _, db = draw(rng, "tf32", (8, 8), packed=False)
    a, b = put(ctas[0], 1024, da, swizzle=2, mn=False), put(ctas[0], 33792, db, swizzle=2, mn=False)
    bits = idesc("tf32", "tf32", "tf32", 128, 8)
    w = ctas[0].warps[0]
    issue(w, 1, 64, a, b, bits, False, (), 0, 0, MmaForm("tf32", 1, 0, False, 0, "test"), 0)
    issue(w, 1, 128, 64, b, bits, False, (), 0, 0, MmaForm("tf32", 1, 0, True, 0, "test"), 0)
    tmem.settle(0, 512)
    cut = (tmem.data[64:72].T & 0xFFFFE000).view(np.float32).astype(np.float64)
    other = (db.reshape(8, 32).view("<u4") & 0xFFFFE000).view("<f4").astype(np.float64)
    assert ((cut @ other.T).astype(np.float32) == tmem.floats[128:136].T).all()
