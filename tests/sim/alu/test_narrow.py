import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from pytest_nvfp4.sim.fault import Unsupported
from tests.sim.alu.harness import Case, every_way
from tests.sim.alu.narrow import TYPES, dst, expected, many, scale, width
from tests.sim.alu.patterns import float_patterns


@pytest.mark.parametrize("target", ["f16x2", "bf16x2"])
@pytest.mark.parametrize("kind", TYPES)
def test_every_code_is_widened_as_ml_dtypes_does(kind: str, target: str) -> None:
    dtype, form, _ = TYPES[kind]
    codes = np.arange(2 * form.sign)
    want = codes.astype(np.uint8).view(dtype).astype(np.float64)
    assert np.array_equal(form.values, want, equal_nan=True)
    upper, lower = np.meshgrid(codes, codes)
    pairs = (upper << width(kind) | lower).ravel().astype(np.uint8 if dst(kind) == "b" else np.uint16)
    got = many(f"cvt.rn.{target}.{kind} r0, {dst(kind)}1", **{f"{dst(kind)}1": pairs})
    to = np.float16 if target == "f16x2" else ml_dtypes.bfloat16
    halves = want.astype(to).view(np.uint16).astype(np.uint32)
    halves = np.where(np.isnan(want), 0x7FFF, halves)
    assert np.array_equal(got, halves[upper.ravel()] << 16 | halves[lower.ravel()])
    got = many(f"cvt.rn.relu.{target}.{kind} r0, {dst(kind)}1", **{f"{dst(kind)}1": pairs})
    halves = np.where(want <= 0, 0, halves)
    assert np.array_equal(got, halves[upper.ravel()] << 16 | halves[lower.ravel()])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_every_f16_and_bf16_is_narrowed_as_ml_dtypes_does(kind: str, relu: bool) -> None:
    codes = np.arange(1 << 16, dtype=np.uint32)
    other = codes[::-1]
    flag = ".relu" * relu
    for source, values in (
        ("f16x2", codes.astype(np.uint16).view(np.float16)),
        ("bf16x2", (codes << 16).view(np.float32)),
    ):
        got = many(f"cvt.rn.satfinite{flag}.{kind}.{source} {dst(kind)}0, r1", r1=codes << 16 | other)
        want = expected(values, kind, relu=relu).astype(np.uint32)
        assert np.array_equal(got, want << width(kind) | want[::-1])
    singles = np.concatenate(
        [(codes << 16), codes.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)]
    )
    got = many(f"cvt.rn.satfinite{flag}.{kind}.f32 {dst(kind)}0, r1, r2", r1=singles, r2=singles[::-1].copy())
    want = expected(singles.view(np.float32), kind, relu=relu).astype(np.uint32)
    assert np.array_equal(got, want << width(kind) | want[::-1])


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=15, deadline=None)
@given(a=float_patterns("f32"), b=float_patterns("f32"))
def test_singles_are_narrowed_on_all_paths(kind: str, a: list[int], b: list[int]) -> None:
    got = every_way(f"cvt.rn.satfinite.{kind}.f32 {dst(kind)}0, r1, r2", {"r1": a, "r2": b})
    x, y = (expected(np.array(v, np.uint32).view(np.float32), kind, relu=False) for v in (a, b))
    assert got == [int(p) << width(kind) | int(q) for p, q in zip(x, y, strict=True)]


@pytest.mark.parametrize("kind", TYPES)
def test_ties_go_to_even_and_not_away(kind: str) -> None:
    """A negative control for the rounding: halfway between each two neighbours, and a float32 beside it."""
    _, form, _ = TYPES[kind]
    values = form.values[: form.largest + 1]
    middles = ((values[:-1] + values[1:]) / 2).astype(np.float32)
    codes = np.arange(form.largest)
    for shift, want in ((0, codes + (codes & 1)), (1, codes + 1), (-1, codes)):
        patterns = (middles.view(np.int32) + shift).astype(np.uint32)
        got = many(f"cvt.rn.satfinite.{kind}.f32 {dst(kind)}0, r1, r2", r1=np.zeros_like(patterns), r2=patterns)
        assert np.array_equal(got, want)


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("mode", ["rz", "rp"])
def test_scales_keep_the_exponent(mode: str, saturates: bool) -> None:
    flag = ".satfinite" * saturates
    codes = np.arange(1 << 16, dtype=np.uint32)
    got = many(f"cvt.{mode}{flag}.ue8m0x2.bf16x2 h0, r1", r1=codes << 16 | codes[::-1])
    want = np.array([scale(int(c) << 16, mode, saturates=saturates) for c in codes])
    assert np.array_equal(got, want << 8 | want[::-1])


@pytest.mark.parametrize("mode", ["rz", "rp"])
@settings(max_examples=15, deadline=None)
@given(a=float_patterns("f32"), b=float_patterns("f32"))
def test_scales_of_singles(mode: str, a: list[int], b: list[int]) -> None:
    got = every_way(f"cvt.{mode}.satfinite.ue8m0x2.f32 h0, r1, r2", {"r1": a, "r2": b})
    want = [scale(x, mode, saturates=True) << 8 | scale(y, mode, saturates=True) for x, y in zip(a, b, strict=True)]
    assert got == want


def test_every_scale_is_a_power_of_two() -> None:
    codes = np.arange(256, dtype=np.uint32)
    got = many("cvt.rn.bf16x2.ue8m0x2 r0, h1", h1=(codes << 8 | codes[::-1]).astype(np.uint16))
    want = codes.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32).view(np.uint32) >> 16
    want[255] = 0x7FFF
    assert np.array_equal(got, want << 16 | want[::-1])


@pytest.mark.parametrize(
    "text",
    [
        "cvt.rn.e4m3x2.f32 h0, r1, r2",  # .satfinite is mandatory
        "cvt.rz.satfinite.e4m3x2.f32 h0, r1, r2",
        "cvt.rn.satfinite.e4m3.f32 h0, r1",
        "cvt.rn.ue8m0x2.f32 h0, r1, r2",
        "cvt.rn.satfinite.bf16x2.e4m3x2 r0, h1",
        "cvt.rn.satfinite.s2f6x2.f32 h0, r1, r2",
        "cvt.rn.satfinite.scaled::n2::ue8m0.e4m3x2.f32 h0, r1, r2, h3",
    ],
)
def test_other_forms_are_refused_by_name(text: str) -> None:
    with pytest.raises(Unsupported, match=text.split(maxsplit=1)[0].replace(".", r"\.")):
        Case().lower(text)


def test_small_integers_are_clamped_and_packed() -> None:
    a, b, c = [5, (1 << 32) - 300, 1000, 127], [(1 << 32) - 5, 300, 70000, 0], [0x1234, 0, 0xFFFF, 1]

    def clamp(value: int, low: int, high: int, bits: int) -> int:
        value = value - (1 << 32) if value >> 31 else value
        return min(max(value, low), high) & (1 << bits) - 1

    got = every_way("cvt.pack.sat.s8.s32.b32 r0, r1, r2, r3", {"r1": a, "r2": b, "r3": c})
    want = [
        z << 16 & 0xFFFF_FFFF | clamp(x, -128, 127, 8) << 8 | clamp(y, -128, 127, 8)
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert got == want
    got = every_way("cvt.pack.sat.u16.s32 r0, r1, r2", {"r1": a, "r2": b})
    assert got == [clamp(x, 0, 65535, 16) << 16 | clamp(y, 0, 65535, 16) for x, y in zip(a, b, strict=True)]
