from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_nvfp4.numerics import fp16, judge, pattern
from pytest_nvfp4.numerics.arrays import NumericsError
from pytest_nvfp4.numerics.families import FAMILIES
from pytest_nvfp4.numerics.judge import Reference, Verdict
from pytest_nvfp4.problem import Group, Problem
from tests.numerics.judged import bits_for, family_case, made


@pytest.mark.parametrize("name", list(FAMILIES))
def test_the_rounded_exact_result_is_right(name: str) -> None:
    exact, bits = family_case(name)
    verdict = judge.judge(bits.view(np.float16), exact)
    assert verdict.ok
    assert verdict.max_ulp == 0
    assert verdict.exact_outputs + verdict.bounded_outputs + int(exact.nan.sum()) == 40 * 128
    assert "right" in str(verdict)


@given(st.integers(0, 39), st.integers(0, 127))
@settings(max_examples=50, deadline=None)
def test_one_ulp_is_wrong_where_the_result_is_exact(row: int, col: int) -> None:
    exact, bits = family_case("pow2_exact")
    assert exact.order_free().all()
    assume(bits[row, col] & 0x7FFF)
    bits[row, col] ^= 1
    verdict = judge.judge(bits, exact, group=3)
    assert verdict.mismatches == 1
    (mismatch,) = verdict.first
    assert (mismatch.group, mismatch.row, mismatch.col, mismatch.rule, mismatch.ulp) == (3, row, col, "exact", 1)
    assert mismatch.bound == 0
    assert f"group 3 C[{row}, {col}]" in str(verdict)
    assert "exact in every order" in str(verdict)


def test_within_the_bound_is_right_and_beyond_is_wrong() -> None:
    exact, bits = family_case("all_scale")
    bounded = ~exact.order_free()
    values, bound, slack = exact.values(), judge.bound(exact), judge.accumulation_bound(exact)
    for sign in (-1, 1):
        inside = fp16.round_nearest(values + sign * slack * 0.99).view(np.uint16)
        assert judge.judge(np.where(bounded, inside, bits).astype(np.uint16), exact).ok
        outside = fp16.round_nearest(values + sign * bound * 3).view(np.uint16)
        verdict = judge.judge(np.where(bounded, outside, bits).astype(np.uint16), exact)
        assert verdict.mismatches == bounded.sum()
        assert verdict.first[0].rule == "bound"
        assert verdict.first[0].bound == pytest.approx(bound[verdict.first[0].row, verdict.first[0].col])
        assert "> bound" in str(verdict)


def test_the_bound_is_the_published_formula() -> None:
    exact = made([[3 << 20]], magnitude=5 << 44, k=640)
    expected = 2**-11 * 3 * (1 + 1e-3) + 2**-23 * (640 / 64 + 8) * 5 * 2**24 + 2**-25
    assert judge.bound(exact)[0, 0] == pytest.approx(expected, rel=1e-12)


def test_infinity() -> None:
    limit = 65520 << 20
    exact_kind = {"step": 1 << 10}  # a coarse quantum: order-free
    assert bits_for(made([[limit]], **exact_kind), np.inf).ok
    assert not bits_for(made([[limit]], **exact_kind), 65504).ok
    assert not bits_for(made([[limit]], **exact_kind), -np.inf).ok
    just_below = made([[limit - (1 << 20)]], **exact_kind)
    assert bits_for(just_below, 65504).ok
    assert not bits_for(just_below, np.inf).ok

    wide = 1 << 49  # sum of magnitudes that leaves the accumulator some slack
    slack = float(judge.accumulation_bound(made([[limit]], magnitude=wide))[0, 0])
    assert 100 < slack < 1000
    for units in (limit, limit - (50 << 20), limit + (50 << 20)):
        near = made([[units]], magnitude=wide)
        assert bits_for(near, np.inf).ok
        assert bits_for(near, 65504).ok
        assert not bits_for(near, -np.inf).ok
    assert not bits_for(made([[limit + (2000 << 20)]], magnitude=wide), 65504).ok
    assert not bits_for(made([[limit - (2000 << 20)]], magnitude=wide), np.inf).ok


def test_saturation_is_wrong_even_where_the_bound_alone_would_allow_it() -> None:
    """65525 is within 2^-11 of 65504, but no accumulator error brings it below the overflow threshold."""
    exact = made([[65525 << 20]], magnitude=65525 << 20)
    assert not exact.order_free().any()
    assert abs(65504 - 65525) < judge.bound(exact)[0, 0]
    assert not bits_for(exact, 65504).ok
    assert bits_for(exact, np.inf).ok


def test_signs_of_zero() -> None:
    zero = made([[0, 1 << 20]])
    out = np.array([[-0.0, 1.0]], np.float16)
    verdict = judge.judge(out, zero)
    assert verdict.ok
    assert verdict.negative_zeros == 1
    strict = judge.judge(out, zero, zero_sign="strict")
    assert strict.mismatches == 1
    bounded = made([[0]], magnitude=1 << 50)
    assert judge.judge(out[:, :1], bounded).ok
    assert not judge.judge(out[:, :1], bounded, zero_sign="strict").ok


