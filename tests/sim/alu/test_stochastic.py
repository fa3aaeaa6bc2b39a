"""Stochastic rounding, by exact rationals."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Unsupported
from tests.sim.alu.harness import Case, every_way
from tests.sim.alu.narrow import many

TYPES = {
    "f16x2": (np.dtype(np.float16), 16, 0x7FFF),
    "bf16x2": (np.dtype(ml_dtypes.bfloat16), 16, 0x7FFF),
    "e4m3x4": (np.dtype(ml_dtypes.float8_e4m3fn), 8, 0x7F),
    "e5m2x4": (np.dtype(ml_dtypes.float8_e5m2), 8, 0x7F),
    "e2m3x4": (np.dtype(ml_dtypes.float6_e2m3fn), 8, 0x1F),
    "e3m2x4": (np.dtype(ml_dtypes.float6_e3m2fn), 8, 0x1F),
    "e2m1x4": (np.dtype(ml_dtypes.float4_e2m1fn), 4, 0x7),
}
"""Element type, bits of a value in the result, code of NaN."""


def text(kind: str, flags: str = ".satfinite") -> str:
    if kind.endswith("x2"):
        return f"cvt.rs{flags}.{kind}.f32 r0, r1, r2, r3"
    return f"cvt.rs{flags}.{kind}.f32 {'h' if kind == 'e2m1x4' else 'r'}0, {{r1, r2, r3, r4}}, r5"


def magnitudes(kind: str) -> list[Fraction]:
    """The finite magnitudes of a type, in the order of their codes."""
    dtype, width, _ = TYPES[kind]
    codes = np.arange(1 << width - 1, dtype=np.uint8 if width < 16 else np.uint16)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        values = codes.view(dtype).astype(np.float64)
    return [Fraction(float(value)) for value in values[np.isfinite(values)][: 1 << ml_dtypes.finfo(dtype).bits - 1]]


def expected(pattern: int, random: int, kind: str) -> int:
    """The code of one float32, saturated: up if the part that is cut off and the random bits make a whole step."""
    _, width, nan = TYPES[kind]
    value = float(np.uint32(pattern).view(np.float32))
    if math.isnan(value):
        return nan
    sign = (1 << (nan.bit_length() if width != 16 else 15)) * (pattern >> 31)
    sizes = magnitudes(kind)
    if math.isinf(value) or abs(value) >= sizes[-1]:
        return sign | len(sizes) - 1
    size, bits = Fraction(abs(value)), 32 // int(kind[-1])
    code = next(index for index in range(len(sizes)) if sizes[index + 1] > size)
    part = (size - sizes[code]) / (sizes[code + 1] - sizes[code])
    return sign | code + (part + Fraction(random, 1 << bits) >= 1)


def joined(patterns: list[int], random: int, kind: str) -> int:
    count, (_, width, _) = int(kind[-1]), TYPES[kind]
    each = 32 // count
    result = 0
    for number, pattern in enumerate(patterns):
        result = result << width | expected(pattern, random >> 32 - each * (number + 1) & (1 << each) - 1, kind)
    return result


SMALL = [kind for kind in TYPES if kind.endswith("x4")]


@pytest.mark.parametrize("kind", SMALL)
@settings(max_examples=30, deadline=None)
@given(data=st.data(), random=st.lists(st.integers(0, (1 << 32) - 1), min_size=4, max_size=4))
def test_four_values_are_rounded_by_eight_bits_each(kind: str, data: st.DataObject, random: list[int]) -> None:
    largest = float(magnitudes(kind)[-1])
    near = st.floats(-1.25 * largest, 1.25 * largest, width=32).map(lambda x: int(np.float32(x).view(np.uint32)))
    columns = [data.draw(st.lists(near, min_size=4, max_size=4)) for _ in range(4)]
    got = every_way(text(kind), {f"r{index + 1}": column for index, column in enumerate(columns)} | {"r5": random})
    assert got == [joined([column[lane] for column in columns], random[lane], kind) for lane in range(4)]


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_two_values_are_rounded_by_sixteen_bits_each(kind: str) -> None:
    """All that f16 and bf16 hold, and random bits below and at the carry: by the neighbour above or below."""
    dtype, _, _ = TYPES[kind]
    generator = np.random.default_rng(3)
    low = generator.integers(0, 0x7BFF if kind == "f16x2" else 0x7F7F, 4000).astype(np.uint16)
    below, above = (code.view(dtype).astype(np.float64) for code in (low, low + np.uint16(1)))
    part = generator.integers(0, 1 << 13 if kind == "f16x2" else 1 << 16, low.size)
    steps = 1 << 13 if kind == "f16x2" else 1 << 16
    exact = below + (above - below) * part / steps
    value = exact.astype(np.float32)
    held = value == exact  # subnormal steps of bf16 are finer than float32 holds
    carry = (1 << 16) - part * ((1 << 16) // steps)  # the least random bits that make a whole step
    for random, want in ((carry - 1, low), (np.minimum(carry, 0xFFFF), np.where(part > 0, low + 1, low))):
        bits = random.astype(np.uint32)
        got = many(text(kind), r1=value.view(np.uint32), r2=(-value).view(np.uint32), r3=bits << 16 | bits)
        assert np.array_equal((got >> 16)[held], want[held])
        assert np.array_equal((got & 0xFFFF)[held], want[held] | 0x8000)


@pytest.mark.parametrize("kind", TYPES)
def test_without_random_bits_it_rounds_towards_zero_and_what_fits_is_never_changed(kind: str) -> None:
    sizes = np.array([float(size) for size in magnitudes(kind)], np.float32)
    middles = ((sizes[:-1].astype(np.float64) + sizes[1:]) / 2).astype(np.float32)
    codes, others = np.arange(sizes.size, dtype=np.uint32), 4 if kind.endswith("x4") else 2

    def last(values: np.ndarray, random: int) -> np.ndarray:
        names = {f"r{index + 1}": values.view(np.uint32) for index in range(others)}
        names[f"r{others + 1}"] = np.full(values.size, random, np.uint32)
        return many(text(kind), **names) & (1 << TYPES[kind][1]) - 1

    assert np.array_equal(last(sizes, 0), codes)
    assert np.array_equal(last(sizes, 0xFFFF_FFFF), codes)
    assert np.array_equal(last(middles, 0), codes[:-1])
    assert np.array_equal(last(middles, 0x7F7F_7F7F), codes[:-1])
    # The negative control: half of a step and half of all random bits make a whole one.
    assert np.array_equal(last(middles, 0x8080_8080), codes[1:])


def test_a_value_is_rounded_up_as_often_as_it_is_near() -> None:
    random = np.arange(256, dtype=np.uint32)
    for quarters, up in ((1, 64), (2, 128), (3, 192)):
        value = np.full(256, np.float32(2 + quarters / 4).view(np.uint32))  # between 2 and 3
        got = many(text("e2m1x4"), r1=value, r2=value, r3=value, r4=value, r5=random * np.uint32(0x0101_0101))
        for shift in (0, 4, 8, 12):
            code = got >> shift & 0xF
            assert np.bincount(code, minlength=6)[4:6].tolist() == [256 - up, up]


@pytest.mark.parametrize("random", [0, 0x1234_5678, 0xFFFF_FFFF])
@pytest.mark.parametrize("kind", TYPES)
def test_relu_and_special_values(kind: str, random: int) -> None:
    count = int(kind[-1])
    special = [0x7FC0_0000, 0xFF80_0000, 0x8000_0000, 0x7F80_0000][:count]
    names = {f"r{index + 1}": [pattern] for index, pattern in enumerate(special)}
    (got,) = every_way(text(kind), names | {f"r{count + 1}": [random]})
    assert got == joined(special, random, kind)
    (got,) = every_way(text(kind, ".relu.satfinite"), names | {f"r{count + 1}": [random]})
    assert got == joined([0 if pattern in (0xFF80_0000, 0x8000_0000) else pattern for pattern in special], random, kind)


def test_without_satfinite_an_overflow_is_infinite() -> None:
    large = int(np.float32(65535).view(np.uint32))
    got = every_way(text("f16x2", ""), {"r1": [large, large], "r2": [0xFF80_0000, large], "r3": [0, 0xFFFF_0000]})
    assert got == [0x7BFF_FC00, 0x7C00_7BFF]


@pytest.mark.parametrize(
    "opcode",
    [
        "cvt.rs.e4m3x4.f32 r0, {r1, r2, r3, r4}, r5",
        "cvt.rs.f16.f32 h0, r1, r2",
        "cvt.rs.satfinite.e2m1x2.f32 h0, r1, r2, r3",
        "cvt.rs.tf32.f32 r0, r1",
        "cvt.rs.satfinite.e4m3x4.f32 r0, {r1, r2}, r3",
    ],
)
def test_other_forms_are_refused_by_name(opcode: str) -> None:
    with pytest.raises(Unsupported, match=opcode.split(maxsplit=1)[0].replace(".", r"\.")):
        Case().lower(opcode)
