import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Unsupported
from tests.sim.alu.harness import Case, every_way, run
from tests.sim.alu.patterns import integers, signed

LETTER = {16: "h", 32: "r", 64: "d"}


@pytest.mark.parametrize("bits", [16, 32, 64])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_bitwise_operators(bits: int, data: st.DataObject) -> None:
    a, b = data.draw(integers(bits)), data.draw(integers(bits))
    letter, mask = LETTER[bits], (1 << bits) - 1
    two = {f"{letter}1": a, f"{letter}2": b}
    for root, oracle in {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}.items():
        got = every_way(f"{root}.b{bits} {letter}0, {letter}1, {letter}2", two)
        assert got == [oracle(x, y) for x, y in zip(a, b, strict=True)]
    assert every_way(f"not.b{bits} {letter}0, {letter}1", {f"{letter}1": a}) == [x ^ mask for x in a]
    assert every_way(f"cnot.b{bits} {letter}0, {letter}1", {f"{letter}1": a}) == [int(not x) for x in a]


def test_predicates() -> None:
    a, b = [0, 0, 1, 1], [0, 1, 0, 1]
    operands = {"p1": a, "p2": b}
    assert every_way("and.pred p0, p1, p2", operands) == [False, False, False, True]
    assert every_way("or.pred p0, p1, !p2", operands) == [True, False, True, True]
    assert every_way("xor.pred p0, p1, p2", operands) == [False, True, True, False]
    assert every_way("not.pred p0, p1", {"p1": a}) == [True, True, False, False]
    assert every_way("and.pred p0, p1, 1", {"p1": a}) == [False, False, True, True]


@pytest.mark.parametrize("table", range(256))
def test_every_table_of_lop3(table: int) -> None:
    a, b, c = ([place >> bit & 1 for place in range(8)] for bit in (2, 1, 0))
    a, b, c = ([v * 0xFFFF_0001 for v in values] for values in (a, b, c))
    got = every_way(f"lop3.b32 r0, r1, r2, r3, {table}", {"r1": a, "r2": b, "r3": c}) if table % 16 == 10 else None
    names = {"r1": np.array(a * 4, np.uint32), "r2": np.array(b * 4, np.uint32), "r3": np.array(c * 4, np.uint32)}
    result = run(f"lop3.b32 r0, r1, r2, r3, {table}", **names)
    for lane in range(8):
        want = sum(
            (table >> (a[lane] >> bit & 1) * 4 + (b[lane] >> bit & 1) * 2 + (c[lane] >> bit & 1) & 1) << bit
            for bit in range(32)
        )
        assert (int(result[lane]) if isinstance(result, np.ndarray) else result) == want
        assert got is None or got[lane] == want


def test_lop3_combines_a_predicate() -> None:
    values = {"r1": 1, "r2": 0, "r3": 0}
    assert run("lop3.or.b32 r0|p0, r1, r2, r3, 0xFE, p1", **values, p1=False) == (1, True)
    assert run("lop3.and.b32 r0|p0, r1, r2, r3, 0xFE, p1", **values, p1=False) == (1, False)
    assert run("lop3.or.b32 r0|p0, r1, r2, r3, 0x80, !p1", **values, p1=True) == (0, False)


@pytest.mark.parametrize("bits", [16, 32, 64])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_shifts(bits: int, data: st.DataObject) -> None:
    a = data.draw(integers(bits))
    amounts = data.draw(st.lists(st.sampled_from([0, 1, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200, 1 << 31]),
                                 min_size=32, max_size=32))  # fmt: skip
    letter, mask = LETTER[bits], (1 << bits) - 1
    oracles = {
        f"shl.b{bits}": lambda v, n: v << n if n < bits else 0,
        f"shr.u{bits}": lambda v, n: v >> n if n < bits else 0,
        f"shr.b{bits}": lambda v, n: v >> n if n < bits else 0,
        f"shr.s{bits}": lambda v, n: signed(v, bits) >> min(n, bits),
    }
    for opcode, oracle in oracles.items():
        got = every_way(f"{opcode} {letter}0, {letter}1, r2", {f"{letter}1": a, "r2": amounts})
        assert got == [oracle(v, n) & mask for v, n in zip(a, amounts, strict=True)], opcode
        for n in set(amounts):
            got = every_way(f"{opcode} {letter}0, {letter}1, {n}", {f"{letter}1": a})
            assert got == [oracle(v, n) & mask for v in a], (opcode, n)


@settings(max_examples=15, deadline=None)
@given(a=integers(32), b=integers(32), c=integers(32))
def test_funnel_shifts(a: list[int], b: list[int], c: list[int]) -> None:
    operands = {"r1": a, "r2": b, "r3": c}
    for mode in ("clamp", "wrap"):
        amounts = [n & 31 if mode == "wrap" else min(n, 32) for n in c]
        words = [high << 32 | low for low, high in zip(a, b, strict=True)]
        got = every_way(f"shf.l.{mode}.b32 r0, r1, r2, r3", operands)
        assert got == [w << n >> 32 & 0xFFFF_FFFF for w, n in zip(words, amounts, strict=True)]
        got = every_way(f"shf.r.{mode}.b32 r0, r1, r2, r3", operands)
        assert got == [w >> n & 0xFFFF_FFFF for w, n in zip(words, amounts, strict=True)]
        for n in (0, 7, 32, 39):
            shift = n & 31 if mode == "wrap" else min(n, 32)
            got = every_way(f"shf.l.{mode}.b32 r0, r1, r2, {n}", {"r1": a, "r2": b})
            assert got == [w << shift >> 32 & 0xFFFF_FFFF for w in words]


def test_what_clears_the_lane_bits_makes_a_uniform_value_an_int() -> None:
    tid = np.arange(64, 96, dtype=np.uint32)
    for text in ("shr.u32 r0, r1, 5", "shr.s32 r0, r1, 5", "and.b32 r0, r1, 0xFFFFFFE0", "and.b32 r0, -32, r1"):
        assert type(run(text, r1=tid)) is int, text
    # where lanes differ all the same, or may, they stay apart
    assert isinstance(run("shr.u32 r0, r1, 5", r1=tid * np.uint32(32)), np.ndarray)
    assert isinstance(run("and.b32 r0, r1, 31", r1=tid), np.ndarray)


@pytest.mark.parametrize(
    "text", ["and.u32 r0, r1, r2", "shl.u32 r0, r1, r2", "lop3.b32 r0, r1, r2, r3, r4", "lop3.b32 r0, r1, r2, r3, 256"]
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(Unsupported, match=text.split(maxsplit=1)[0].replace(".", r"\.")):
        Case().lower(text)