def test_nan_is_right_exactly_where_it_is_due() -> None:
    due, not_due = made([[0]], nan=True), made([[1 << 20]])
    for bits in (0x7FFF, 0x7E00, 0xFFFF):
        nan = np.array([[bits]], np.uint16)
        assert judge.judge(nan, due).ok
        verdict = judge.judge(nan, not_due)
        assert (verdict.mismatches, verdict.unexpected_nan) == (1, 1)
        assert verdict.first[0].rule == "nan"
        assert verdict.first[0].ulp is None
    missing = bits_for(due, 0.0)
    assert (missing.mismatches, missing.missing_nan) == (1, 1)
    assert missing.first[0].rule == "nan"
    assert not bits_for(due, np.inf).ok


def test_poison_is_wrong_even_where_nan_is_due() -> None:
    poison = np.full((1, 2), fp16.POISON, np.uint16)
    for nan in (False, True):
        verdict = judge.judge(poison, made([[0, 0]], nan=nan))
        assert (verdict.mismatches, verdict.unwritten, verdict.unexpected_nan) == (2, 2, 0)
        assert {mismatch.rule for mismatch in verdict.first} == {"unwritten"}
    assert "not written" in str(verdict)
    wide = judge.judge(np.full((2, 8), fp16.POISON, np.uint16), made([[0] * 8] * 2))
    assert str(wide).count("C[") == 1, "one of those that were not written is like the other"
    assert len(wide.first) == judge.FIRST
    other = judge.judge(np.full((1, 1), 0x1234, np.uint16), made([[0]]), poison=0x1234)
    assert other.unwritten == 1


def test_guard_rows_must_keep_the_poison() -> None:
    exact = made([[1 << 20, 1 << 20]])
    out = np.ones((1, 2), np.float16)
    before, after = np.full((2, 2), fp16.POISON, np.uint16), np.full((3, 2), fp16.POISON, np.uint16)
    assert judge.judge(out, exact, guard_before=before, guard_after=after).ok
    before[1, 0] = 0x3C00
    after[0, 1] = fp16.CANONICAL_NAN
    verdict = judge.judge(out, exact, guard_before=before, guard_after=after)
    assert not verdict.ok
    assert (verdict.mismatches, verdict.guard) == (0, 2)
    assert [(mismatch.row, mismatch.col) for mismatch in verdict.first] == [(-1, 0), (1, 1)]
    assert "outside the tensor" in str(verdict)


def test_a_verdict_lists_the_first_mismatches_only() -> None:
    exact, bits = family_case("pow2_exact")
    verdict = judge.judge(bits ^ 1, exact)
    assert verdict.mismatches == 40 * 128
    assert len(verdict.first) == judge.FIRST
    assert verdict.where == "every output"
    both = Verdict((judge.judge(bits, exact, group=0), judge.judge(bits ^ 1, exact, group=1)))
    assert not both.ok
    assert both.mismatches == 40 * 128
    assert {mismatch.group for mismatch in both.first} == {1}
    assert "group 0" not in str(both)
    assert "group 0" in str(Verdict(both.groups[:1]))


def test_a_group_without_rows_is_right() -> None:
    exact = FAMILIES["edge"].group(Problem("p", (Group(0, 128, 256),)), 0).exact()
    assert judge.judge(np.zeros((0, 128), np.float16), exact).ok


def test_a_reference_judges_as_the_exact_result() -> None:
    exact, bits = family_case("all_scale")
    bits[3, 4] ^= 0x100
    assert judge.judge(bits, Reference.of(exact)) == judge.judge(bits, exact)


def test_wrong_arguments_are_named() -> None:
    exact = made([[0, 0]])
    with pytest.raises(NumericsError, match=r"group 2 has shape \[1, 1\], not \[1, 2\]"):
        judge.judge(np.zeros((1, 1), np.float16), exact, group=2)
    with pytest.raises(NumericsError, match="float32, not float16"):
        judge.judge(np.zeros((1, 2), np.float32), exact)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        (slice(0, 300), slice(0, 300), ["every output"]),
        (slice(32, 64), slice(0, 128), ["rows 32-63", "columns 0-127", "1 of 9 tiles", "(0,0)", "only rows 32-63"]),
        (slice(128, 256), slice(256, 300), ["(1,2)", "columns 256-299"]),
        (slice(5, 6), slice(7, 8), ["rows 5,", "columns 7"]),
        (slice(0, 300, 2), slice(0, 300), ["150 of them", "9 of 9", "..."]),
        (slice(0, 0), slice(0, 0), []),
    ],
)
def test_damage_is_described(rows: slice, columns: slice, words: list[str]) -> None:
    wrong = np.zeros((300, 300), np.bool_)
    wrong[rows, columns] = True
    text = pattern.describe(wrong)
    assert all(word in text for word in words)
    assert bool(text) == bool(words)
