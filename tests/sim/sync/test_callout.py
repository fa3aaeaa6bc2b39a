from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.grid import PRINTED_MOST
from tests.sim.ptx_case import Ran, run_ptx
from tests.sim.sync.printf import c_printf, simulated_printf

FLAGS = st.sets(st.sampled_from("-+ #0")).map("".join)
WIDTH = st.sampled_from(["", "1", "5", "12"])
PRECISION = st.sampled_from(["", ".", ".0", ".3", ".7"])


@given(
    flags=FLAGS,
    width=WIDTH,
    precision=PRECISION,
    size=st.sampled_from(["", "h", "hh", "l", "ll"]),
    kind=st.sampled_from("diuxXo"),
    value=st.one_of(st.integers(-40, 40), st.integers(-(2**63), 2**63 - 1)),
)
@settings(max_examples=400, deadline=None)
def test_integers_as_the_c_library_has_them(flags, width, precision, size, kind, value):
    pattern = f"<%{flags}{width}{precision}{size}{kind}>"
    assert simulated_printf(pattern, value)[0] == c_printf(pattern, ctypes.c_longlong(value))


@given(flags=FLAGS, width=WIDTH, precision=PRECISION, kind=st.sampled_from("eEfFgG"), value=st.floats(width=32))
@settings(max_examples=300, deadline=None)
def test_floats_as_the_c_library_has_them(flags, width, precision, kind, value):
    pattern = f"<%{flags}{width}{precision}{kind}>"
    if value != value:
        value = float("nan")
    assert simulated_printf(pattern, value)[0] == c_printf(pattern, ctypes.c_double(value))


@pytest.mark.parametrize(
    ("pattern", "arguments", "number"),
    [
        ("plain\n", (), 0),
        ("100%%|%d", (7,), 1),
        ("%*d|%-*d|", (5, 42, 5, 42), 4),
        ("%*d|", (-5, 42), 2),
        ("%.*f", (2, 1.005), 2),
        ("%c%5c%-3c|", (65, 66, 67), 3),
        ("%08.3f %+d % d", (3.14159, 5, 5), 3),
        ("%#x %#o %#X %#x", (255, 8, 255, 0), 4),
    ],
)
def test_more_of_the_format(pattern, arguments, number):
    c = [ctypes.c_double(a) if isinstance(a, float) else ctypes.c_int(a) for a in arguments]
    assert simulated_printf(pattern, *arguments) == (c_printf(pattern, *c), number)


@pytest.mark.parametrize("pattern", ["%n", "%a", "%ls", "%lc", "%y"])
def test_directives_that_are_not_modelled(pattern):
    with pytest.raises(Fault, match="is not modelled"):
        simulated_printf(pattern, 1)


def test_strings_and_pointers():
    assert simulated_printf("%s|%12s|%-8s|%.2s", 1, 2, 3, 4)[0] == "<1>|         <2>|<3>     |<4"
    assert simulated_printf("%p", 0xABC)[0] == "0xabc"


MODULE = """
.version 8.8
.target sm_100a
.address_size 64
.extern .func (.param .b32 func_retval0) vprintf (.param .b64 a, .param .b64 b);
.extern .func {name} (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e){noreturn};
.global .align 1 .b8 text[{length}] = {{{data}}};
.global .align 1 .b8 more[4] = {{111, 104, 33, 0}};
.visible .entry kernel(.param .b64 p0)
{{
.local .align 8 .b8 depot[32];
.reg .pred %p<9>;
.reg .b64 %SP; .reg .b64 %SPL; .reg .b32 %r<9>; .reg .b64 %rd<20>;
mov.b64 %SPL, depot;
cvta.local.u64 %SP, %SPL;
mov.u32 %r1, %tid.x;
ld.param.b64 %rd1, [p0];
setp.{which}.u32 %p1, %r1, {threads};
@!%p1 bra END;
mov.b64 %rd2, 0d3FF8000000000000;
mov.b64 %rd3, more; cvta.global.u64 %rd4, %rd3;
st.local.b32 [%SPL], %r1;
st.local.b64 [%SPL+8], %rd2;
st.local.b64 [%SPL+16], %rd4;
mov.b64 %rd5, text; cvta.global.u64 %rd6, %rd5;
{call}
END:
ret;
}}
"""
PRINT = """
{ // callseq 0, 0
.param .b64 param0;
.param .b64 param1;
.param .b32 retval0;
st.param.b64 [param1], %SP;
st.param.b64 [param0], %rd6;
call.uni (retval0), vprintf, (param0, param1);
ld.param.b32 %r2, [retval0];
} // callseq 0
mul.wide.u32 %rd8, %r1, 4; add.u64 %rd8, %rd8, %rd1;
st.global.b32 [%rd8], %r2;
"""
ASSERT = """
{
.param .b64 param0; .param .b64 param1; .param .b32 param2; .param .b64 param3; .param .b64 param4;
st.param.b64 [param0], %rd6;
st.param.b64 [param1], %rd4;
st.param.b32 [param2], 42;
st.param.b64 [param3], %rd4;
mov.b64 %rd9, 1;
st.param.b64 [param4], %rd9;
call.uni NAME, (param0, param1, param2, param3, param4);
}
"""


def module(text: str, call: str, *, which: str = "lt", threads: int = 3, name: str = "__assertfail") -> str:
    data = text.encode() + b"\0"
    noreturn = ".noreturn" if name == "__assertfail" else ""
    return MODULE.format(
        length=len(data), data=", ".join(map(str, data)), call=call.replace("NAME", name), which=which,
        threads=threads, name=name, noreturn=noreturn,
    )  # fmt: skip


def launch(text: str) -> Ran:
    return run_ptx(text, raw=True, buffers={"out": np.zeros(32, np.int32)})


def test_a_kernel_prints_lane_by_lane():
    ran = launch(module("tid %d: %.3f %s\n", PRINT))
    assert ran.grid.output == [f"tid {lane}: 1.500 oh!\n" for lane in range(3)]
    assert list(ran["out"]) == [3] * 3 + [0] * 29
    assert ran.grid.counters["printf"] == 3


def test_what_is_printed_is_bounded():
    grid = launch(module("tid %d\n", PRINT)).grid
    for _ in range(5):
        grid.printed("x" * (PRINTED_MOST // 2))
    text = "".join(grid.output)
    assert text.startswith("tid 0\ntid 1\n")
    assert text.endswith(f"x\n... the kernel printed more than {PRINTED_MOST} characters\n")
    assert text.count("more than") == 1
    assert len(text) < PRINTED_MOST + 100


def test_a_failed_assertion_is_a_fault():
    with pytest.raises(Fault, match=r"lane 30: assertion failed: n == 3 \(oh!:42 in oh!\)") as raised:
        launch(module("n == 3", ASSERT, which="ge", threads=30))
    assert raised.value.kind == "assert"
    assert launch(module("n == 3", ASSERT, which="ge", threads=32)).grid.findings == []


def test_other_functions_are_unsupported_by_name():
    with pytest.raises(Fault, match="call of mystery") as raised:
        launch(module("x", ASSERT, name="mystery"))
    assert raised.value.kind == "unsupported"
