"""``tcgen05.mma`` with A in TMEM, in each datapath layout."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.tcgen05.mma import issue
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaForm
from pytest_nvfp4.sim.tcgen05.tmem import Tmem
from tests.sim.tcgen05.a_in_tmem import A, run_a_in_tmem
from tests.sim.tcgen05.harness import make_ctas, own
from tests.sim.tcgen05.mma_case import draw, idesc, put


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
        ("f8f6f4", "e2m1", {}),
        ("f8f6f4", "e2m3", {"m": 64}),
        ("f8f6f4", "e3m2", {"m": 256, "group": 2}),
        ("i8", "s8", {}),
        ("mxf4nvf4", "e2m1", {"vector": 4}),
    ],
)
def test_every_layout(kind, form, how) -> None:
    run_a_in_tmem(kind, form, **how)


def test_a_copy_is_missing_in_layout_b() -> None:
    with pytest.raises(Fault, match="lane 64 of TMEM column 300 was never written"):
        run_a_in_tmem("f16", "f16", m=128, group=2, copies=False)


def test_the_copies_differ_in_layout_b() -> None:
    def spoil(tmem: Tmem) -> None:
        tmem.data[A + 3, 70] ^= 1

    with pytest.raises(Unsupported, match="do not hold a copy"):
        run_a_in_tmem("f16", "f16", m=128, group=2, spoil=spoil)


def test_a_and_d_must_be_in_the_same_lanes() -> None:
    with pytest.raises(Fault, match="must start at the same lane"):
        run_a_in_tmem("f16", "f16", m=64, lane=0, a_lane=16)


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


@pytest.mark.parametrize("group", [1, 2])
def test_a_shift_of_a_is_seen_by_the_next_product(group: int) -> None:
    """Row i becomes row i + 1 behind the product, in each CTA; the last row of each 32 stays."""
    ctas = make_ctas(group)
    rng = np.random.default_rng(0)
    rows, values = [], []
    for cta in ctas:
        tmem = own(cta)
        va, da = draw(rng, "tf32", (128, 8), packed=False)
        vb, db = draw(rng, "tf32", (16 // group, 8), packed=False)
        b = put(cta, 33792, db, swizzle=2, mn=False)
        tmem.data[A : A + 8] = da.reshape(128, 32).view("<u4").T
        tmem.wrote(A, 8)
        rows.append(va)
        values.append(vb)
    bits = idesc("tf32", "tf32", "tf32", 128 * group, 16)
    w = ctas[0].warps[0]
    for number, shifts in enumerate((True, True, False, False)):
        form = MmaForm("tf32", group, 0, True, 0, "test", shifts)
        issue(w, 1, 32 * number, A, b, bits, False, (), 0, 0, form, 0)
    for cta, of in zip(ctas, rows, strict=True):
        tmem = cta.unit(Tmem)
        tmem.settle(0, 512)
        for number, by in enumerate((0, 1, 2, 2)):
            shifted = of[[min(row + by, row | 31) for row in range(128)]]
            want = (shifted @ np.concatenate(values).T).astype(np.float32)
            assert np.abs(tmem.floats[32 * number : 32 * number + 16].T - want).max() <= np.spacing(np.abs(want).max())


def test_a_shift_of_fewer_rows_than_128() -> None:
    ctas = make_ctas()
    tmem = own(ctas[0])
    tmem.wrote(A, 8)
    _, db = draw(np.random.default_rng(0), "tf32", (8, 8), packed=False)
    b = put(ctas[0], 33792, db, swizzle=2, mn=False)
    bits = idesc("tf32", "tf32", "tf32", 64, 8)
    with pytest.raises(Fault, match="ashift with M = 64"):
        issue(ctas[0].warps[0], 1, 0, A, b, bits, False, (), 0, 0, MmaForm("tf32", 1, 0, True, 0, "test", True), 0)
