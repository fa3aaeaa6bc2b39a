import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Unsupported
from tests.sim.alu.comparisons import INTEGER, holds
from tests.sim.alu.harness import Case, every_way, run
from tests.sim.alu.patterns import float_of, float_patterns, integers, signed

LETTER = {16: "h", 32: "r", 64: "d"}
UNSIGNED = {"lo": INTEGER["lt"], "ls": INTEGER["le"], "hi": INTEGER["gt"], "hs": INTEGER["ge"]}


FLOAT = [*INTEGER, *(name + "u" for name in INTEGER), "num", "nan"]


@pytest.mark.parametrize(("kind", "bits"), [(k, b) for b in (16, 32, 64) for k in "usb"])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_integers_are_compared_by_their_type(kind: str, bits: int, data: st.DataObject) -> None:
    a, b = data.draw(integers(bits)), data.draw(integers(bits))
    x, y = ([signed(v, bits) if kind == "s" else v for v in values] for values in (a, b))
    operators = dict(INTEGER) if kind != "b" else {name: INTEGER[name] for name in ("eq", "ne")}
    if kind == "u":
        operators |= UNSIGNED
    letter = LETTER[bits]
    for name, oracle in operators.items():
        want = [oracle(p, q) for p, q in zip(x, y, strict=True)]
        two = {f"{letter}1": a, f"{letter}2": b}
        assert every_way(f"setp.{name}.{kind}{bits} p0, {letter}1, {letter}2", two) == want
        got = every_way(f"setp.{name}.{kind}{bits} p0, {letter}1, {b[0]}", {f"{letter}1": a})
        assert got == [oracle(p, y[0]) for p in x]
        got = every_way(f"set.{name}.u32.{kind}{bits} r0, {letter}1, {letter}2", two) if letter != "r" else None
        assert got is None or got == [0xFFFF_FFFF * w for w in want]
        got = every_way(f"set.{name}.f32.{kind}{bits} r9, {letter}1, {letter}2", two)
        assert got == [0x3F80_0000 * w for w in want]


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_floats_are_compared_with_or_without_nan(kind: str, data: st.DataObject) -> None:
    a, b = data.draw(float_patterns(kind)), data.draw(float_patterns(kind))
    letter = {"f16": "h", "bf16": "h", "f32": "r", "f64": "d"}[kind]
    x, y = ([float_of(v, kind) for v in values] for values in (a, b))
    for name in FLOAT:
        want = [holds(name, p, q) for p, q in zip(x, y, strict=True)]
        assert every_way(f"setp.{name}.{kind} p0, {letter}1, {letter}2", {f"{letter}1": a, f"{letter}2": b}) == want


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_pairs_give_a_predicate_or_a_mask_for_each_half(kind: str, data: st.DataObject) -> None:
    a, b = data.draw(float_patterns(kind, 64)), data.draw(float_patterns(kind, 64))
    words = {"r1": [x | y << 16 for x, y in zip(a[:32], a[32:], strict=True)]}
    words["r2"] = [x | y << 16 for x, y in zip(b[:32], b[32:], strict=True)]
    for name in ("lt", "neu", "nan"):
        want = [holds(name, float_of(x, kind), float_of(y, kind)) for x, y in zip(a, b, strict=True)]
        pairs = list(zip(want[:32], want[32:], strict=True))
        assert every_way(f"setp.{name}.{kind}x2 p0|p1, r1, r2", words) == pairs
        assert every_way(f"set.{name}.u32.{kind}x2 r0, r1, r2", words) == [
            0xFFFF * x | 0xFFFF0000 * y for x, y in pairs
        ]
        one = {"f16": 0x3C00, "bf16": 0x3F80}[kind]
        assert every_way(f"set.{name}.{kind}x2.{kind}x2 r0, r1, r2", words) == [
            one * x | (one << 16) * y for x, y in pairs
        ]


