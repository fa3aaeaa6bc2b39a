import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Unsupported
from tests.sim.alu.exact_floats import fused, product
from tests.sim.alu.halves import ONE, extreme, multiplied, paired, relu, sum_of_products
from tests.sim.alu.harness import Case, compiled, every_way
from tests.sim.alu.patterns import float_of, float_patterns

KINDS = ["f16", "bf16"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_arithmetic_rounds_the_exact_result_once_alone_and_in_pairs(kind: str, data: st.DataObject) -> None:
    a, b, c = (data.draw(float_patterns(kind)) for _ in range(3))
    single, pair = {"h1": a, "h2": b}, {"r1": paired(a), "r2": paired(b)}
    wants = {
        "add": [sum_of_products(x, ONE[kind], y, kind) for x, y in zip(a, b, strict=True)],
        "sub": [sum_of_products(x, ONE[kind], y ^ 0x8000, kind) for x, y in zip(a, b, strict=True)],
        "mul": [multiplied(x, y, kind) for x, y in zip(a, b, strict=True)],
    }
    for root, want in wants.items():
        assert every_way(f"{root}.rn.{kind} h0, h1, h2", single) == want
        assert every_way(f"{root}.{kind}x2 r0, r1, r2", pair) == paired(want)
    want = [sum_of_products(x, y, z, kind) for x, y, z in zip(a, b, c, strict=True)]
    assert every_way(f"fma.rn.{kind} h0, h1, h2, h3", {**single, "h3": c}) == want
    got = every_way(f"fma.rn.relu.{kind}x2 r0, r1, r2, r3", {**pair, "r3": paired(c)})
    assert got == paired([relu(code) for code in want])


def test_fma_of_halves_is_not_float32_arithmetic_rounded_again() -> None:
    a, b, c = 0x3E00, 0x3C01, 0x8001  # 1.5 * (1 + 2**-10) - 2**-24: just below the middle of two halves
    want = sum_of_products(a, b, c, "f16")
    single = np.float32(float_of(a, "f16") * float_of(b, "f16")) + np.float32(float_of(c, "f16"))
    assert int(np.float16(single).view(np.uint16)) != want, "the case no longer tells the two apart"
    assert every_way("fma.rn.f16 h0, h1, h2, h3", {"h1": [a], "h2": [b], "h3": [c]}) == [want]


def test_bf16_agrees_with_ml_dtypes() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 1 << 16, 32 * 512, dtype=np.uint16) for _ in range(2))
    x, y = a.view(ml_dtypes.bfloat16), b.view(ml_dtypes.bfloat16)
    with np.errstate(all="ignore"):
        for root, want in (("add", x + y), ("sub", x - y), ("mul", x * y)):
            block, _ = compiled(f"{root}.bf16 h0, h1, h2")
            (got,) = block(Case().warp, (1 << 32) - 1, None, a, b).values()
            is_nan = np.isnan(want.astype(np.float32))
            assert np.array_equal(got[~is_nan], want.view(np.uint16)[~is_nan])
            assert (got[is_nan] == 0x7FFF).all()


@settings(max_examples=15, deadline=None)
@given(a=float_patterns("f16"), b=float_patterns("f16"))
def test_ftz_and_sat_of_f16(a: list[int], b: list[int]) -> None:
    def flush(code: int) -> int:
        return code & 0x8000 if not code & 0x7C00 else code

    operands = {"h1": a, "h2": b}
    got = every_way("mul.rn.ftz.f16 h0, h1, h2", operands)
    assert got == [flush(multiplied(flush(x), flush(y), "f16")) for x, y in zip(a, b, strict=True)]
    got = every_way("mul.sat.f16 h0, h1, h2", operands)
    for x, y, result in zip(a, b, got, strict=True):
        value = float_of(multiplied(x, y, "f16"), "f16")
        assert float_of(result, "f16") == (0.0 if math.isnan(value) or value <= 0 else min(value, 1.0))
        assert not result & 0x8000
    assert every_way("abs.ftz.f16x2 r0, r1", {"r1": paired(a)}) == paired(
        [0x7FFF if x & 0x7FFF > 0x7C00 else flush(x) & 0x7FFF for x in a]
    )
    assert every_way("neg.bf16x2 r0, r1", {"r1": paired(a)}) == paired(
        [0x7FFF if x & 0x7FFF > 0x7F80 else x ^ 0x8000 for x in a]
    )


@pytest.mark.parametrize("root", ["min", "max"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_min_and_max(kind: str, root: str, data: st.DataObject) -> None:
    a, b = data.draw(float_patterns(kind)), data.draw(float_patterns(kind))
    lanes = list(zip(a, b, strict=True))
    single, pair = {"h1": a, "h2": b}, {"r1": paired(a), "r2": paired(b)}
    want = [extreme(root, [x, y], kind, propagates=False) for x, y in lanes]
    assert every_way(f"{root}.{kind} h0, h1, h2", single) == want
    assert every_way(f"{root}.{kind}x2 r0, r1, r2", pair) == paired(want)
    want = [extreme(root, [x, y], kind, propagates=True) for x, y in lanes]
    assert every_way(f"{root}.NaN.{kind} h0, h1, h2", single) == want
    got = every_way(f"{root}.xorsign.abs.{kind} h0, h1, h2", single)
    for (x, y), result in zip(lanes, got, strict=True):
        best = extreme(root, [x & 0x7FFF, y & 0x7FFF], kind, propagates=False)
        assert result == (best if best == 0x7FFF else best | (x ^ y) & 0x8000)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_mixed_precision_is_that_of_f32(kind: str, mode: str, data: st.DataObject) -> None:
    a, b = data.draw(float_patterns(kind)), data.draw(float_patterns(kind))
    c = data.draw(float_patterns("f32"))
    one = 0x3F80_0000

    def wide(code: int) -> int:
        value = float_of(code, kind)
        return 0x7FFF_FFFF if math.isnan(value) else int(np.float32(value).view(np.uint32))

    got = every_way(f"add.{mode}.f32.{kind} r0, h1, r2", {"h1": a, "r2": c})
    assert got == [fused(wide(x), one, z, "f32", mode) for x, z in zip(a, c, strict=True)]
    got = every_way(f"sub.{mode}.f32.{kind} r0, h1, r2", {"h1": a, "r2": c})
    assert got == [fused(wide(x), one, z ^ 0x8000_0000, "f32", mode) for x, z in zip(a, c, strict=True)]
    got = every_way(f"fma.{mode}.f32.{kind} r0, h1, h2, r3", {"h1": a, "h2": b, "r3": c})
    assert got == [fused(wide(x), wide(y), z, "f32", mode) for x, y, z in zip(a, b, c, strict=True)]
    assert product(one, one, "f32", mode) == one


@pytest.mark.parametrize("text", ["fma.rn.oob.f16 h0, h1, h2, h3", "add.ftz.bf16 h0, h1, h2", "add.rz.f16 h0, h1, h2"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(Unsupported, match=text.split(maxsplit=1)[0].replace(".", r"\.")):
        Case().lower(text)
