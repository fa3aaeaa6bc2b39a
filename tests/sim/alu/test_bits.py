import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.alu.bit_fields import extracted, inserted, permuted
from tests.sim.alu.harness import every_way, run
from tests.sim.alu.patterns import integers, signed

LETTER = {32: "r", 64: "d"}


@settings(max_examples=40, deadline=None)
@given(a=integers(32), b=integers(32), c=integers(32), literal=st.integers(0, 0xFFFF))
def test_prmt_with_a_selector(a: list[int], b: list[int], c: list[int], literal: int) -> None:
    lanes = list(zip(a, b, c, strict=True))
    assert every_way("prmt.b32 r0, r1, r2, r3", {"r1": a, "r2": b, "r3": c}) == [permuted(*lane) for lane in lanes]
    got = every_way(f"prmt.b32 r0, r1, r2, {literal}", {"r1": a, "r2": b})
    assert got == [permuted(x, y, literal) for x, y, _ in lanes]
    assert run(f"prmt.b32 r0, r1, 0, {literal}", r1=a[0]) == permuted(a[0], 0, literal)


def test_every_selector_of_prmt_as_a_literal() -> None:
    a, b = 0x8321_70F4, 0x0980_AB7F
    for nibbles in itertools.product((0, 3, 4, 6, 7, 9, 14), repeat=4):
        selector = sum(nibble << 4 * place for place, nibble in enumerate(nibbles))
        assert run(f"prmt.b32 r0, r1, r2, {selector}", r1=a, r2=b) == permuted(a, b, selector)


MODES = {
    # the ISA's table, most significant byte first, for selectors 0 to 3
    "f4e": ["3210", "4321", "5432", "6543"],
    "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"],
    "rc16": ["1010", "3232", "1010", "3232"],
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_prmt(mode: str) -> None:
    a, b = 0x3322_1100, 0x7766_5544
    for selector, row in enumerate(MODES[mode]):
        want = int("".join(digit * 2 for digit in row), 16)
        assert run(f"prmt.b32.{mode} r0, r1, r2, {selector}", r1=a, r2=b) == want
        assert every_way(f"prmt.b32.{mode} r0, r1, r2, r3", {"r1": [a], "r2": [b], "r3": [selector | 0xF4]}) == [want]


PLACES = st.lists(
    st.sampled_from([0, 1, 7, 8, 16, 31, 32, 33, 40, 63, 64, 65, 100, 255, 256, 260, 1 << 31, (1 << 31) + 1]),
    min_size=32,
    max_size=32,
)


@pytest.mark.parametrize("bits", [32, 64])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_fields(bits: int, data: st.DataObject) -> None:
    a, b = data.draw(integers(bits)), data.draw(integers(bits))
    position, length = data.draw(PLACES), data.draw(PLACES)
    letter = LETTER[bits]
    for kind in "us":
        got = every_way(
            f"bfe.{kind}{bits} {letter}0, {letter}1, r2, r3", {f"{letter}1": a, "r2": position, "r3": length}
        )
        assert got == [extracted(v, p, n, bits, kind) for v, p, n in zip(a, position, length, strict=True)]
        got = every_way(f"bfe.{kind}{bits} {letter}0, {letter}1, {position[0]}, {length[0]}", {f"{letter}1": a})
        assert got == [extracted(v, position[0], length[0], bits, kind) for v in a]
    text = f"bfi.b{bits} {letter}0, {letter}1, {letter}2, r3, r4"
    got = every_way(text, {f"{letter}1": a, f"{letter}2": b, "r3": position, "r4": length})
    assert got == [inserted(v, w, p, n, bits) for v, w, p, n in zip(a, b, position, length, strict=True)]


@pytest.mark.parametrize("bits", [32, 64])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_counting(bits: int, data: st.DataObject) -> None:
    a = data.draw(integers(bits))
    letter = LETTER[bits]
    one = {f"{letter}1": a}
    assert every_way(f"popc.b{bits} r0, {letter}1", one) == [v.bit_count() for v in a]
    assert every_way(f"clz.b{bits} r0, {letter}1", one) == [bits - v.bit_length() for v in a]
    assert every_way(f"brev.b{bits} {letter}0, {letter}1", one) == [int(f"{v:0{bits}b}"[::-1], 2) for v in a]
    for kind in "us":
        places = [(~v if kind == "s" and v >> bits - 1 else v) & (1 << bits) - 1 for v in a]
        want = [v.bit_length() - 1 for v in places]
        assert every_way(f"bfind.{kind}{bits} r0, {letter}1", one) == [w & 0xFFFF_FFFF for w in want]
        got = every_way(f"bfind.shiftamt.{kind}{bits} r0, {letter}1", one)
        assert got == [bits - 1 - w if w >= 0 else 0xFFFF_FFFF for w in want]


def test_find_nth_set() -> None:
    # examples with a mask of bits 1, 2, 5 and 31
    mask = 1 << 1 | 1 << 2 | 1 << 5 | 1 << 31
    cases = [(0, 1, 1), (0, 2, 2), (2, 1, 2), (3, 1, 5), (3, 2, 31), (3, 3, None), (5, 0, 5), (4, 0, None), (4, -1, 2),
             (5, -1, 5), (5, -3, 1), (5, -4, None), (31, -1, 31), (5, 1 << 31, 0), (40, 1 << 31, 0)]  # fmt: skip
    for base, offset, want in cases:
        got = every_way("fns.b32 r0, r1, r2, r3", {"r1": [mask], "r2": [base], "r3": [offset & 0xFFFF_FFFF]})
        assert got == [0xFFFF_FFFF if want is None else want], (base, offset)


@settings(max_examples=15, deadline=None)
@given(a=integers(32), b=integers(32))
def test_sizes_and_masks(a: list[int], b: list[int]) -> None:
    for mode in ("clamp", "wrap"):
        sizes = [n & 31 if mode == "wrap" else min(n, 32) for n in b]
        starts = [n & 31 if mode == "wrap" else min(n, 32) for n in a]
        operands = {"r1": a, "r2": b}
        low = [v & (1 << n) - 1 for v, n in zip(a, sizes, strict=True)]
        assert every_way(f"szext.{mode}.u32 r0, r1, r2", operands) == low
        want = [signed(v, n) & 0xFFFF_FFFF if n else 0 for v, n in zip(low, sizes, strict=True)]
        assert every_way(f"szext.{mode}.s32 r0, r1, r2", operands) == want
        want = [((1 << n) - 1) << p & 0xFFFF_FFFF for p, n in zip(starts, sizes, strict=True)]
        assert every_way(f"bmsk.{mode}.b32 r0, r1, r2", operands) == want
