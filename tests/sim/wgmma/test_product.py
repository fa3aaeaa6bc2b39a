"""The bound that lets a chain be one fp32 product, and what happens where it does not hold."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.sim.wgmma import mma_sync, product
from pytest_nvfp4.sim.wgmma.formats import OPERAND_TYPES, lowest_bit
from pytest_nvfp4.sim.wgmma.product import ACCUMULATORS, Product, accumulate
from tests.sim.wgmma.images import TYPES
from tests.sim.wgmma.oracle import aligned_sum
from tests.sim.wgmma.products import one_by_one, products

F32, F16, S32 = ACCUMULATORS["f32"], ACCUMULATORS["f16"], ACCUMULATORS["s32"]
ROWS = slice(0, 16)


@given(products(), st.sampled_from([F32, F16]))
def test_where_the_bound_holds_any_order_gives_the_same_bits(drawn, accumulator):
    product, start = drawn
    if accumulator is F16 and start is not None:
        with np.errstate(over="ignore"):
            start = start.astype(np.float16)
    if not product.exact(accumulator, start):
        return
    got = accumulate(product, start, accumulator, rows=ROWS)
    want = one_by_one(product, start, accumulator.dtype)
    assert np.array_equal(got, want)
    # The claim itself, in rationals: every sum of any subset of terms is representable, so the whole is.
    a, b = product.a, product.b
    for m, n in ((0, 0), (15, 7), (7, 3)):
        total = sum((Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[m], b[n], strict=True)), Fraction(0))
        total += 0 if start is None else Fraction(float(start[m, n]))
        assert Fraction(float(got[m, n])) == total


@given(products(), st.sampled_from([F32, F16]))
def test_bounds_change_no_bits(drawn, accumulator):
    """Sums with and without bounds, which leave most elements of small whole numbers to one product."""
    drawn_product, start = drawn
    with np.errstate(over="ignore"):
        start = None if start is None else start.astype(accumulator.dtype)
    assert drawn_product.small
    plain = accumulate(drawn_product, start, accumulator, rows=ROWS)
    with mock.patch.object(product, "_SMALL", 0):
        bounded = accumulate(drawn_product, start, accumulator, rows=ROWS)
    assert plain.tobytes() == bounded.tobytes()


@given(products())
def test_elsewhere_instructions_are_added_one_by_one(drawn):
    product, start = drawn
    got = accumulate(product, start, F32, rows=ROWS)
    want = one_by_one(product, start, np.float32)
    # An instruction truncates its terms and its sum, by less than 2^-20 of the largest term, and a sum near the largest
    # float32 may fall to either side of it.
    least = 2.0 ** product._formats[0].least
    with np.errstate(all="ignore"):
        a, b = (np.where(x == 0, 0, np.maximum(np.abs(x.astype(np.float64)), least)) for x in (product.a, product.b))
        terms = a @ b.T + (0 if start is None else np.abs(start))
        near = np.abs(got.astype(np.float64) - want) <= product.count * (2.0**-20 * terms + 2.0**-149)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    assert (same | near | ~(terms < 1e38)).all()


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([1.0], 0),
        ([0.0], 1000),
        ([3.0, 0.75], -2),
        ([2.0**-149], -149),
        ([np.inf, 8.0, np.nan], 3),
        ([1 + 2.0**-23], -23),
    ],
)
def test_lowest_bit(values, want):
    assert lowest_bit(np.array(values, np.float32)) == want


@given(st.sampled_from(["f16", "bf16", "e4m3", "e5m2"]), st.integers(0, 2**16 - 1))
def test_the_quantum_of_a_code_divides_it(name, code):
    form = OPERAND_TYPES[name]
    pattern = np.array([[code & (2**form.bits - 1)]], form.codes)
    value = form.decode(pattern)
    quantum = form.quantum(pattern, value)
    if np.isfinite(value).all() and value.any():
        whole = Fraction(float(value[0, 0])) / Fraction(2) ** quantum
        assert whole.denominator == 1
        assert whole.numerator % 2 == 1


def test_the_bound_is_not_always_and_not_never():
    form = OPERAND_TYPES["f16"]
    small = np.full((16, 64), 0.5, np.float16).view(np.uint16)
    wide = small.copy()
    wide[0, 0] = np.array(2.0**-20, np.float16).view(np.uint16)
    for codes_, want in ((small, True), (wide, False)):
        product = Product(codes_, codes_[:8], a_format=form, b_format=form, count=4)
        assert product.exact(F32, None) is want
    infinite = small.copy()
    infinite[0, 0] = 0x7C00
    assert not Product(infinite, small[:8], a_format=form, b_format=form, count=4).exact(F32, None)


def test_undefined_rows_are_marked_and_spoil_no_other():
    form = OPERAND_TYPES["f16"]
    ones = np.ones((16, 8), np.float16).view(np.uint16)
    undefined = np.zeros((2, 8), np.bool_)
    undefined[1, 3] = True
    got = accumulate(
        Product(ones, ones[:8], a_format=form, b_format=form, count=2, b_undefined=undefined), None, F32, rows=ROWS
    )
    assert np.isnan(got[:, 3]).all()
    assert (np.delete(got, 3, axis=1) == 8).all()


def test_saturation_happens_after_every_instruction():
    form = OPERAND_TYPES["s8"]
    a = np.zeros((16, 2), np.uint8)
    a[:, 0], a[:, 1] = 100, 0x9C  # 100, -100
    b = np.full((8, 2), 100, np.uint8)
    start = np.full((16, 8), 2**31 - 1, np.int32)
    product = Product(a, b, a_format=form, b_format=form, count=2)
    assert (accumulate(product, start, S32, rows=ROWS, saturate=True) == 2**31 - 1 - 10000).all()
    assert (accumulate(product, start, S32, rows=ROWS) == 2**31 - 1).all()


@pytest.mark.parametrize(
    ("name", "centre", "kept", "fraction"),
    [
        ("f16", 0, 25, 23),
        ("f16", -16, 25, 23),
        ("tf32", 0, 25, 23),
        ("e4m3", 0, 13, 13),
        ("e4m3", -8, 13, 13),
        ("e5m2", 0, 13, 13),
        ("bf16", 0, 25, 23),
        # Products near the largest and below the least fp32 number, and sums that are subnormal.
        ("bf16", 48, 25, 23),
        ("bf16", -48, 25, 23),
        ("tf32", -66, 25, 23),
        ("bf16", -76, 25, 23),
    ],
)
def test_wgmma_cuts_below_the_largest_exponent(name, centre, kept, fraction):
    form = OPERAND_TYPES[name]
    random = np.random.default_rng(3)
    if form.bits == 8:
        # The first codes are subnormal numbers.
        a, b = (random.integers(0, 0x70 if not centre else 12, (rows, 64)).astype(np.uint8) for rows in (16, 8))
        a |= (random.integers(0, 2, a.shape) << 7).astype(np.uint8)
    else:
        a, b = (random.standard_normal((rows, 64)) * np.exp2(centre) for rows in (16, 8))
        a *= np.exp2(random.integers(-9, 9, a.shape))
        a[3], b[:, 16:32] = 0, 0
        a, b = (x.astype(np.float32).astype(TYPES[name][0]).view(form.codes) for x in (a, b))
    start = (random.standard_normal((16, 8)) * 100 * np.exp2(2.0 * centre)).astype(np.float32)
    start[:, 5] = 0
    product = Product(a, b, a_format=form, b_format=form, count=4)
    got = accumulate(product, start, F32, rows=ROWS)
    for m in range(16):
        for n in range(8):
            want = aligned_sum(product.a[m], product.b[n], start[m, n], 4, kept, fraction, form.least)
            assert Fraction(float(got[m, n])) == want, (m, n)
    assert not np.signbit(got[got == 0]).any()  # on an H200, sums of -0, and what is cut to nothing, are +0
    assert (got != one_by_one(product, start, np.float32)).any()  # whose sums are rounded once


H200 = np.load(Path(__file__).with_name("h200_sums.npz"))
"""Sums of four instructions (``half``: of eight, with half the depth) on an H200, driver 580.159.04, CUDA 13.0.

