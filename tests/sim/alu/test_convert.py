import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Unsupported
from tests.sim.alu.conversions import BITS, FLOATS, NAN, letter, narrowed, number, register
from tests.sim.alu.harness import Case, every_way, run
from tests.sim.alu.patterns import float_of, float_patterns, integers, pattern_of, round_fraction

LIMITS = {kind: (-(1 << b - 1), (1 << b - 1) - 1) if kind[0] == "s" else (0, (1 << b) - 1) for kind, b in BITS.items()}


@pytest.mark.parametrize("source", BITS)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_integers_wrap_extend_and_saturate(source: str, data: st.DataObject) -> None:
    width = max(BITS[source], 16)
    values = data.draw(integers(width))
    numbers = [number(v, source) for v in values]
    for target in BITS:
        text = f"{target}.{source} {letter(target)}0, {letter(source)}1"
        operands = {f"{letter(source)}1": values}
        assert every_way(f"cvt.{text}", operands) == [register(n, target) for n in numbers]
        low, high = LIMITS[target]
        if low <= LIMITS[source][0] and LIMITS[source][1] <= high:
            continue
        assert every_way(f"cvt.sat.{text}", operands) == [register(min(max(n, low), high), target) for n in numbers]


def test_an_extension_reaches_the_whole_register() -> None:
    assert run("cvt.s8.s32 r0, r1", r1=0x1FF) == 0xFFFF_FFFF
    assert run("cvt.u8.u32 d0, r1", r1=0x1FF) == 0xFF
    assert run("cvt.s16.s8 r0, h1", h1=0x80) == 0xFFFF_FF80


ROUND = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("mode", ROUND)
@pytest.mark.parametrize("source", FLOATS)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_floats_become_clamped_integers(source: str, mode: str, data: st.DataObject) -> None:
    patterns = data.draw(float_patterns(source))
    for target, bits in BITS.items():
        if source == "bf16" and bits == 8:
            continue
        low, high = LIMITS[target]
        want = []
        for pattern in patterns:
            value = float_of(pattern, source)
            if math.isnan(value):
                want.append(register(1 << BITS[target] - 1 if source == "f64" or BITS[target] == 64 else 0, target))
            elif math.isinf(value):
                want.append(register(high if value > 0 else low, target))
            else:
                want.append(register(min(max(ROUND[mode](Fraction(value)), low), high), target))
        text = f"cvt.{mode}.{target}.{source} {letter(target)}0, {letter(source)}1"
        assert every_way(text, {f"{letter(source)}1": patterns}) == want


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", BITS)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_integers_become_floats_with_one_rounding(source: str, mode: str, data: st.DataObject) -> None:
    values = data.draw(integers(max(BITS[source], 16)))
    for target in FLOATS:
        if target == "bf16" and BITS[source] == 8:
            continue
        want = [round_fraction(Fraction(number(v, source)), target, mode) for v in values]
        text = f"cvt.{mode}.{target}.{source} {letter(target)}0, {letter(source)}1"
        assert every_way(text, {f"{letter(source)}1": values}) == want


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_floats_are_narrowed_with_one_rounding(mode: str, data: st.DataObject) -> None:
    for source, target in [
        ("f32", "f16"),
        ("f32", "bf16"),
        ("f64", "f32"),
        ("f64", "f16"),
        ("f16", "bf16"),
        ("bf16", "f16"),
    ]:
        patterns = data.draw(float_patterns(source))
        text = f"cvt.{mode}.{target}.{source} {letter(target)}0, {letter(source)}1"
        want = [narrowed(p, source, target, mode) for p in patterns]
        assert every_way(text, {f"{letter(source)}1": patterns}) == want


