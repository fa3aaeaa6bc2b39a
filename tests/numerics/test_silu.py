from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.numerics import fp16
from pytest_nvfp4.numerics.arrays import NumericsError
from pytest_nvfp4.numerics.judge import Reference, accumulation_bound, judge
from pytest_nvfp4.numerics.silu import gated, sigmoid
from tests.numerics.exact import random_exact
from tests.numerics.gated import Between, Dual, digits, fast_silu, half, silu
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


ROUNDED = st.sampled_from([{"gated": half}, {"up": half}])
"""Intermediates that one kernel keeps in fp16: silu or the other factor of the product."""


@given(st.integers(0, 2**32), st.integers(1, 24).map(lambda blocks: 16 * blocks), ROUNDED, st.booleans())
@settings(max_examples=80, deadline=None)
def test_one_factor_in_fp16_stays_within_the_bound(seed: int, k: int, rounded: dict[str, Between], low: bool) -> None:
    dual = Dual.random(seed, k=k, low=0x08 if low else 0x28, high=0x39, rows=16)
    verdict = judge(dual.kernel(fast_silu(0, divide=True), **rounded), gated(dual.gate, dual.up))
    assert verdict.ok, str(verdict)


def accepted(out: np.ndarray, reference: Reference, *, fp32: float = 0.0) -> np.ndarray:
    """Return which outputs GPU MODE's checker accepts; ``fp32`` is what arithmetic in fp32 adds to its tolerance."""
    got, want = fp16.to_float64(out), fp16.to_float64(reference.want)
    with np.errstate(invalid="ignore"):
        return (np.abs(got - want) <= (1e-3 + fp32) * (1 + np.abs(want))) | (got == want)


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3]), st.sampled_from([-1, 1]))
@settings(max_examples=40, deadline=None)
def test_what_is_within_the_bound_is_accepted_by_the_checker(seed: int, steps: int, sign: int) -> None:
    dual = Dual.random(seed, k=64, low=0x28, high=0x39, rows=16)
    assert dual.gate.order_free().all()
    assert dual.up.order_free().all()
    reference = gated(dual.gate, dual.up)
    out = fp16.round_nearest(fp16.to_float64(reference.want) * (1 + sign * steps * 2.0**-11)).view(np.uint16)
    near = np.abs(fp16.to_float64(out) - reference.values) <= reference.bound
    assert near.any()
    assert (accepted(out, reference, fp32=1e-5) | ~near).all()


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


def brain(x: np.ndarray) -> np.ndarray:
    """Return an intermediate truncated to bf16."""
    return (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


REFUSED: dict[str, dict[str, Between]] = {
    "the gate in fp16": {"gate": half},
    "both products in fp16": {"gate": half, "up": half},
    "all in fp16": {"gate": half, "up": half, "gated": half},
    "a factor in bf16": {"up": brain},
    "silu in bf16": {"gated": brain},
}
"""Intermediates with which a kernel fails GPU MODE's checker on some outputs."""


@pytest.mark.parametrize("name", REFUSED)
def test_intermediates_that_the_checker_refuses_leave_the_bound(name: str) -> None:
    dual = Dual.random(2, k=64, low=0x28, high=0x39, rows=128)
    reference = gated(dual.gate, dual.up)
    out = dual.kernel(fast_silu(0, divide=True), **REFUSED[name])
    verdict = judge(out, reference)
    assert not accepted(out, reference).all()
    assert not verdict.ok
    assert verdict.first[0].rule == "bound"


@given(st.integers(0, 2**32), st.sampled_from(["gate", "up"]), st.sampled_from([0.5, 0.875, 1.125, 2.0]))
@settings(max_examples=40, deadline=None)
def test_a_wrong_scale_factor_leaves_the_bound(seed: int, which: str, factor: float) -> None:
    dual = Dual.random(seed, k=64, low=0x30, high=0x39, rows=16)
    terms = getattr(dual, f"{which}_terms").copy()
    terms[..., :16] *= factor
    out = replace(dual, **{f"{which}_terms": terms}).kernel(fast_silu(0, divide=True), gated=half)
    verdict = judge(out, gated(dual.gate, dual.up))
    assert verdict.mismatches > out.size // 4


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
