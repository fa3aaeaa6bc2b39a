from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.numerics import fp16
from pytest_nvfp4.numerics.arrays import NumericsError
from pytest_nvfp4.numerics.judge import accumulation_bound, judge
from pytest_nvfp4.numerics.silu import gated, sigmoid
from tests.numerics.exact import random_exact
from tests.numerics.gated import Dual, digits, fast_silu, silu
from tests.numerics.judged import made

RANGES = st.sampled_from([(0x08, 0x20), (0x20, 0x39), (0x28, 0x40), (0, 127)])
"""Scale codes under which products are small, of the order of 1, large, and all."""
DEPTHS = st.integers(1, 24).map(lambda blocks: 16 * blocks)


@given(st.integers(0, 2**32), DEPTHS, RANGES)
@settings(max_examples=40, deadline=None)
def test_values_are_those_of_decimal_arithmetic(seed: int, k: int, scales: tuple[int, int]) -> None:
    dual = Dual.random(seed, k=k, low=scales[0], high=scales[1])
    reference = gated(dual.gate, dual.up)
    exact = dual.by_decimals()
    with digits():
        for row, col in np.ndindex(*reference.values.shape):
            error = abs(Decimal(float(reference.values[row, col])) - exact[row][col])
            assert error <= abs(exact[row][col]) * Decimal(2) ** -45 + Decimal(2) ** -1000


@given(st.integers(0, 2**32), DEPTHS, RANGES, st.booleans(), st.booleans(), st.sampled_from([-1.0, 0.0, 1.0]))
@settings(max_examples=80, deadline=None)
def test_fp32_kernels_stay_within_the_bound(
    seed: int, k: int, scales: tuple[int, int], truncate: bool, divide: bool, error: float
) -> None:
    dual = Dual.random(seed, k=k, low=scales[0], high=scales[1])
    out = dual.kernel(fast_silu(error, divide=divide), truncate=truncate)
    verdict = judge(out, gated(dual.gate, dual.up))
    assert verdict.ok, str(verdict)


@given(st.integers(0, 2**32), DEPTHS, st.sampled_from([-1, 1]), st.sampled_from([-1, 1]))
@settings(max_examples=40, deadline=None)
def test_accumulators_at_the_ends_of_their_bounds_stay_within_it(seed: int, k: int, one: int, other: int) -> None:
    dual = Dual.random(seed, k=k, low=0x08, high=0x41)
    reference = gated(dual.gate, dual.up)
    unit = Decimal(2) ** -20
    slacks = [np.where(exact.order_free(), 0.0, accumulation_bound(exact)) for exact in (dual.gate, dual.up)]
    with digits():
        for row, col in np.ndindex(*reference.values.shape):
            g = int(dual.gate.units[row, col]) * unit + one * Decimal(float(slacks[0][row, col]))
            u = int(dual.up.units[row, col]) * unit + other * Decimal(float(slacks[1][row, col]))
            moved = abs(silu(g) * u - Decimal(float(reference.values[row, col])))
            assert moved <= Decimal(float(reference.slack[row, col]))


def test_the_bound_is_little_more_than_the_rounding_where_the_products_are_exact() -> None:
    dual = Dual.random(0, k=64, low=0x30, high=0x39, rows=16)
    assert dual.gate.order_free().all()
    assert dual.up.order_free().all()
    reference = gated(dual.gate, dual.up)
    half_ulp = 2.0**-11 * np.abs(reference.values) + 2.0**-25
    assert (reference.bound <= 1.02 * half_ulp).all()


WRONG = {
    "the gate without its factor": lambda x: sigmoid(x.astype(np.float64)).astype(np.float32),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: (x * sigmoid(1.702 * x.astype(np.float64))).astype(np.float32),
    "the sign of the exponent": lambda x: (x * sigmoid(-x.astype(np.float64))).astype(np.float32),
    "half of tanh": lambda x: (x * (0.5 + 0.4999 * np.tanh(0.5 * x.astype(np.float64)))).astype(np.float32),
    "no gate": lambda x: x,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_activation_leaves_the_bound(name: str) -> None:
    dual = Dual.random(1, k=64, low=0x28, high=0x39, rows=16)
    assert judge(dual.kernel(fast_silu(0, divide=True)), gated(dual.gate, dual.up)).ok
    assert not judge(dual.kernel(WRONG[name]), gated(dual.gate, dual.up)).ok


@pytest.mark.parametrize("dtype", [np.float16, None])
def test_products_rounded_before_the_activation_leave_the_bound(dtype: type | None) -> None:
    def narrow(x: np.ndarray) -> np.ndarray:
        if dtype is not None:
            return x.astype(dtype).astype(np.float64)
        return (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)  # bf16

    dual = Dual.random(2, k=64, low=0x28, high=0x39, rows=32)
    verdict = judge(dual.kernel(fast_silu(0, divide=True), between=narrow), gated(dual.gate, dual.up))
    assert not verdict.ok
    assert verdict.first[0].rule == "bound"


def test_the_products_are_not_interchangeable() -> None:
    dual = Dual.random(3, k=64, low=0x28, high=0x39, rows=8)
    out = dual.kernel(fast_silu(0, divide=False))
    assert judge(out, gated(dual.gate, dual.up)).ok
    assert not judge(out, gated(dual.up, dual.gate)).ok


def test_three_times_the_bound_is_wrong_and_the_slack_is_right() -> None:
    dual = Dual.random(4, k=128, low=0x08, high=0x41, rows=16)
    reference = gated(dual.gate, dual.up)
    for sign in (-1, 1):
        inside = fp16.round_nearest(reference.values + sign * 0.99 * reference.slack)
        assert judge(inside, reference).ok
        outside = fp16.round_nearest(reference.values + sign * 3 * reference.bound)
        assert judge(outside, reference).mismatches == outside.size


def test_special_values() -> None:
    nan, one, large = made([[1 << 20]], nan=True), made([[1 << 20]]), made([[300 << 20]])
    for gate, up in ((nan, one), (one, nan)):
        assert judge(np.full((1, 1), np.nan, np.float16), gated(gate, up)).ok
        assert not judge(np.zeros((1, 1), np.float16), gated(gate, up)).ok
    assert judge(np.full((1, 1), np.inf, np.float16), gated(large, large)).ok
    assert not judge(np.full((1, 1), 65504, np.float16), gated(large, large)).ok
    far = made([[-(2000 << 20)]])
    for zero in (0.0, -0.0):
        assert judge(np.full((1, 1), zero, np.float16), gated(far, large)).ok
    assert not judge(np.full((1, 1), 2.0**-24, np.float16), gated(far, large)).ok
    assert judge(np.zeros((1, 1), np.float16), gated(one, made([[0]]))).ok


def test_products_of_different_shapes_are_refused() -> None:
    with pytest.raises(NumericsError, match=r"\[1, 1\] and \[2, 3\]"):
        gated(made([[1]]), random_exact(0, 2, 3, 16)[0])
