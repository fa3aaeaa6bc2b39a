"""Calls of functions with a body: what they compute, where their instructions are said to stand, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.ptx.lexer import PtxError
from pytest_nvfp4.sim.ptx.parser import parse
from tests.sim.ptx_case import run_ptx

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
SQUARE = """
.func (.param .b32 result) square(.param .b32 value)
{
.reg .b32 %r<4>;
ld.param.b32 %r1, [value];
mul.lo.s32 %r2, %r1, %r1;
st.param.b32 [result+0], %r2;
ret;
}
"""
COLLATZ = """
.visible .func (.param .b32 result) steps(.param .b32 value, .param .b32 most)
{
.reg .pred %p<4>; .reg .b32 %r<9>;
ld.param.b32 %r1, [value]; ld.param.b32 %r2, [most];
mov.b32 %r3, 0;
LOOP: setp.eq.u32 %p1, %r1, 1;
@%p1 bra DONE;
setp.ge.u32 %p2, %r3, %r2;
@%p2 st.param.b32 [result], -1;
@%p2 ret;
and.b32 %r4, %r1, 1; setp.eq.u32 %p3, %r4, 0;
@%p3 shr.u32 %r1, %r1, 1;
@!%p3 mad.lo.u32 %r1, %r1, 3, 1;
add.u32 %r3, %r3, 1;
bra LOOP;
DONE: st.param.b32 [result], %r3;
ret;
}
"""


def call(name: str, *arguments: str, result: str, guard: str = "") -> str:
    """A call of 32-bit arguments in registers, as compilers write it."""
    given = "".join(f".param .b32 a{i}; st.param.b32 [a{i}], {value};" for i, value in enumerate(arguments))
    names = ", ".join(f"a{i}" for i in range(len(arguments)))
    return f"{{ {given} .param .b32 back; {guard} call.uni (back), {name}, ({names}); ld.param.b32 {result}, [back]; }}"


def out(body: str, functions: str, threads: int = 64) -> np.ndarray:
    """%r2 of each lane; %r1 is the thread."""
    ran = run_ptx(
        "mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd1, %r1, 4;\nadd.s64 %rd2, %rd100, %rd1;\n"
        f"{body}\nst.global.b32 [%rd2], %r2;\n",
        buffers={"out": np.zeros(threads, np.uint32)},
        block=(threads, 1, 1),
        globals_=functions,
    )
    return ran["out"]


def refused(body: str, functions: str) -> PtxError:
    """The error of a kernel k."""
    text = f"{HEAD}{functions}\n.visible .entry k() {{ .reg .b32 %r<9>; {body} ret; }}\n.entry other() {{ ret; }}"
    module = parse(text)
    assert "other" in module.kernels
    with pytest.raises(PtxError) as raised:
        module.kernels["k"]
    return raised.value


def test_a_function_computes() -> None:
    lanes = np.arange(64)
    assert (out(call("square", "%r1", result="%r2"), SQUARE) == lanes**2).all()
    twice = call("square", "%r1", result="%r3") + call("square", "%r3", result="%r2")
    assert (out(twice, SQUARE) == lanes**4).all()


def test_a_function_may_stand_behind_its_declaration_only() -> None:
    declared = ".func (.param .b32 result) square(.param .b32 value);"
    assert (out(call("square", "%r1", result="%r2"), declared + SQUARE) == np.arange(64) ** 2).all()


def test_lanes_leave_a_function_at_different_times_and_places() -> None:
    def steps(value: int, most: int) -> int:
        count = 0
        while value != 1:
            if count >= most:
                return 0xFFFF_FFFF
            value = value // 2 if value % 2 == 0 else 3 * value + 1
            count += 1
        return count

    body = "add.u32 %r3, %r1, 1;" + call("steps", "%r3", "40", result="%r2")
    assert out(body, COLLATZ).tolist() == [steps(n, 40) for n in range(1, 65)]


def test_functions_call_functions() -> None:
    outer = """
.func (.param .b32 result) fourth(.param .b32 value)
{
.reg .b32 %r<4>;
ld.param.b32 %r1, [value];
{ .param .b32 a; st.param.b32 [a], %r1; .param .b32 b; call.uni (b), square, (a); ld.param.b32 %r2, [b]; }
{ .param .b32 a; st.param.b32 [a], %r2; .param .b32 b; call.uni (b), square, (a); ld.param.b32 %r3, [b]; }
st.param.b32 [result], %r3;
ret;
}
"""
    assert (out(call("fourth", "%r1", result="%r2"), outer + SQUARE) == np.arange(64) ** 4).all()


def test_a_guard_keeps_lanes_out_of_a_call() -> None:
    for guard, inside in (("@%p1", np.arange(64) < 40), ("@!%p1", np.arange(64) >= 40)):
        body = "setp.lt.u32 %p1, %r1, 40; mov.b32 %r2, 7;"
        body += "{ .param .b32 a; st.param.b32 [a], %r1; .param .b32 b; st.param.b32 [b], 5; "
        body += f"{guard} call (b), square, (a); ld.param.b32 %r2, [b]; }}"
        assert (out(body, SQUARE) == np.where(inside, np.arange(64) ** 2, 5)).all()


def test_a_function_has_local_memory_and_names_of_its_own() -> None:
    swap = """
