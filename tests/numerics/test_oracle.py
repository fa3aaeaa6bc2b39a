from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.numerics import fp16, judge, matmul, oracle
from pytest_nvfp4.numerics.arrays import NumericsError
from pytest_nvfp4.numerics.families import FAMILIES
from pytest_nvfp4.numerics.formats import E2M1, E4M3
from pytest_nvfp4.numerics.oracle import Exact, OracleError, OracleLimitError, certify_product, exact_product
from pytest_nvfp4.numerics.packing import pack, unpack
from pytest_nvfp4.problem import GPUMODE_BENCH, Group, Problem
from tests.numerics.exact import fp32_sum, products_of, random_exact, tensor_core, value, wide_sum

from .oracles import dequantise


@given(st.integers(0, 2**32), st.integers(0, 3), st.integers(1, 3), st.integers(1, 30).map(lambda half: 2 * half))
@settings(max_examples=40, deadline=None)
def test_sums_are_those_of_fractions(seed: int, m: int, n: int, k: int) -> None:
    exact, (a, b, sfa, sfb) = random_exact(seed, m, n, k)
    assert exact.shape == (m, n)
    for row in range(m):
        for col in range(n):
            products = [value(a, sfa, row, i) * value(b, sfb, col, i) for i in range(k)]
            assert Fraction(int(exact.units[row, col]), 2**20) == sum(products)
            assert Fraction(int(exact.magnitude[row, col]), 2**20) == sum(map(abs, products))
            quantum = Fraction(int(exact.step_a[row]) * int(exact.step_b[col]), 2**20)
            assert all((product / quantum).denominator == 1 for product in products)


def test_float64_agrees_where_it_is_exact() -> None:
    exact, (a, b, sfa, sfb) = random_exact(3, 70, 130, 512, low=0x20, high=0x48)
    assert exact.magnitude.max() < 2**53
    assert (exact.values() == dequantise(a, sfa) @ dequantise(b, sfb).T).all()


@pytest.mark.parametrize("k", [1184, 1200, 4096, 7168])
def test_the_largest_products_at_the_edges_of_chunks(k: int) -> None:
    packed, scales = wide_sum(k)
    exact = exact_product(a=packed, b=packed, sfa=scales, sfb=scales)
    assert int(exact.units[0, 0]) == (k - 16) * oracle.LARGEST_OPERAND**2 + 1


def test_plain_float64_would_lose_the_last_bit() -> None:
    """Negative control: the case above is one that a single float64 product gets wrong."""
    packed, scales = wide_sum(7168)
    values = dequantise(packed, scales)
    assert int((values @ values.T)[0, 0] * 2**20) != (7168 - 16) * oracle.LARGEST_OPERAND**2 + 1