def test_every_half_is_widened_exactly() -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    for source in ("f16", "bf16"):
        for start in range(0, 1 << 16, 4096):
            # one instruction on 32 lanes at a time would take long: the kernel takes any number of lanes
            part = codes[start : start + 4096]
            case = Case(h1=part)
            wide = _wide(case, f"cvt.f32.{source} r0, h1")
            for code, got in zip(part.tolist()[::31], wide.tolist()[::31], strict=True):
                value = float_of(code, source)
                nan = NAN["f32"] if source == "f16" else code << 16  # bf16 is moved, whatever it is
                assert got == (nan if math.isnan(value) else pattern_of(value))
            # and back again, which is the identity but for NaN
            back = _wide(Case(r1=wide), f"cvt.rn.{source}.f32 h0, r1")
            is_nan = np.isnan(wide.view(np.float32))
            assert np.array_equal(back[~is_nan], part[~is_nan])
            assert (back[is_nan] == 0x7FFF).all()


def _wide(case: Case, text: str) -> np.ndarray:
    from tests.sim.alu.harness import compiled

    block, names = compiled(text)
    with np.errstate(all="ignore"):
        (result,) = block(case.warp, (1 << 32) - 1, *(case.values.get(name) for name in names)).values()
    return result


@pytest.mark.parametrize("target", ["f16", "bf16"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_pairs_put_the_first_source_in_the_upper_half(target: str, mode: str, data: st.DataObject) -> None:
    a, b = data.draw(float_patterns("f32")), data.draw(float_patterns("f32"))
    largest = {"f16": 0x7BFF, "bf16": 0x7F7F}[target]

    def one(pattern: int, *, relu: bool, saturates: bool) -> int:
        code = narrowed(pattern, "f32", target, mode)
        if code == 0x7FFF:
            return code
        if relu and code & 0x8000:
            return 0
        if saturates and code & 0x7FFF > largest:
            return code & 0x8000 | largest
        return code

    for relu in (False, True):
        for saturates in (False, True):
            flags = ".relu" * relu + ".satfinite" * saturates
            want = [one(x, relu=relu, saturates=saturates) << 16 | one(y, relu=relu, saturates=saturates)
                    for x, y in zip(a, b, strict=True)]  # fmt: skip
            assert every_way(f"cvt.{mode}{flags}.{target}x2.f32 r0, r1, r2", {"r1": a, "r2": b}) == want
            if flags:
                got = every_way(f"cvt.{mode}{flags}.{target}.f32 h0, r1", {"r1": a})
                assert got == [pair >> 16 for pair in want]


@settings(max_examples=20, deadline=None)
@given(a=float_patterns("f32"))
def test_tf32_keeps_ten_bits(a: list[int]) -> None:
    def away(pattern: int) -> int:
        value = float_of(pattern)
        if math.isnan(value):
            return pattern & 0xFFFF_E000
        return min((pattern & 0x7FFF_FFFF) + 0x1000, 0x7F80_0000) & ~0x1FFF | pattern & 0x8000_0000

    assert every_way("cvt.rna.tf32.f32 r0, r1", {"r1": a}) == [away(p) for p in a]

    def even(pattern: int, *, relu: bool) -> int:
        if math.isnan(float_of(pattern)):
            return 0x7FFF_E000
        if relu and pattern & 0x8000_0000:
            return 0
        size = pattern & 0x7FFF_FFFF
        size = min(size + 0xFFF + (size >> 13 & 1), 0x7F80_0000) & ~0x1FFF
        return size | pattern & 0x8000_0000

    assert every_way("cvt.rn.tf32.f32 r0, r1", {"r1": a}) == [even(p, relu=False) for p in a]
    assert every_way("cvt.rn.relu.tf32.f32 r0, r1", {"r1": a}) == [even(p, relu=True) for p in a]


@settings(max_examples=10, deadline=None)
@given(a=float_patterns("f32"))
def test_a_float_is_rounded_to_an_integral_one_and_clamped(a: list[int]) -> None:
    def integral(pattern: int, mode: str) -> int:
        value = float_of(pattern)
        if math.isnan(value):
            return NAN["f32"]
        if math.isinf(value):
            return pattern
        return pattern_of(math.copysign(float(ROUND[mode](Fraction(value))), value))

    for mode in list(ROUND):
        assert every_way(f"cvt.{mode}.f32.f32 r0, r1", {"r1": a}) == [integral(p, mode) for p in a]
    got = every_way("cvt.sat.f32.f32 r0, r1", {"r1": a})
    for pattern, result in zip(a, got, strict=True):
        value = float_of(pattern)
        assert result == pattern_of(0.0 if math.isnan(value) or value <= 0 else min(value, 1.0))


@pytest.mark.parametrize(
    "text",
    [
        "cvt.f16.f32 h0, r1",  # no rounding
        "cvt.rn.f64.f32 d0, r1",  # nothing to round
        "cvt.s32.f32 r0, r1",
        "cvt.rn.s32.f32 r0, r1",
        "cvt.rni.f32.s32 r0, r1",
        "cvt.rn.u32.s32 r0, r1",
        "cvt.rn.ftz.f16.f64 h0, d1",
        "cvt.rna.f16.f32 h0, r1",
        "cvt.rn.sat.bf16.f32 h0, r1",
        "cvt.rn.f16x2.f32 r0, r1",
    ],
)
def test_what_is_not_a_conversion_is_refused_by_name(text: str) -> None:
    with pytest.raises(Unsupported, match=text.split(maxsplit=1)[0]):
        Case().lower(text)


def test_which_nan_comes_of_a_conversion() -> None:
    """As an H200 has it; the ISA leaves it open."""
    quiet, signalling, small = 0x7FC0_0000, 0xFF80_0001, 0xFFAA_2345
    nans = {"r1": [quiet, signalling, small]}
    assert every_way("cvt.f32.f32 r0, r1", nans) == [quiet, signalling, small]
    assert every_way("cvt.ftz.f32.f32 r0, r1", nans) == [0x7FFF_FFFF] * 3
    assert every_way("cvt.f64.f32 d0, r1", nans) == [0x7FF8 << 48, 0xFFF8_0000_2000_0000, 0xFFFD_4468_A000_0000]
    assert every_way("cvt.ftz.f64.f32 d0, r1", nans) == [0x7FFF_FFFF_E000_0000] * 3
    assert every_way("cvt.rna.tf32.f32 r0, r1", nans) == [quiet, 0xFF80_0000, 0xFFAA_2000]
    assert every_way("cvt.rna.satfinite.tf32.f32 r0, r1", nans) == [0x7FBF_E000, 0xFF7F_E000, 0xFFAA_0000]
    halves = {"h1": [0x7E00, 0xFC01, 0xFEA8]}
    assert every_way("cvt.f64.f16 d0, h1", halves) == [0x7FF8 << 48, 0xFFF8_0400_0000_0000, 0xFFFA_A000_0000_0000]
    assert every_way("cvt.f32.bf16 r0, h1", {"h1": [0xFF81, 0x7FC0]}) == [0xFF81_0000, 0x7FC0_0000]
    assert every_way("cvt.ftz.f32.bf16 r0, h1", {"h1": [0xFF81, 0x7FC0]}) == [0x7FFF_FFFF] * 2
    wide = {"d1": [0x7FF0_0000_0000_0001, 0x7FF8_0000_0000_0000]}
    assert every_way("cvt.f64.f64 d0, d1", wide) == wide["d1"]
    assert every_way("cvt.rni.f64.f64 d0, d1", wide) == [0x7FF8_0000_0000_0001, 0x7FF8_0000_0000_0000]
    assert every_way("cvt.rn.f32.f64 r0, d1", wide) == [0x7FC0_0000] * 2
    assert every_way("cvt.rn.bf16.f64 h0, d1", wide) == [0x7FC0] * 2


def test_ftz_does_not_flush_the_f32_that_becomes_f16() -> None:
    assert every_way("cvt.rm.ftz.f16.f32 h0, r1", {"r1": [0x8000_0001, 0x0000_0001]}) == [0x8001, 0x0000]
    assert every_way("cvt.rm.ftz.bf16.f32 h0, r1", {"r1": [0x8000_0001, 0x0000_0001]}) == [0x8000, 0x0000]
