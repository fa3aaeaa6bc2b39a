import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Unsupported
from tests.sim.alu.harness import Case, every_way, run
from tests.sim.alu.patterns import integers, signed

LETTER = {16: "h", 32: "r", 64: "d"}
TYPES = [(kind, bits) for bits in (16, 32, 64) for kind in "us"]


def divided(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return abs(a) % abs(b) * (-1 if a < 0 else 1)


TWO = {
    "add": lambda a, b, _: a + b,
    "sub": lambda a, b, _: a - b,
    "mul.lo": lambda a, b, _: a * b,
    "mul.hi": lambda a, b, bits: a * b >> bits,
    "min": lambda a, b, _: min(a, b),
    "max": lambda a, b, _: max(a, b),
    "div": lambda a, b, _: divided(a, b) if b else -1,
    "rem": lambda a, b, _: remainder(a, b) if b else a,
}
THREE = {
    "mad.lo": lambda a, b, c, _: a * b + c,
    "mad.hi": lambda a, b, c, bits: (a * b >> bits) + c,
    "sad": lambda a, b, c, _: c + abs(a - b),
}


@pytest.mark.parametrize(("kind", "bits"), TYPES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_arithmetic_wraps(kind: str, bits: int, data: st.DataObject) -> None:
    patterns = [data.draw(integers(bits)) for _ in range(3)]
    names = [f"{LETTER[bits]}{n}" for n in range(4)]
    operands = dict(zip(names[1:], patterns, strict=True))
    mask = (1 << bits) - 1
    numbers = [[signed(v, bits) if kind == "s" else v for v in values] for values in patterns]
    two = {name: operands[name] for name in names[1:3]}
    for root, oracle in TWO.items():
        got = every_way(f"{root}.{kind}{bits} {', '.join(names[:3])}", two)
        assert got == [oracle(a, b, bits) & mask for a, b in zip(*numbers[:2], strict=True)], root
    for root, oracle in THREE.items():
        got = every_way(f"{root}.{kind}{bits} {', '.join(names)}", operands)
        assert got == [oracle(a, b, c, bits) & mask for a, b, c in zip(*numbers, strict=True)], root


@pytest.mark.parametrize(("kind", "bits"), [t for t in TYPES if t[1] < 64])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_wide_products(kind: str, bits: int, data: st.DataObject) -> None:
    a, b, c = data.draw(integers(bits)), data.draw(integers(bits)), data.draw(integers(2 * bits))
    narrow, broad = LETTER[bits], LETTER[2 * bits]
    mask = (1 << 2 * bits) - 1
    x, y = ([signed(v, bits) if kind == "s" else v for v in values] for values in (a, b))
    operands = {f"{narrow}1": a, f"{narrow}2": b}
    got = every_way(f"mul.wide.{kind}{bits} {broad}0, {narrow}1, {narrow}2", operands)
    assert got == [p * q & mask for p, q in zip(x, y, strict=True)]
    got = every_way(f"mad.wide.{kind}{bits} {broad}0, {narrow}1, {narrow}2, {broad}3", {**operands, f"{broad}3": c})
    assert got == [p * q + r & mask for p, q, r in zip(x, y, c, strict=True)]


def clamp(value: int) -> int:
    return min(max(value, -(1 << 31)), (1 << 31) - 1) & 0xFFFF_FFFF


def low24(value: int, kind: str) -> int:
    value &= 0xFF_FFFF
    return signed(value, 24) if kind == "s" else value


@settings(max_examples=20, deadline=None)
@given(a=integers(32), b=integers(32), c=integers(32))
def test_saturation_and_24_bit_products(a: list[int], b: list[int], c: list[int]) -> None:
    two, three = {"r1": a, "r2": b}, {"r1": a, "r2": b, "r3": c}
    lanes = [tuple(signed(v, 32) for v in lane) for lane in zip(a, b, c, strict=True)]
    assert every_way("add.sat.s32 r0, r1, r2", two) == [clamp(x + y) for x, y, _ in lanes]
    assert every_way("sub.sat.s32 r0, r1, r2", two) == [clamp(x - y) for x, y, _ in lanes]
    assert every_way("mad.hi.sat.s32 r0, r1, r2, r3", three) == [
        (x * y >> 32) + z & 0xFFFF_FFFF for x, y, z in lanes
    ]  # the sum wraps on an H200, whatever the ISA says
    for kind in "us":
        products = [low24(x, kind) * low24(y, kind) for x, y in zip(a, b, strict=True)]
        assert every_way(f"mul24.lo.{kind}32 r0, r1, r2", two) == [p & 0xFFFF_FFFF for p in products]
        assert every_way(f"mul24.hi.{kind}32 r0, r1, r2", two) == [p >> 16 & 0xFFFF_FFFF for p in products]
        got = every_way(f"mad24.lo.{kind}32 r0, r1, r2, r3", three)
        assert got == [p + z & 0xFFFF_FFFF for p, z in zip(products, c, strict=True)]
    signed_products = [low24(x, "s") * low24(y, "s") >> 16 for x, y in zip(a, b, strict=True)]
    got = every_way("mad24.hi.sat.s32 r0, r1, r2, r3", three)
    assert got == [clamp(p + z) for p, (_, _, z) in zip(signed_products, lanes, strict=True)]


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(a=integers(32), b=integers(32))
def test_pairs_of_16_bits(a: list[int], b: list[int]) -> None:
    def pairs(function, kind: str) -> list[int]:
        results = []
        for x, y in zip(a, b, strict=True):
            halves = [(x >> s & 0xFFFF, y >> s & 0xFFFF) for s in (0, 16)]
            values = [function(*(signed(v, 16) if kind == "s" else v for v in half)) & 0xFFFF for half in halves]
            results.append(values[0] | values[1] << 16)
        return results

    operands = {"r1": a, "r2": b}
    for kind in "us":
        assert every_way(f"add.{kind}16x2 r0, r1, r2", operands) == pairs(lambda x, y: x + y, kind)
        assert every_way(f"min.{kind}16x2 r0, r1, r2", operands) == pairs(min, kind)
        assert every_way(f"max.{kind}16x2 r0, r1, r2", operands) == pairs(max, kind)
    want = pairs(lambda x, y: max(min(x, y), 0), "s")
    assert every_way("min.relu.s16x2 r0, r1, r2", operands) == every_way("min.s16x2.relu r0, r1, r2", operands) == want
    got = every_way("max.relu.s32 r0, r1, r2", operands)
    assert got == [max(signed(x, 32), signed(y, 32), 0) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("bits", [16, 32, 64])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_abs_and_neg(bits: int, data: st.DataObject) -> None:
    a = data.draw(integers(bits))
    letter, mask = LETTER[bits], (1 << bits) - 1
    assert every_way(f"abs.s{bits} {letter}0, {letter}1", {f"{letter}1": a}) == [abs(signed(v, bits)) & mask for v in a]
    assert every_way(f"neg.s{bits} {letter}0, {letter}1", {f"{letter}1": a}) == [-v & mask for v in a]


def test_a_division_by_zero_is_counted_for_active_lanes_only() -> None:
    import numpy as np

    divisors = np.ones(32, np.uint32)
    divisors[5] = 0
    case = Case(r1=7, r2=divisors)
    counters = case.warp.cta.launch.counters
    case.run("div.u32 r0, r1, r2", mask=1)
    assert counters["divisions.by_zero"] == 0
    case.run("div.u32 r0, r1, r2")
    assert counters["divisions.by_zero"] == 1
    assert case.values["r0"].tolist() == [7] * 5 + [0xFFFF_FFFF] + [7] * 26
    case = Case(r1=7, r2=0)
    case.run("rem.s32 r0, r1, r2")
    assert (case.values["r0"], case.warp.cta.launch.counters["divisions.by_zero"]) == (7, 32)


def test_literals_and_uniform_values_stay_ints() -> None:
    assert run("add.s32 r0, r1, -1", r1=0) == 0xFFFF_FFFF
    assert run("mad.lo.s64 d0, d1, -8, d2", d1=3, d2=100) == 76
    assert run("mul.wide.s32 d0, r1, -4", r1=0xFFFF_FFFF) == 4
    assert run("max.s32 r0, r1, -5", r1=0xFFFF_FFF0) == 0xFFFF_FFFB
    assert run("div.s32 r0, r1, -3", r1=10) == 0xFFFF_FFFD


@pytest.mark.parametrize(
    "text",
    [
        "add.s8 b0, b1, b2",
        "add.sat.u32 r0, r1, r2",
        "sub.u16x2 r0, r1, r2",
        "mul.s32 r0, r1, r2",
        "mul.wide.s64 d0, d1, d2",
        "abs.u32 r0, r1",
        "add.s32 r0, r1",
        "min.relu.u32 r0, r1, r2",
    ],
)
def test_other_forms_are_refused_by_name(text: str) -> None:
    with pytest.raises(Unsupported, match=text.split(maxsplit=1)[0].replace(".", r"\.")):
        Case().lower(text)
