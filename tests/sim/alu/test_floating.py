import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.alu.exact_floats import NAN, fused, product
from tests.sim.alu.harness import every_way, run
from tests.sim.alu.patterns import float_of, float_patterns, nan_of, pattern_of, round_fraction

LETTER = {"f32": "r", "f64": "d"}
ROUNDINGS = ("rn", "rz", "rm", "rp")


def flush(pattern: int) -> int:
    return pattern & 0x8000_0000 if not pattern & 0x7F80_0000 else pattern


@pytest.mark.slow
@pytest.mark.parametrize("mode", ROUNDINGS)
@pytest.mark.parametrize("kind", ["f32", "f64"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_add_sub_mul_and_fma_round_the_exact_result_once(kind: str, mode: str, data: st.DataObject) -> None:
    a, b, c = (data.draw(float_patterns(kind)) for _ in range(3))
    letter = LETTER[kind]
    one, sign = pattern_of(1.0, kind), 1 << (31 if kind == "f32" else 63)
    operands = {f"{letter}1": a, f"{letter}2": b}
    got = every_way(f"add.{mode}.{kind} {letter}0, {letter}1, {letter}2", operands)
    assert got == [fused(x, one, y, kind, mode) for x, y in zip(a, b, strict=True)]
    got = every_way(f"sub.{mode}.{kind} {letter}0, {letter}1, {letter}2", operands)
    minus = [y if math.isnan(float_of(y, kind)) else y ^ sign for y in b]
    assert got == [fused(x, one, y, kind, mode) for x, y in zip(a, minus, strict=True)]
    got = every_way(f"mul.{mode}.{kind} {letter}0, {letter}1, {letter}2", operands)
    assert got == [product(x, y, kind, mode) for x, y in zip(a, b, strict=True)]
    text = f"fma.{mode}.{kind} {letter}0, {letter}1, {letter}2, {letter}3"
    got = every_way(text, {**operands, f"{letter}3": c})
    assert got == [fused(x, y, z, kind, mode) for x, y, z in zip(a, b, c, strict=True)]


def test_fma_is_not_float64_arithmetic_rounded_again() -> None:
    """A product that lands in the middle of two float32 but for a bit that float64 cannot hold."""
    a, b, c = pattern_of(1 + 2.0**-12), pattern_of(1 + 2.0**-12), pattern_of(2.0**-70)
    exact = Fraction(1 + 2.0**-12) ** 2 + Fraction(2.0**-70)
    want = round_fraction(exact, "f32", "rn")
    twice = int(np.float32(float_of(a) * float_of(b) + float_of(c)).view(np.uint32))
    assert twice != want, "the case no longer tells the two apart"
    assert every_way("fma.rn.f32 r0, r1, r2, r3", {"r1": [a], "r2": [b], "r3": [c]}) == [want]


def test_fma_rounds_a_subnormal_result_once() -> None:
    half = Fraction(2.0**-149) / 2
    a, b, c = pattern_of(2.0**-75), pattern_of(2.0**-75), pattern_of(2.0**-148)
    assert Fraction(2.0**-75) ** 2 == half
    assert every_way("fma.rn.f32 r0, r1, r2, r3", {"r1": [a], "r2": [b], "r3": [c]}) == [
        round_fraction(half + Fraction(2.0**-148), "f32", "rn")
    ]


@settings(max_examples=20, deadline=None)
@given(a=float_patterns("f32"), b=float_patterns("f32"))
def test_ftz_flushes_operands_and_results_and_sat_clamps(a: list[int], b: list[int]) -> None:
    operands = {"r1": a, "r2": b}
    pairs = list(zip(a, b, strict=True))
    got = every_way("mul.rn.ftz.f32 r0, r1, r2", operands)
    assert got == [flush(product(flush(x), flush(y), "f32", "rn")) for x, y in pairs]
    got = every_way("add.ftz.f32 r0, r1, r2", operands)
    one = pattern_of(1.0)
    assert got == [flush(fused(flush(x), one, flush(y), "f32", "rn")) for x, y in pairs]
    got = every_way("mul.sat.f32 r0, r1, r2", operands)
    for x, y, result in zip(a, b, got, strict=True):
        value = float_of(product(x, y, "f32", "rn"))
        assert result == pattern_of(0.0 if math.isnan(value) or value <= 0 else min(value, 1.0))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@settings(max_examples=8, deadline=None)
@given(a=float_patterns("f32"), b=float_patterns("f32"), c=float_patterns("f32"))
def test_a_pair_of_f32_is_two_of_them(mode: str, a: list[int], b: list[int], c: list[int]) -> None:
    def pairs(values: list[int]) -> list[int]:
        return [low | high << 32 for low, high in zip(values, values[1:] + values[:1], strict=True)]

    def single(text: str, *sources: list[int]) -> list[int]:
        return every_way(text, {f"r{n}": s for n, s in enumerate(sources, 1)})

    for root in ("add", "sub", "mul"):
        got = every_way(f"{root}.{mode}.f32x2 d0, d1, d2", {"d1": pairs(a), "d2": pairs(b)})
        assert got == pairs(single(f"{root}.{mode}.f32 r0, r1, r2", a, b))
    got = every_way(f"fma.{mode}.f32x2 d0, d1, d2, d3", {"d1": pairs(a), "d2": pairs(b), "d3": pairs(c)})
    assert got == pairs(single(f"fma.{mode}.f32 r0, r1, r2, r3", a, b, c))


def extreme(root: str, values: list[int], *, propagates: bool = False) -> int:
    """The ISA's rule on f32 patterns, in words of floats: -0 < +0, a number before NaN."""
    numbers = [v for v in values if not math.isnan(float_of(v))]
    if not numbers or (propagates and len(numbers) < len(values)):
        return NAN["f32"]
    return (min if root == "min" else max)(numbers, key=lambda v: (float_of(v), 0 if v >> 31 else 1))


@pytest.mark.parametrize("root", ["min", "max"])
@settings(max_examples=20, deadline=None)
@given(a=float_patterns("f32"), b=float_patterns("f32"), c=float_patterns("f32"))
def test_min_and_max(root: str, a: list[int], b: list[int], c: list[int]) -> None:
    two = {"r1": a, "r2": b}
    lanes = list(zip(a, b, c, strict=True))
    assert every_way(f"{root}.f32 r0, r1, r2", two) == [extreme(root, [x, y]) for x, y, _ in lanes]
    assert every_way(f"{root}.NaN.f32 r0, r1, r2", two) == [extreme(root, [x, y], propagates=True) for x, y, _ in lanes]
    got = every_way(f"{root}.f32 r0, r1, r2, r3", {**two, "r3": c})
    assert got == [extreme(root, [x, y, z]) for x, y, z in lanes]
    got = every_way(f"{root}.NaN.abs.f32 r0, r1, r2, r3", {**two, "r3": c})
    size = 0x7FFF_FFFF
    assert got == [extreme(root, [x & size, y & size, z & size], propagates=True) for x, y, z in lanes]
    got = every_way(f"{root}.xorsign.abs.f32 r0, r1, r2", two)
    for x, y, result in zip(a, b, got, strict=True):
        best = extreme(root, [x & size, y & size])
        assert result == (best if best == NAN["f32"] else best | (x ^ y) & 0x8000_0000)


@settings(max_examples=15, deadline=None)
@given(a=float_patterns("f64"), b=float_patterns("f64"))
def test_f64_has_min_max_and_signs_too(a: list[int], b: list[int]) -> None:
    def best(root: str, values: list[int]) -> int:
        numbers = [v for v in values if not math.isnan(float_of(v, "f64"))]
        order = {v: (float_of(v, "f64"), 0 if v >> 63 else 1) for v in numbers}
        return (min if root == "min" else max)(numbers, key=order.__getitem__) if numbers else nan_of("f64", *values)

    for root in ("min", "max"):
        got = every_way(f"{root}.f64 d0, d1, d2", {"d1": a, "d2": b})
        assert got == [best(root, [x, y]) for x, y in zip(a, b, strict=True)]
    size = (1 << 63) - 1

    def signed(pattern: int, changed: int) -> int:
        return nan_of("f64", pattern) if math.isnan(float_of(pattern, "f64")) else changed

    assert every_way("abs.f64 d0, d1", {"d1": a}) == [signed(x, x & size) for x in a]
    assert every_way("neg.f64 d0, d1", {"d1": a}) == [signed(x, x ^ 1 << 63) for x in a]
    want = [x & 1 << 63 | y & size for x, y in zip(a, b, strict=True)]
    assert every_way("copysign.f64 d0, d1, d2", {"d1": a, "d2": b}) == want
    assert every_way("testp.subnormal.f64 p0, d1", {"d1": a}) == [0 < abs(float_of(x, "f64")) < 2.0**-1022 for x in a]


@settings(max_examples=20, deadline=None)
@given(a=float_patterns("f32"), b=float_patterns("f32"))
def test_signs_and_classes(a: list[int], b: list[int]) -> None:
    one = {"r1": a}

    def signed(pattern: int, changed: int) -> int:
        return NAN["f32"] if math.isnan(float_of(pattern)) else changed

    assert every_way("abs.f32 r0, r1", one) == [signed(x, x & 0x7FFF_FFFF) for x in a]
    assert every_way("neg.ftz.f32 r0, r1", one) == [signed(x, flush(x) ^ 0x8000_0000) for x in a]
    assert every_way("copysign.f32 r0, r1, r2", {"r1": a, "r2": b}) == [
        pattern_of(math.copysign(float_of(y), float_of(x)))
        if not math.isnan(float_of(y))
        else x & 1 << 31 | y & ~(1 << 31)
        for x, y in zip(a, b, strict=True)
    ]
    values = [float_of(x) for x in a]
    tests = {
        "finite": [math.isfinite(v) for v in values],
        "infinite": [math.isinf(v) for v in values],
        "number": [not math.isnan(v) for v in values],
        "notanumber": [math.isnan(v) for v in values],
        "normal": [math.isfinite(v) and (abs(v) >= 2.0**-126 or v == 0) for v in values],
        "subnormal": [0 < abs(v) < 2.0**-126 for v in values],
    }
    for name, want in tests.items():
        assert every_way(f"testp.{name}.f32 p0, r1", one) == want


def test_a_float_literal_is_an_operand() -> None:
    assert run("mul.f32 r0, r1, 0f40000000", r1=pattern_of(1.5)) == pattern_of(3.0)
    assert run("add.f64 d0, d1, 0d3FF0000000000000", d1=pattern_of(1.5, "f64")) == pattern_of(2.5, "f64")