def test_the_limit_is_stated_and_kept() -> None:
    assert oracle.MAX_K * oracle.LARGEST_OPERAND**2 < 2**63 <= (oracle.MAX_K + 1) * oracle.LARGEST_OPERAND**2
    k = oracle.MAX_K // 16 * 16 + 16
    largest = np.full((1, k // 16), E4M3.largest, dtype=np.uint8)
    sixes = np.full((1, k // 2), 0x77, dtype=np.uint8)
    with pytest.raises(OracleLimitError, match=f"K = {k}.*{oracle.MAX_K}"):
        exact_product(a=sixes, b=sixes, sfa=largest, sfb=largest)
    inside = exact_product(a=sixes[:, 8:], b=sixes[:, 8:], sfa=largest[:, 1:], sfb=largest[:, 1:])
    assert int(inside.units[0, 0]) == (k - 16) * oracle.LARGEST_OPERAND**2
    smaller = np.full_like(largest, 0x76)
    beyond = exact_product(a=sixes, b=sixes, sfa=smaller, sfb=smaller)
    assert int(beyond.units[0, 0]) == k * (oracle.LARGEST_OPERAND // 2) ** 2


def test_blocks_of_rows_and_columns_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, (a, b, sfa, sfb) = random_exact(5, 45, 70, 160)
    for name, size in (("_ROWS_A", 20), ("_ROWS_B", 33), ("_CHUNK", 48)):
        monkeypatch.setattr(oracle, name, size)
    parts = exact_product(a=a, b=b, sfa=sfa, sfb=sfb)
    for name in ("units", "magnitude", "step_a", "step_b"):
        assert (getattr(parts, name) == getattr(whole, name)).all()


def test_a_product_that_is_not_exact_is_found() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-99, 99, (5, 32), dtype=np.int32), rng.integers(-99, 99, (7, 32), dtype=np.int32)
    product = a.astype(np.int64) @ b.astype(np.int64).T
    certify_product(product, a, b)
    product[3, 2] += 1
    with pytest.raises(OracleError, match="BLAS"):
        certify_product(product, a, b)


def test_an_inexact_blas_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def single(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float64)

    monkeypatch.setattr(oracle.matmul, "on_one_thread", single)
    with pytest.raises(OracleError):
        random_exact(1, 16, 16, 512)


def test_nan_scales_make_rows_and_columns_nan() -> None:
    _, (a, b, sfa, sfb) = random_exact(9, 6, 5, 64)
    sfa[2, 3] = 0x7F
    sfb[4, 0] = 0x7F
    a[2] = 0
    exact = exact_product(a=a, b=b, sfa=sfa, sfb=sfb)
    with np.errstate(invalid="ignore"):
        expected = np.isnan(dequantise(a, sfa) @ dequantise(b, sfb).T)
    assert (exact.nan == expected).all()
    assert exact.nan[2].all()
    assert exact.nan[:, 4].all()
    assert exact.nan.sum() == 5 + 6 - 1
    assert (np.isnan(exact.rounded()) == expected).all()
    assert (np.isnan(exact.values()) == expected).all()


def test_rounding_overflows_and_keeps_subnormals() -> None:
    scales = np.array([[0x7E], [0x01], [0x01], [0x38]], dtype=np.uint8)
    codes = np.zeros((4, 16), dtype=np.uint8)
    codes[0], codes[1, 0], codes[2, :2], codes[3, :2] = 7, 1, (1, 9), (8, 8)
    exact = exact_product(a=pack(codes), b=pack(codes), sfa=scales, sfb=scales)
    bits = exact.rounded().view(np.uint16)
    assert bits[0, 0] == 0x7C00
    assert bits[1, 1] == 2**4  # 2^-20 in units of 2^-24
    assert bits[3, 3] == 0  # (-0) * (-0) summed: +0
    assert bits[1, 3] == 0


def test_scale_factors_with_a_sign_bit_are_rejected_unless_asked_for() -> None:
    _, (a, b, sfa, sfb) = random_exact(4, 3, 3, 32, low=1)
    positive = exact_product(a=a, b=b, sfa=sfa, sfb=sfb)
    sfb[1, 1] |= 0x80
    with pytest.raises(NumericsError, match=r"sfb\[1, 1\] = 0x.. has its sign bit set"):
        exact_product(a=a, b=b, sfa=sfa, sfb=sfb)
    signed = exact_product(a=a, b=b, sfa=sfa, sfb=sfb, signed_scales=True)
    assert (signed.values() == dequantise(a, sfa) @ dequantise(b, sfb).T).all()
    assert (signed.units[:, 1] != positive.units[:, 1]).any()


def test_wrong_shapes_are_named() -> None:
    _, (a, b, sfa, sfb) = random_exact(0, 3, 4, 64)
    with pytest.raises(NumericsError, match=r"sfa has shape \[3, 3\], not \[3, 4\]"):
        exact_product(a=a, b=b, sfa=sfa[:, :3], sfb=sfb)
    with pytest.raises(NumericsError, match="a has k = 64 but b has k = 62"):
        exact_product(a=a, b=b[:, :-1], sfa=sfa, sfb=sfb)
    with pytest.raises(NumericsError, match="not \\[rows, k // 2\\]"):
        exact_product(a=a[0], b=b, sfa=sfa, sfb=sfb)


def test_order_free_outputs_are_the_same_in_every_order() -> None:
    rng = np.random.default_rng(11)
    exact, parts = random_exact(8, 12, 12, 256, low=0x20, high=0x38)
    order_free = exact.order_free()
    assert order_free.any()
    for row, col in np.argwhere(order_free)[:40]:
        products = products_of(parts, row, col)
        for _ in range(5):
            assert fp32_sum(rng.permutation(products)) == exact.values()[row, col]


def test_elsewhere_the_order_shows() -> None:
    """Negative control: outputs that are not order-free do change with the order of accumulation."""
    rng = np.random.default_rng(12)
    exact, parts = random_exact(8, 4, 4, 2048, low=0x01, high=0x7F)
    assert not exact.order_free().any()
    changed = 0
    for row, col in np.ndindex(4, 4):
        products = products_of(parts, row, col)
        changed += len({float(fp32_sum(rng.permutation(products))) for _ in range(5)}) > 1
    assert changed >= 8


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_norms_and_sums_of_magnitudes_agree_on_what_is_order_free(family: str) -> None:
    exact = FAMILIES[family].group(Problem("p", (Group(40, 128, 512),)), 0).exact()
    summed = replace(exact, all_order_free=False)
    assert (exact.order_free() == summed.order_free()).all()
    if exact.all_order_free:
        assert judge.Reference.of(exact).order_free.all()


def test_norms_do_not_promise_what_the_sums_refuse() -> None:
    """Equal operands, where the product of the norms is the sum: from 2^24 steps on, none is order-free."""
    promised = []
    for scale in range(0x08, 0x78, 4):
        packed, scales = np.full((1, 32), 0x11, np.uint8), np.full((1, 4), 0x08, np.uint8)
        packed[0, 0], scales[0, 1:] = 0x71, scale
        exact = exact_product(a=packed, b=packed, sfa=scales, sfb=scales)
        assert exact.all_order_free <= bool(replace(exact, all_order_free=False).order_free().all())
        promised.append(exact.all_order_free)
    assert promised[0]
    assert not promised[-1]


def test_an_order_free_sum_at_its_limit() -> None:
    """Just below 2^24 quanta every order is exact; from there on one more quantum can be lost."""
    packed, scales = np.zeros((1, 8), np.uint8), np.zeros((1, 1), np.uint8)
    assert exact_product(a=packed, b=packed, sfa=scales, sfb=scales).order_free().all()
    for magnitude, free in ((2**24 - 1, True), (2**24, False)):
        one = Exact(
            units=np.array([[magnitude]]),
            magnitudes=lambda magnitude=magnitude: np.array([[magnitude]]),
            step_a=np.array([1]),
            step_b=np.array([1]),
            nan_rows=np.array([False]),
            nan_columns=np.array([False]),
            k=16,
        )
        assert one.order_free().all() == free


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize(("low", "high"), [(0x01, 0x7F), (0x08, 0x41), (0x70, 0x7F)])
def test_the_bound_holds_for_rounding_and_truncating_accumulators(truncate: bool, low: int, high: int) -> None:
    exact, (a, b, sfa, sfb) = random_exact(21, 24, 24, 1536, low=low, high=high)
    products = dequantise(a, sfa)[:, None, :] * dequantise(b, sfb)[None, :, :]
    out = fp16.round_nearest(tensor_core(products, truncate=truncate))
    assert judge.judge(out, exact).ok


def test_the_bound_is_not_so_wide_that_fp16_accumulation_passes() -> None:
    exact, (a, b, sfa, sfb) = random_exact(22, 24, 24, 1536, low=0x08, high=0x41)
    products = dequantise(a, sfa)[:, None, :] * dequantise(b, sfb)[None, :, :]
    total = np.zeros((24, 24), np.float16)
    for start in range(0, 1536, 64):
        total = (total + products[..., start : start + 64].sum(axis=-1)).astype(np.float16)
    assert judge.judge(total, exact).mismatches > 200


def test_packed_pairs_are_decoded_low_nibble_first() -> None:
    every = np.arange(256, dtype=np.uint8)[:, None].repeat(8, axis=1)
    scales = np.full((256, 1), 0x38, np.uint8)
    operands = oracle._operands(every, E4M3.decode_units(scales), slice(0, 1))
    assert (operands == E2M1.decode_units(unpack(every)) * 512).all()


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (48, 48, 112), (49, 97, 113), (3, 200, 500), (0, 5, 7), (5, 4, 0)]
)
def test_products_in_pieces(m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(m + n + k)
    a, b = rng.integers(-9999, 9999, (m, k)), rng.integers(-9999, 9999, (n, k))
    assert (matmul.product(a.astype(np.float64), b.astype(np.float64)) == a @ b.T).all()


@pytest.mark.slow
def test_the_largest_benchmark_shape() -> None:
    problem = GPUMODE_BENCH[0]
    for index in (0, 5):
        inputs = FAMILIES["all_scale"].group(problem, index)
        exact = inputs.exact()
        assert judge.judge(exact.rounded(), exact).ok
        rng = np.random.default_rng(index)
        for _ in range(5):
            row, col = int(rng.integers(exact.shape[0])), int(rng.integers(exact.shape[1]))
            products = products_of((inputs.a, inputs.b, inputs.sfa, inputs.sfb), row, col)
            assert sum((Fraction(x) for x in products.tolist()), Fraction(0)) * 2**20 == int(exact.units[row, col])


def test_a_whole_official_group_by_integers() -> None:
    """An independent route: object-free int64 einsum over decoded integers, no float64 anywhere."""
    inputs = FAMILIES["all_scale"].group(Problem("p", (Group(40, 128, 256),)), 0)
    exact = inputs.exact()
    a = E2M1.decode_units(unpack(inputs.a)).astype(np.int64) * np.repeat(E4M3.decode_units(inputs.sfa), 16, axis=1)
    b = E2M1.decode_units(unpack(inputs.b)).astype(np.int64) * np.repeat(E4M3.decode_units(inputs.sfb), 16, axis=1)
    assert (np.einsum("mk,nk->mn", a, b) == exact.units).all()
    assert (np.einsum("mk,nk->mn", np.abs(a), np.abs(b)) == exact.magnitude).all()