.func (.param .b32 result) swap(.param .b32 value)
{
.local .align 8 .b8 depot[8];
.reg .b32 %r<4>; .reg .b64 %rd<3>;
mov.u64 %rd1, depot;
ld.param.b32 %r1, [value];
st.local.b32 [%rd1], %r1;
st.local.b32 [%rd1+4], 1000;
ld.local.b32 %r1, [%rd1]; ld.local.b32 %r2, [%rd1+4];
sub.u32 %r3, %r2, %r1;
st.param.b32 [result], %r3;
ret;
}
"""
    body = call("swap", "%r1", result="%r3") + call("swap", "%r3", result="%r4") + "add.u32 %r2, %r3, %r4;"
    assert (out(body, swap) == 1000).all()


def test_a_function_without_parameters_may_end_the_thread() -> None:
    stop = ".func stop() { exit; }"
    got = out("mov.b32 %r2, 3; setp.lt.u32 %p1, %r1, 9; @%p1 call stop, ();", stop)
    assert (got == np.where(np.arange(64) < 9, 0, 3)).all()


def test_a_trap_in_a_function_is_found_at_the_line_of_the_function_and_of_its_call() -> None:
    text = (
        f"{HEAD}.func fail() {{\n.loc 1 7 3\ntrap;\n ret; }}\n.visible .entry kernel() {{\n.loc 1 20 5\n"
        'call fail, ();\nret; }\n.file 1 "user.py"\n'
    )
    with pytest.raises(Fault) as raised:
        run_ptx(text, raw=True)
    assert raised.value.kind == "trap"
    where = raised.value.where
    assert where is not None
    assert where.source is not None
    assert (where.source.line, where.source.inlined_at.line if where.source.inlined_at else 0) == (7, 20)
    assert where.text.rstrip(";") == "trap"


def test_a_call_is_shown_as_it_stands_in_the_text() -> None:
    text = f"{HEAD}{SQUARE}.entry k() {{ .reg .pred %p<2>; .reg .b32 %r<9>; .param .b32 a; .param .b32 b;\n"
    found = parse(text + "@%p1 call (b), square, (a); ret; }").kernels["k"]
    assert [ins.text for ins in found.instructions] == [
        "@%p1 call (b), square, (a)",
        "ld.param.b32 %r1, [value]",
        "mul.lo.s32 %r2, %r1, %r1",
        "st.param.b32 [result+0], %r2",
        "ret",
        "ret",
    ]
    assert [ins.root for ins in found.instructions] == ["bra", "ld", "mul", "st", "bra", "ret"]


ONE = "{ .param .b32 a; .param .b32 b; call (b), f, (a); }"


@pytest.mark.parametrize(
    ("functions", "body", "words"),
    [
        (".func f() { call f, (); ret; }", "call f, ();", "f calls itself (f -> f), and recursion is not modelled"),
        (
            ".func g(); .func f() { call g, (); ret; } .func g() { @%p1 call f, (); ret; }",
            "call f, ();",
            "f calls itself (f -> g -> f)",
        ),
        (".func (.reg .b32 r) f(.reg .b32 x) { ret; }", ONE, "f has parameters in registers"),
        (".func f() { .shared .b32 x; ret; }", "call f, ();", "x is a .shared variable of a function"),
        (".func f(.param .b32 x) { ret; }", "call f, (%r1);", "%r1, given to f, is not a .param variable"),
        (
            ".func f0() { ret; }"
            + "".join(f".func f{i}() {{ {f'call f{i - 1}, ();' * 9} ret; }}" for i in range(1, 8)),
            "call f7, ();",
            "tokens after inlining",
        ),
    ],
)
def test_what_is_not_modelled_is_said_by_name(functions: str, body: str, words: str) -> None:
    error = refused(body, functions)
    assert error.unsupported
    assert words in error.message


@pytest.mark.parametrize(
    ("functions", "body", "words"),
    [
        (".func f(.param .b32 x) { ret; }", "call f, ();", "f has 1 argument(s), and this call 0"),
        (".func (.param .b32 r) f() { ret; }", "call f, ();", "f has 1 result(s), and this call 0"),
        (".func f(.param .b64 x) { ret; }", "{ .param .b32 a; call f, (a); }", "a has 4 bytes, and x of f 8"),
        (".func f(.param .b32 x) { ret; }", "call f, (nothing);", "nothing is not a register"),
        (".func f() { add.s32 %r1, %r1, 1; ret; }", "call f, ();", "%r1 is neither a register"),
        (".func f() { ret; }", "call f, 7;", "expected one list of arguments after f"),
    ],
)
def test_what_is_wrong_is_an_error_of_the_text(functions: str, body: str, words: str) -> None:
    text = f"{HEAD}{functions}\n.visible .entry k() {{ .reg .b32 %r<9>; {body} ret; }}"
    with pytest.raises(PtxError) as raised:
        parse(text)
    assert not raised.value.unsupported
    assert words in raised.value.message
