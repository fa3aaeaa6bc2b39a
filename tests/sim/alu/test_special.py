import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.alu.harness import every_way
from tests.sim.alu.patterns import float_of, float_patterns, pattern_of, round_fraction
from tests.sim.alu.roots import INF, NAN, quotient, rounded_root

MINUS = 0x8000_0000
ONE = pattern_of(1.0)
MODES = ["rn", "rz", "rm", "rp"]
LETTER = {"f32": "r", "f64": "d"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["f32", "f64"])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_division_reciprocal_and_root_are_rounded_once(kind: str, mode: str, data: st.DataObject) -> None:
    a, b = data.draw(float_patterns(kind)), data.draw(float_patterns(kind))
    letter = LETTER[kind]
    one = pattern_of(1.0, kind)
    got = every_way(f"div.{mode}.{kind} {letter}0, {letter}1, {letter}2", {f"{letter}1": a, f"{letter}2": b})
    assert got == [quotient(x, y, kind, mode) for x, y in zip(a, b, strict=True)]
    got = every_way(f"rcp.{mode}.{kind} {letter}0, {letter}1", {f"{letter}1": a})
    assert got == [quotient(one, x, kind, mode) for x in a]
    got = every_way(f"sqrt.{mode}.{kind} {letter}0, {letter}1", {f"{letter}1": a})
    assert got == [rounded_root(x, kind, mode) for x in a]


SUBNORMAL, BIG = 0x0000_0001, pattern_of(2.0**127)
TABLES = {
    # the ISA's tables: -Inf, -0, +0, +Inf, NaN
    "rcp": [MINUS, MINUS | INF, INF, 0, NAN],
    "sqrt": [NAN, MINUS, 0, INF, NAN],
    "rsqrt": [NAN, MINUS | INF, INF, 0, NAN],
    "sin": [NAN, MINUS, 0, NAN, NAN],
    "cos": [NAN, ONE, ONE, NAN, NAN],
    "lg2": [NAN, MINUS | INF, MINUS | INF, INF, NAN],
    "ex2": [0, ONE, ONE, INF, NAN],
    "tanh": [MINUS | ONE, MINUS, 0, ONE, NAN],
}


@pytest.mark.parametrize("root", TABLES)
def test_special_operands_of_the_approximations_are_those_of_the_isa(root: str) -> None:
    operands = [MINUS | INF, MINUS, 0, INF, 0x7FC0_1234]
    assert every_way(f"{root}.approx.f32 r0, r1", {"r1": operands}) == TABLES[root]


def test_flushed_subnormals_are_zeros() -> None:
    tiny, minus_tiny = SUBNORMAL, MINUS | SUBNORMAL
    wants = {
        "rcp": [INF, MINUS | INF],
        "sqrt": [0, MINUS],
        "rsqrt": [INF, MINUS | INF],
        "sin": [0, MINUS],
        "cos": [ONE, ONE],
        "lg2": [MINUS | INF, MINUS | INF],
        "ex2": [ONE, ONE],
    }
    for root, want in wants.items():
        assert every_way(f"{root}.approx.ftz.f32 r0, r1", {"r1": [tiny, minus_tiny]}) == want
    # results too: 1 / 2**127 is a subnormal
    assert every_way("rcp.approx.ftz.f32 r0, r1", {"r1": [BIG, MINUS | BIG]}) == [0, MINUS]
    assert every_way("rcp.approx.f32 r0, r1", {"r1": [BIG]}) == [pattern_of(2.0**-127)]
    assert every_way("ex2.approx.ftz.f32 r0, r1", {"r1": [pattern_of(-127.0)]}) == [0]


FUNCTIONS = {
    "rcp": lambda x: 1 / x,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sin": math.sin,
    "cos": math.cos,
    "lg2": math.log2,
    "ex2": lambda x: 2.0**x,
    "tanh": math.tanh,
}


@pytest.mark.parametrize("root", FUNCTIONS)
@settings(max_examples=20, deadline=None)
@given(values=st.lists(st.floats(2.0**-20, 100, width=32), min_size=32, max_size=32))
def test_approximations_are_the_function_rounded(root: str, values: list[float]) -> None:
    got = every_way(f"{root}.approx.f32 r0, r1", {"r1": [pattern_of(v) for v in values]})
    for value, result in zip(values, got, strict=True):
        want = FUNCTIONS[root](value)
        # math and numpy may differ in float64's last place, which can tip one rounding
        assert abs(result - int(np.float32(want).view(np.uint32))) <= 1


def test_division_by_a_huge_number_is_zero_when_approximate() -> None:
    huge, one, minus = pattern_of(2.0**126 * 1.5), pattern_of(2.0**100), pattern_of(-(2.0**100))
    a, b = [one, minus, INF, one], [huge, huge, huge, pattern_of(2.0**126)]
    assert every_way("div.approx.f32 r0, r1, r2", {"r1": a, "r2": b}) == [0, MINUS, NAN, pattern_of(2.0**-26)]
    assert every_way("div.full.f32 r0, r1, r2", {"r1": a[:2], "r2": b[:2]}) == [
        quotient(one, huge, "f32", "rn"), quotient(minus, huge, "f32", "rn")
    ]  # fmt: skip


@pytest.mark.parametrize("root", ["ex2", "tanh"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_functions_of_halves(kind: str, root: str, data: st.DataObject) -> None:
    a = data.draw(float_patterns(kind))
    ftz = ".ftz" if (root, kind) == ("ex2", "bf16") else ""
    got = every_way(f"{root}.approx{ftz}.{kind} h0, h1", {"h1": a})

    def want(code: int) -> int:
        value = float_of(code, kind)
        if math.isnan(value):
            return 0x7FFF
        if ftz and abs(value) < 2.0**-126:
            value = math.copysign(0.0, value)
        if root == "tanh":
            return round_fraction(Fraction(math.tanh(value)), kind, "rn", negative_zero=math.copysign(1, value) < 0)
        if value > 1000:
            return 0x7F80 if kind == "bf16" else 0x7C00
        result = 0.0 if value < -1000 else 2.0**value
        return 0 if ftz and result < 2.0**-126 else round_fraction(Fraction(result), kind, "rn")

    assert got == [want(code) for code in a]
    pair = [low | low << 16 for low in a]
    assert every_way(f"{root}.approx{ftz}.{kind}x2 r0, r1", {"r1": pair}) == [low | low << 16 for low in got]


def test_the_gross_reciprocal_of_f64_has_twenty_bits() -> None:
    values = [3.0, -7.0, 1.0, 1e-310, 0.1]
    got = every_way("rcp.approx.ftz.f64 d0, d1", {"d1": [pattern_of(v, "f64") for v in values]})
    for value, result in zip(values, got, strict=True):
        assert result & 0xFFFF_FFFF == 0
        if abs(value) > 1e-300:
            assert abs(float_of(result, "f64") * value - 1) < 2.0**-19
    assert got[3] == 0x7FF0_0000_0000_0000
