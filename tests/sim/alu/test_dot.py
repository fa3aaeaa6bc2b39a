import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault
from tests.sim.alu.harness import Case, every_way
from tests.sim.alu.patterns import integers, signed

LETTER = {32: "r", 64: "d"}


def items(word: int, kind: str, bits: int) -> list[int]:
    values = [word >> bits * n & (1 << bits) - 1 for n in range(32 // bits)]
    return [signed(v, bits) for v in values] if kind == "s32" else values


@settings(max_examples=15, deadline=None)
@given(a=integers(32), b=integers(32), c=integers(32))
def test_dot_products(a: list[int], b: list[int], c: list[int]) -> None:
    operands = {"r1": a, "r2": b, "r3": c}
    for first, second in itertools.product(("u32", "s32"), repeat=2):
        want = [
            z + sum(p * q for p, q in zip(items(x, first, 8), items(y, second, 8), strict=True)) & 0xFFFF_FFFF
            for x, y, z in zip(a, b, c, strict=True)
        ]
        assert every_way(f"dp4a.{first}.{second} r0, r1, r2, r3", operands) == want
        for part, start in (("lo", 0), ("hi", 2)):
            want = [
                z + sum(p * q for p, q in zip(items(x, first, 16), items(y, second, 8)[start : start + 2], strict=True))
                & 0xFFFF_FFFF
                for x, y, z in zip(a, b, c, strict=True)
            ]
            assert every_way(f"dp2a.{part}.{first}.{second} r0, r1, r2, r3", operands) == want


def joined(values: list[list[int]], bits: int) -> list[int]:
    return [sum(word << bits * n for n, word in enumerate(words)) for words in zip(*values, strict=True)]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("uniform", [False, True])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_chains_carry_from_word_to_word(bits: int, uniform: bool, data: st.DataObject) -> None:
    import numpy as np

    letter, mask = LETTER[bits], (1 << 3 * bits) - 1
    a, b = ([data.draw(integers(bits)) for _ in range(3)] for _ in range(2))
    dtype = {32: np.uint32, 64: np.uint64}[bits]

    def registers(values: list[list[int]], first: int) -> dict[str, object]:
        return {f"{letter}{first + n}": v[0] if uniform else np.array(v, dtype) for n, v in enumerate(values)}

    for root, sign in (("add", 1), ("sub", -1)):
        case = Case(**registers(a, 3), **registers(b, 6))
        case.run(f"{root}.cc.u{bits} {letter}0, {letter}3, {letter}6")
        case.run(f"{root}c.cc.u{bits} {letter}1, {letter}4, {letter}7")
        case.run(f"{root}c.s{bits} {letter}2, {letter}5, {letter}8")
        got = [case.values[f"{letter}{n}"] for n in range(3)]
        totals = joined([[v] if uniform else v.tolist() for v in got], bits)
        want = [x + sign * y & mask for x, y in zip(joined(a, bits), joined(b, bits), strict=True)]
        assert totals == (want[:1] if uniform else want)


@settings(max_examples=10, deadline=None)
@given(a=integers(32), b=integers(32), c=integers(32), d=integers(32))
def test_a_long_product_by_mad_and_madc(a: list[int], b: list[int], c: list[int], d: list[int]) -> None:
    import numpy as np

    arrays = {f"r{n}": np.array(v, np.uint32) for n, v in enumerate((a, b, c, d), 4)}
    case = Case(**arrays)
    case.run("mad.lo.cc.u32 r0, r4, r5, r6")
    case.run("madc.hi.u32 r1, r4, r5, r7")
    want = [x * y + (low | high << 32) & (1 << 64) - 1 for x, y, low, high in zip(a, b, c, d, strict=True)]
    assert [int(p) | int(q) << 32 for p, q in zip(case.values["r0"], case.values["r1"], strict=True)] == want


def test_the_carry_is_each_lanes_own_and_must_have_been_written() -> None:
    case = Case(r1=0xFFFF_FFFF, r2=1, r3=0)
    with pytest.raises(Fault, match="carry flag"):
        case.run("addc.u32 r0, r3, r3")
    case.run("add.cc.u32 r0, r1, r2", mask=0b11)
    case.run("add.cc.u32 r0, r3, r3", mask=0b10)
    case.run("addc.u32 r0, r3, r3", mask=0b11)
    assert case.values["r0"].tolist()[:2] == [1, 0]
    with pytest.raises(Fault, match="lane 2"):
        case.run("addc.u32 r0, r3, r3", mask=0b111)
