"""Every form of an operand, and what is said of those that mean nothing."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.sim.ptx.lexer import PtxError
from pytest_nvfp4.sim.ptx.syntax import (
    Address,
    Immediate,
    Label,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)

from .samples import REGISTERS, kernel


def register(name: str, *, negated: bool = False) -> Register:
    """As ``samples.REGISTERS`` declares it."""
    known = {r.name: r for r in kernel("").registers}[name]
    return Register(known.name, known.slot, known.bits, negated)


def operands(text: str, **parts: str) -> tuple[Any, ...]:
    return kernel(text, **parts).instructions[-1].operands


R1, R2, R3, RD1, P1, P2 = map(register, ["%r1", "%r2", "%r3", "%rd1", "%p1", "%p2"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("add.s32 %r1, %r2, -4;", (R1, R2, Immediate(-4))),
        ("add.s32 %r1 ,%r2,\t0x10 ;", (R1, R2, Immediate(16))),
        ("mov.b32 %r1, (1+2)*4;", (R1, Immediate(12))),
        ("mov.b32 %r1, (1|2);", (R1, Immediate(3))),
        ("mov.b32 %r1, 1|2;", (R1, Immediate(3))),
        ("mov.u32 %r1, %tid.x;", (R1, Special("tid.x"))),
        ("mov.u32 %r1, %lanemask_lt;", (R1, Special("lanemask_lt"))),
        ("mov.u32 %r1, %cluster_ctarank;", (R1, Special("cluster_ctarank"))),
        ("mov.u64 %rd1, %globaltimer;", (RD1, Special("globaltimer"))),
        ("mov.u32 %r1, %envreg31;", (R1, Special("envreg31"))),
        ("mov.u32 %r1, WARP_SZ;", (R1, Immediate(32))),
        ("elect.sync _|%p1, -1;", (Pair(Sink(), P1), Immediate(-1))),
        ("shfl.sync.idx.b32 %r1 | %p2, %r2, 0, 31, -1;",
         (Pair(R1, P2), R2, Immediate(0), Immediate(31), Immediate(-1))),
        ("setp.eq.and.s32 %p1|_, %r1, 0, !%p2;",
         (Pair(P1, Sink()), R1, Immediate(0), register("%p2", negated=True))),
        ("selp.b32 %r1, 1, 2, ! %p1;", (R1, Immediate(1), Immediate(2), register("%p1", negated=True))),
        ("mov.b64 {%r1, _}, %rd1;", (Vector((R1, Sink())), RD1)),
        ("mov.b64 %rd1, {%r1,5};", (RD1, Vector((R1, Immediate(5))))),
        ("ld.b32 %r1, [%rd1];", (R1, Address(RD1))),
        ("ld.b32 %r1, [ %rd1 + -16 ];", (R1, Address(RD1, -16))),
        ("ld.b32 %r1, [%rd1+(2*3)];", (R1, Address(RD1, 6))),
        ("ld.shared.b32 %r1, [0x40];", (R1, Address(Immediate(64)))),
        ("ld.b32 %r1, [g];", (R1, Address(Symbol("g")))),
        ("ld.b32 %r1, [g+8];", (R1, Address(Symbol("g"), 8))),
        ("ld.param.b64 %rd1, [p0];", (RD1, Address(Symbol("p0")))),
        ("mov.u64 %rd1, g;", (RD1, Symbol("g"))),
        ("mov.u64 %rd1, g + 4;", (RD1, Symbol("g", 4))),
        ("mov.u64 %rd1, g+4-2;", (RD1, Symbol("g", 2))),
        ("x.y [%r1], [%rd1, {%r2, %r3}], [%r2+8];",
         (Address(R1), TensorAddress(RD1, 0, (Vector((R2, R3)),)), Address(R2, 8))),
        ("x.y [%r1], [%rd1+64, {%r2, 0, -1}, {%r3}], %r2;",
         (Address(R1), TensorAddress(RD1, 64, (Vector((R2, Immediate(0), Immediate(-1))), Vector((R3,)))), R2)),
        ("mma.sync {%r1,%r2},\n {%r3},\n\t5;", (Vector((R1, R2)), Vector((R3,)), Immediate(5))),
        ("mov.b64{%r1,%r2}, %rd1;", (Vector((R1, R2)), RD1)),
        ("ret;", ()),
    ],
)  # fmt: skip
def test_forms(text, expected):
    assert operands(text, before=".global .b8 g[16];") == expected


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_decimal_floats_take_the_width_of_their_instruction(value):
    single = struct.unpack("<I", struct.pack("<f", value))[0]
    double = struct.unpack("<Q", struct.pack("<d", value))[0]
    assert operands(f"add.f32 %f1, %f1, {value!r};")[2] == Immediate(single, 32)
    assert operands(f"add.f64 %fd1, %fd1, {value!r};")[2] == Immediate(double, 64)
    assert operands(f"cvt.f64.f32 %fd1, {value!r};")[1] == Immediate(double, 64)


def test_labels():
    found = kernel("A: bra B; bra A; { A: bra A; bra B; } B:")
    assert [ins.operands[0] for ins in found.instructions] == [
        Label("B", 4),
        Label("A", 0),
        Label("A", 2),
        Label("B", 4),
    ]


def test_a_list_of_branch_targets_is_a_vector():
    found = kernel("t: .branchtargets A, B,\n A; @%p1 brx.idx %r1, t; A: ret; B: ret;").instructions[0]
    assert found.operands == (R1, Vector((Label("A", 1), Label("B", 2), Label("A", 1))))


def test_memory_of_an_operand_ends_where_a_name_is_hidden():
    found = kernel("mov.b32 %r1, x; .reg .b32 x; mov.b32 %r1, x;", before=".global .b32 x;")
    assert [type(ins.operands[1]) for ins in found.instructions] == [Symbol, Register]


def test_a_variable_hides_one_that_was_used_before_it():
    found = kernel("{ mov.u32 %r1, x; .shared .b32 x; mov.u32 %r1, x; }", before=".shared .b32 x;")
    assert [ins.operands[1] for ins in found.instructions] == [Symbol("x"), Symbol("x@1")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("add.s32 %r1, %r2,, 3", "an empty operand"),
        ("add.s32 %r1, %r2, 3,", "an empty operand"),
        ("add.s32 %r1, %r99, 3", "%r99 is neither a register declared before"),
        ("mov.u32 %r1, %bogus.x", "%bogus.x is neither"),
        ("mov.u32 %r1, bogus", "bogus is not a register, variable, function or label"),
        ("mov.u32 %r1, 019", "'019': expected a register, a literal"),
        ("mov.u32 %r1, {%r2, {%r3}}", "expected"),
        ("mov.u32 %r1, {%r2", "brackets that do not match"),
        ("mov.u32 %r1, %r2}", "'%r2}': expected"),
        ("ld.b32 %r1, [%rd1", "brackets that do not match"),
        ("ld.b32 %r1, [%rd1]+4", r"expected '\]'"),
        ("ld.b32 %r1, [%rd1-16]", "expected .register.offset"),
        ("ld.b32 %r1, [%rd1+%r2]", "expected an integer offset"),
        ("ld.b32 %r1, []", "expected .register"),
        ("ld.b32 %r1, [%p1]", "%p1 is not an address"),
        ("ld.b32 %r1, [%tid.x]", "%tid.x is not an address"),
        ("ld.b32 %r1, [%rd1, %r2]", "expected coordinates in braces"),
        ("selp.b32 %r1, 1, 2, !%r2", "a predicate register after '!'"),
        ("selp.b32 %r1, 1, 2, !5", "a predicate register after '!'"),
        ("elect.sync _|%p99, -1", "%p99' is not declared"),
        ("elect.sync _|5, -1", "expected two results"),
        ("bra nowhere", "nowhere is not a register"),
        ("bra %r1", "expected one label after bra"),
        ("bra", "expected one label after bra"),
        ("brx.idx %r1, %r2", "expected an index and a .branchtargets list"),
        ("@%r1 ret", "the guard %r1 is no predicate"),
        ("@%p99 ret", "the guard %p99 is not declared"),
        ("@%p1", "expected an instruction"),
        ("ADD %r1", "expected an instruction"),
        ("mov.b32 %r1, 1\nmov.b32 %r2, 2", "is a ';' missing"),
        ("mov.b32 %r1, 0x1FFFFFFFFFFFFFFFF", "expected a register, a literal"),
    ],
)
def test_operands_that_mean_nothing(text, why):
    with pytest.raises(PtxError, match=why) as caught:
        kernel(f"ret;\n\n{text};")
    assert not caught.value.unsupported
    assert caught.value.text == " ".join(text.split())
    assert caught.value.line == 8 + REGISTERS.count("\n") + 2


@pytest.mark.parametrize("text", ["ld.global.u8 %rs1, g[4]", "ld.shared.b32 %r1, [%rs1]"])
def test_operands_that_are_not_modelled(text):
    with pytest.raises(PtxError, match="unsupported") as caught:
        kernel(f"{text};", before=".global .b8 g[16];")
    assert caught.value.unsupported


def test_a_label_of_an_inner_scope_is_not_seen_outside():
    with pytest.raises(PtxError, match="L is not a register"):
        kernel("bra L; { L: ret; }")


def test_a_target_that_is_no_label():
    with pytest.raises(PtxError, match="B, a target of t, is not a label"):
        kernel("t: .branchtargets A, B; brx.idx %r1, t; A: ret;")