By type, magnitude and spread of the factors, many of which are subnormal or zero: a (16, k), b (8, k) and c (16, 8),
and the results of wgmma, and of mma.sync, with an f32 and an f16 accumulator (``wgmma16``, ``mma16``).
"""


@pytest.mark.parametrize("name", sorted({key.rpartition("/")[0] for key in H200.files}))
def test_sums_are_those_of_an_h200(name):
    form = OPERAND_TYPES[name.split()[0]]
    a, b, c = (H200[f"{name}/{operand}"] for operand in "abc")
    kinds = [kind for kind in ("wgmma", "mma", "half", "wgmma16", "mma16") if f"{name}/{kind}" in H200.files]
    assert len(kinds) == (3 if form.name in ("bf16", "tf32") else 5)
    for kind in kinds:
        accumulator = ACCUMULATORS["f16" if kind.endswith("16") else "f32"]
        with np.errstate(all="ignore"):
            value = c.astype(accumulator.dtype)
        if kind.startswith("wgmma"):
            product = Product(a, b, a_format=form, b_format=form, count=4)
            value = accumulate(product, value, accumulator, rows=ROWS)
        else:
            depth = (16 if kind == "half" else 32) * 8 // form.bits
            for first in range(0, a.shape[1], depth):
                part = slice(first, first + depth)
                value = mma_sync.multiplied(a[:, part], b[:, part], value, form, form, accumulator)
        unsigned = np.uint16 if accumulator.dtype is np.float16 else np.uint32
        expected = H200[f"{name}/{kind}"]
        same = (value.view(unsigned) == expected.view(unsigned)) | (np.isnan(value) & np.isnan(expected))
        assert same.all(), f"{kind}: {(~same).sum()} of {same.size} differ"