def test_a_second_predicate_is_of_the_negated_comparison() -> None:
    a, c = [1, 1, 9, 9], [0, 1, 0, 1]
    for name, combine in {"and": lambda t, c: t and c, "or": lambda t, c: t or c, "xor": lambda t, c: t != c}.items():
        got = every_way(f"setp.lt.{name}.s32 p0|p1, r1, 5, p2", {"r1": a, "p2": c})
        assert got == [(combine(x < 5, bool(p)), combine(x >= 5, bool(p))) for x, p in zip(a, c, strict=True)]
        got = every_way(f"setp.lt.{name}.s32 p0, r1, 5, !p2", {"r1": a, "p2": c})
        assert got == [combine(x < 5, not p) for x, p in zip(a, c, strict=True)]
        got = every_way(f"set.lt.{name}.u32.s32 r0, r1, 5, p2", {"r1": a, "p2": c})
        assert got == [0xFFFF_FFFF * combine(x < 5, bool(p)) for x, p in zip(a, c, strict=True)]
    assert every_way("setp.eq.s32 p0|p1, r1, 9", {"r1": a}) == [(x == 9, x != 9) for x in a]
    case = Case(r1=9)
    case.run("setp.eq.s32 _|p1, r1, 9")
    assert case.values["p1"] is False


def test_flushed_subnormals_compare_equal_to_zero() -> None:
    assert run("setp.gt.f32 p0, r1, 0f00000000", r1=1) is True
    assert run("setp.gt.ftz.f32 p0, r1, 0f00000000", r1=1) is False
    assert run("setp.eq.ftz.f16 p0, h1, 0", h1=0x8001) is True


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_selection(data: st.DataObject) -> None:
    choose = data.draw(st.lists(st.integers(0, 1), min_size=32, max_size=32))
    for bits, letter in LETTER.items():
        a, b = data.draw(integers(bits)), data.draw(integers(bits))
        operands = {f"{letter}1": a, f"{letter}2": b}
        want = [x if c else y for x, y, c in zip(a, b, choose, strict=True)]
        got = every_way(f"selp.b{bits} {letter}0, {letter}1, {letter}2, p3", {**operands, "p3": choose})
        assert got == want
        got = every_way(f"selp.b{bits} {letter}0, {letter}1, -1, !p3", {f"{letter}1": a, "p3": choose})
        assert got == [(1 << bits) - 1 if c else x for x, c in zip(a, choose, strict=True)]
        third = data.draw(integers(32))
        got = every_way(f"slct.b{bits}.s32 {letter}0, {letter}1, {letter}2, r3", {**operands, "r3": third})
        assert got == [x if signed(c, 32) >= 0 else y for x, y, c in zip(a, b, third, strict=True)]
        third = data.draw(float_patterns("f32"))
        got = every_way(f"slct.u{bits}.f32 {letter}0, {letter}1, {letter}2, r3", {**operands, "r3": third})
        assert got == [x if float_of(c) >= 0 else y for x, y, c in zip(a, b, third, strict=True)]


def test_the_predicate_of_a_uniform_comparison_is_a_bool_and_of_another_an_array() -> None:
    assert run("setp.lt.s32 p0, r1, 4", r1=3) is True
    result = run("setp.lt.s32 p0, r1, 4", r1=np.arange(32, dtype=np.uint32))
    assert result.tolist() == [True] * 4 + [False] * 28


@pytest.mark.parametrize(
    "text", ["setp.lt.b32 p0, r1, r2", "setp.lo.s32 p0, r1, r2", "setp.equ.s32 p0, r1, r2",
             "setp.lt.ftz.s32 p0, r1, r2", "setp.lo.f32 p0, r1, r2", "set.eq.u64.u32 d0, r1, r2",
             "selp.pred p0, p1, p2, p3", "slct.b32.u32 r0, r1, r2, r3"]
)  # fmt: skip
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(Unsupported, match=text.split(maxsplit=1)[0].replace(".", r"\.")):
        Case().lower(text)
