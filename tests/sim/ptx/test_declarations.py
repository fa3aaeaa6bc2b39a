"""Registers, variables, initial bytes and parameters."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.sim.ptx.lexer import PtxError
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import Parameter, Register, Symbol, Vector

from .samples import HEAD, kernel, module_text


def variables(text: str) -> dict[str, Any]:
    return {variable.name: variable for variable in parse(HEAD + text).variables}


def test_registers_in_order_of_declaration():
    found = kernel(".reg .pred q, %z<2>; { .reg .b128 q; } .reg .f16x2 h;").registers[-5:]
    start = found[0].slot
    assert found == (
        Register("q", start, 1),
        Register("%z0", start + 1, 1),
        Register("%z1", start + 2, 1),
        Register("q", start + 3, 128),
        Register("h", start + 4, 32),
    )
    every = kernel("").registers
    assert [register.slot for register in every] == list(range(len(every)))


def test_vector_registers():
    found = kernel(".reg .v4 .s32 v; mov.b32 v.y, v.a; st.shared.v4.b32 [%r1], v;")
    x, y, z, w = found.registers[-4:]
    assert [item.name for item in (x, y, z, w)] == ["v.x", "v.y", "v.z", "v.w"]
    assert found.instructions[0].operands == (y, w)
    assert found.instructions[1].operands[1] == Vector((x, y, z, w))


@pytest.mark.parametrize(
    ("text", "size", "align", "data"),
    [
        (".global .b32 x;", 4, 4, bytes(4)),
        (".global .align 16 .b8 x[3];", 3, 16, bytes(3)),
        (".const .f32 x[3] = {1.0, 0f40000000};", 12, 4, struct.pack("<3f", 1, 2, 0)),
        (".global .f64 x = 0f40000000;", 8, 8, struct.pack("<d", 2)),
        (".global .b8 x[] = {1, 0xff, -1};", 3, 1, b"\1\xff\xff"),
        (".global .u16 x[2][3] = {{1, 2}, {3}};", 12, 2, struct.pack("<6H", 1, 2, 0, 3, 0, 0)),
        (".global .v2 .f32 x = {1.0, 2.0};", 8, 8, struct.pack("<2f", 1, 2)),
        (".global .v2 .u32 x[2] = {{1, 2}, {3, 4}};", 16, 8, struct.pack("<4I", 1, 2, 3, 4)),
        (".visible .global .s8 x = 300;", 1, 1, b"\x2c"),
        (".global .b64 x = (1+2)*3;", 8, 8, struct.pack("<Q", 9)),
        (".global .b8 x[2*4];", 8, 1, bytes(8)),
    ],
)
def test_initial_bytes(text, size, align, data):
    found = variables(text)["x"]
    assert (found.size, found.align, found.data, found.external) == (size, align, data, False)


@given(st.lists(st.integers(-(2**31), 2**32 - 1), min_size=1, max_size=20), st.integers(0, 5))
def test_a_list_of_words(values, more):
    count = len(values) + more
    found = variables(f".global .b32 x[{count}] = {{{', '.join(map(str, values))}}};")["x"]
    assert found.data == b"".join((value % 2**32).to_bytes(4, "little") for value in values) + bytes(4 * more)


def test_several_in_one_declaration():
    found = variables(".global .b32 a, b[4], c = 5;")
    assert [(name, found[name].size) for name in "abc"] == [("a", 4), ("b", 16), ("c", 4)]
    assert found["c"].data == b"\5\0\0\0"


def test_external_and_shared():
    found = variables(".extern .shared .align 1024 .b8 dyn[]; .shared .align 8 .b64 bar[4];")
    assert (found["dyn"].size, found["dyn"].align, found["dyn"].external) == (0, 1024, True)
    assert (found["bar"].space, found["bar"].size, found["bar"].data) == ("shared", 32, b"")


def test_a_declaration_and_its_definition_are_one():
    for text in (
        ".extern .global .b32 x; .visible .global .b32 x = 3;",
        ".visible .global .b32 x = 3; .extern .global .b32 x;",
    ):
        assert [(v.name, v.data, v.external) for v in parse(HEAD + text).variables] == [("x", b"\3\0\0\0", False)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (".global .u64 x = function;", "address function"),
        (".shared .b32 t; .global .u64 x = generic(t);", "address t"),
        (".global .b32 t; .global .u32 x = t;", "address t"),
        (".global .b32 t; .global .u8 x[2] = {0xff(t), 0xff00(t)};", r"0xff\(t\)"),
        (".global .b16 x = 1.0;", "float 1.0"),
        (".global .attribute(.managed) .b32 x;", ".attribute"),
        (".global .texref x;", ".texref"),
        (".tex .u32 x;", ".tex"),
    ],
)
def test_what_is_not_modelled_is_refused_where_it_is_used(text, why):
    other = ".entry other() { ret; }\n"
    found = parse(module_text("mov.b64 %rd1, x;", before=text) + other)
    assert set(found.kernels) == {"other"}
    with pytest.raises(PtxError, match=why) as caught:
        found.kernels["k"]
    assert caught.value.unsupported
    assert "x" not in [variable.name for variable in found.variables]
    with pytest.raises(KeyError):
        found.kernels["missing"]


def test_addresses_of_variables_are_filled_in_where_they_lie():
    text = (
        ".global .b32 t[4]; .const .u64 first = t; .global .u64 x[2][2] = {{1, t+4}, {generic(t), generic(x) + 8}};"
        ".global .v2 .u64 v = {2, t-4};"
    )
    found = {variable.name: variable for variable in parse(module_text("", before=text)).variables}
    placed = {"t": 0x1000, "x": 0x2000, "first": 0x3000, "v": 0x4000}
    words = {
        name: struct.unpack(f"<{variable.size // 8}Q", variable.initial(placed)) for name, variable in found.items()
    }
    assert (words["first"], words["x"], words["v"]) == ((0x1000,), (1, 0x1004, 0x1000, 0x2008), (2, 0xFFC))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (".global .b32 a[2] = {1,2,3};", "3 values for the 2 elements of a"),
        (".global .b32 a[2][3] = {1,2};", "where a has a list"),
        (".global .b32 a = {1};", "where a has one value"),
        (".global .b32 a[3] = {1,2,};", "not a list in braces"),
        (".global .b32 a[3] = {1,2;", "not a list in braces"),
        (".global .f32 a = 2;", "expected a float"),
        (".global .f16 a = 1.0;", "expected a float"),
        (".global .b32 a[];", "no size"),
        (".global .b32 a[0];", "no size"),
        (".global .b32 a[x];", r"a\[x\]: expected a size"),
        (".shared .b32 a = 4;", "only .global and .const"),
        (".global a;", "expected a declaration"),
        (".global .pred a;", "expected a declaration"),
        (".global .align 3 .b32 a;", "power of two"),
        (".global .b32 5a;", "expected a name"),
        (".global .b32 a b;", "expected ',' or ';'"),
        (".global .b32 a; .global .b32 a;", "declared twice"),
        (".bogus .b32 a;", r"\.bogus"),
    ],
)
def test_declarations_that_mean_nothing(text, why):
    with pytest.raises(PtxError, match=why) as caught:
        parse(HEAD + text)
    assert caught.value.line == 4
    assert not caught.value.unsupported


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (".reg %r1;", "expected a type"),
        (".reg .b33 x;", r"\.b33"),
        (".reg .b32 .b32 x;", r"\.b32"),
        (".reg .v2 .pred x;", "not of .pred"),
        (".reg .b32 x y;", "'x y'"),
        (".reg .b32 ;", "expected a register name"),
        (".reg .b32 %r1;", "%r1 is declared twice"),
        (".reg .b32 x<2>, x1;", "x1 is declared twice"),
        (".reg .b32 p0;", "p0 is declared twice"),
        ("x: .reg .b32 x;", "x is declared twice"),
        (".shared .b32 x; .reg .b32 x;", "x is declared twice"),
        (".bogus 5;", "expected .reg, a variable or .pragma"),
    ],
)
def test_registers_that_mean_nothing(text, why):
    with pytest.raises(PtxError, match=why) as caught:
        kernel("ret;\n" + text)
    assert caught.value.line == kernel("ret;").instructions[0].ptx_line + 1


def test_parameters():
    found = kernel(
        "ret;",
        parameters="""
        .param .u64 .ptr .global .align 16 a,
        .param .b8 b, .param .align 64 .b8 c[128],
        .param .u64 .ptr d, .param .f32 e, .param .align 4 .b8 f[5], .param .u16 g""",
    ).parameters
    assert found == (
        Parameter("a", 8, 8, 0),
        Parameter("b", 1, 1, 8),
        Parameter("c", 128, 64, 64),
        Parameter("d", 8, 8, 192),
        Parameter("e", 4, 4, 200),
        Parameter("f", 5, 4, 204),
        Parameter("g", 2, 2, 210),
    )


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 40), st.sampled_from([1, 4, 16, 64]))))
def test_parameter_offsets(shapes):
    text = ",".join(
        f".param .align {max(align, element)} .b{8 * element} p{number}[{count}]"
        for number, (element, count, align) in enumerate(shapes)
    )
    end = 0
    for (element, count, align), parameter in zip(shapes, kernel("", parameters=text).parameters, strict=True):
        assert parameter.size == element * count
        assert parameter.offset % max(align, element) == 0
        assert 0 <= parameter.offset - end < max(align, element)
        end = parameter.offset + parameter.size


@pytest.mark.parametrize(
    "text", ["u64 a", ".param a", ".param .u64 a, .param .u64 a", ".param .u64 a,", ".param .b8 a[]", ".param .b7 a",
             ".param .u64 a b", ".reg .u64 a"]
)  # fmt: skip
def test_parameters_that_mean_nothing(text):
    with pytest.raises(PtxError) as caught:
        kernel("ret;", parameters=text)
    assert caught.value.line == 5


def test_local_names_are_made_unique():
    found = kernel(
        """
        .shared .align 8 .b8 buffer[16];
        { .shared .b32 buffer; mov.u32 %r1, buffer; }
        { .shared .b64 buffer; .local .b8 g[3]; mov.u32 %r1, buffer; }
        mov.u32 %r1, buffer;""",
        before=".global .b32 g;",
    )
    assert [(v.name, v.space, v.size) for v in found.variables] == [
        ("buffer", "shared", 16),
        ("buffer@1", "shared", 4),
        ("buffer@2", "shared", 8),
        ("g@1", "local", 3),
    ]
    assert [ins.operands[1] for ins in found.instructions] == [
        Symbol("buffer@1"),
        Symbol("buffer@2"),
        Symbol("buffer"),
    ]
