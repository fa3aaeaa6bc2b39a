"""``tcgen05.mma.ws``: its shapes and layouts, and the two blocks of A in TMEM of M = 64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.tcgen05.mma import issue, issue_ws
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaForm
from tests.sim.tcgen05.harness import make_ctas, own
from tests.sim.tcgen05.mma_case import K, draw, idesc, put, rounded, run
from tests.sim.tcgen05.places import lane_column

A = 300


@pytest.mark.parametrize(
    ("kind", "a", "b", "m", "n", "how"),
    [
        ("f16", "f16", "f16", 32, 64, {}),
        ("f16", "bf16", "bf16", 64, 128, {"b_mn": True}),
        ("tf32", "tf32", "tf32", 64, 64, {}),
        ("f8f6f4", "e4m3", "e5m2", 32, 256, {}),
        ("f8f6f4", "e4m3", "e4m3", 128, 64, {"a_mn": True}),
    ],
)
def test_each_layout(kind: str, a: str, b: str, m: int, n: int, how: dict[str, Any]) -> None:
    got, partial, _ = run(kind, a, b, m=m, n=n, ws=True, **how)
    want = rounded(partial, np.float32)
    assert np.abs(got.view(np.float32) - want).max() <= np.spacing(np.abs(want).max())


def test_integers() -> None:
    got, partial, _ = run("i8", "s8", "u8", m=64, n=64, d=2, ws=True)
    assert (got.view(np.int32) == partial.sum(axis=0)).all()


@pytest.mark.parametrize(
    ("m", "n", "legal"),
    [(64, 32, "N 64, 128 or 256"), (256, 64, "M must be 32, 64 or 128"), (32, 192, "N 64, 128 or 256")],
)
def test_other_shapes(m: int, n: int, legal: str) -> None:
    with pytest.raises(Fault, match=legal):
        run("f16", "f16", "f16", m=m, n=n, ws=True)


def in_tmem(m: int, kind: str, form: str, *, blocks: int, steps: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """D of ``steps`` instructions whose A lies in TMEM, with ``blocks`` different ones of it, and what it must be."""
    rng = np.random.default_rng(m)
    (cta,) = make_ctas()
    tmem = own(cta)
    n, parts = 64, 128 // m
    vb, db = draw(rng, form, (n, K[kind]), packed=False)
    b = put(cta, 33792, db, swizzle=2, mn=False)
    drawn = [draw(rng, form, (m, K[kind]), packed=False) for _ in range(blocks)]
    of = [drawn[part % blocks] for part in range(parts)]
    tmem.data[A : A + 8] = np.concatenate([words.reshape(m, 32).view("<u4") for _, words in of]).T
    tmem.wrote(A, 8)
    want = np.concatenate([values @ vb[n // parts * i : n // parts * (i + 1)].T for i, (values, _) in enumerate(of)], 1)
    ws = MmaForm(kind, 1, 0, True, 0, "test", ws=True)
    bits = idesc(kind, form, form, m, n, d=2 if kind == "i8" else 1)
    for step in range(steps):
        issue_ws(cta.warps[0], 1, 0, A, b, bits, step > 0, 0, ws, 0)
        if step == 0:
            tmem.settle(0, 64)  # the next one adds to what lies in TMEM
    tmem.settle(0, 512)
    places = [[lane_column(row, c, m=m, group=1, columns=n, ws=True) for c in range(n)] for row in range(m)]
    got = np.array([[tmem.data[column, lane] for lane, column in row] for row in places], np.uint32)
    return got, steps * want


@pytest.mark.parametrize(("m", "blocks"), [(64, 2), (64, 1), (32, 1), (128, 1)])
def test_a_in_tmem(m: int, blocks: int) -> None:
    """With M = 64 each half of the lanes multiplies its own block of A with its half of N."""
    got, want = in_tmem(m, "f8f6f4", "e4m3", blocks=blocks, steps=3)
    assert np.abs(got.view(np.float32) - want).max() <= np.spacing(np.float32(np.abs(want).max()))
    got, want = in_tmem(m, "i8", "s8", blocks=blocks, steps=2)
    assert (got.view(np.int32) == want).all()


def test_copies_of_a_for_32_rows_differ() -> None:
    with pytest.raises(Unsupported, match="lanes 32-127 do not hold a copy of lanes 0-31"):
        in_tmem(32, "i8", "s8", blocks=4)


def test_a_mask_and_a_shift_are_refused() -> None:
    _, _, (cta,) = run("f16", "f16", "f16", m=64, n=64, count=1, ws=True)
    ws = MmaForm("f16", 1, 0, True, 0, "test", ws=True)
    with pytest.raises(Unsupported, match="zero-column mask"):
        issue_ws(cta.warps[0], 1, 0, A, 0, idesc("f16", "f16", "f16", 64, 64), False, 1, ws, 0)
    with pytest.raises(Unsupported, match="maximum shift"):
        issue_ws(cta.warps[0], 1, 0, A, 0, idesc("f16", "f16", "f16", 64, 64) | 1 << 30, False, 0, ws, 0)
    plain = MmaForm("f16", 1, 0, True, 0, "test")
    with pytest.raises(Fault, match="reserved bits"):
        issue(cta.warps[0], 1, 0, A, 0, idesc("f16", "f16", "f16", 64, 64) | 1 << 30, False, (), 0, 0, plain, 0)
