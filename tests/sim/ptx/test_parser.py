"""Modules, kernels, scopes, source lines and calls."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.finding import Location
from pytest_nvfp4.sim.ptx.lexer import PtxError
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import (
    Address,
    Guard,
    Immediate,
    Label,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from tests.sim.ptx.written import written

from .samples import HEAD, kernel, module_text


def test_a_module():
    found = parse(
        "\n// x\n.version\t9.2\n.target\tsm_90a, texmode_independent\n.address_size 64\n"
        ".extern .func (.param .b32 r) vprintf\n(\n.param .b64 a,\n.param .b64 b\n)\n;\n"
        ".extern .func fail (.param .b64 a)\n.noreturn;\n"
        ".weak .entry one() { ret; }\n.visible .entry two { call fail, (%r); .reg .b32 %r; }"
        .replace("call fail, (%r); .reg .b32 %r;", ".reg .b32 %r; call fail, (%r);")
    )  # fmt: skip
    assert (found.version, found.target, found.externals) == ("9.2", "sm_90a", ("vprintf", "fail"))
    assert list(found.kernels) == ["one", "two"]
    assert found.kernels["two"].noreturn == {"fail"}
    assert found.kernels["one"].parameters == ()


def test_performance_directives():
    found = kernel(
        "ret;",
        header=".reqntid 192, 1\n.maxntid 256\n.minnctapersm 1\n.maxnreg 168\n.explicitcluster\n"
        '.reqnctapercluster 2, 1, 1 .maxclusterrank 8\n.pragma "a;b";\n.pragma "c.d";\n.blocksareclusters',
    )
    assert found.required_threads == (192, 1, 1)
    assert found.maximum_threads == (256, 1, 1)
    assert found.required_cluster == (2, 1, 1)
    assert found.explicit_cluster
    assert found.directives == {
        "minnctapersm": "1",
        "maxnreg": "168",
        "maxclusterrank": "8",
        "pragma": '"a;b", "c.d"',
        "blocksareclusters": "",
    }
    bare = kernel("ret;")
    assert (bare.required_threads, bare.maximum_threads, bare.required_cluster) == (None, None, None)
    assert not bare.explicit_cluster


def test_a_performance_directive_that_is_not_known_is_not_ignored():
    with pytest.raises(PtxError, match=r"unsupported: \.bogus is not a known performance directive"):
        kernel("ret;", header=".maxnreg 5\n.bogus 5")


def test_instructions():
    found = kernel("mov.b32 %r1, 1;\n@!%p1 \t add.s32\t%r1,\n %r1, 2; { @%p2 bra.uni E; }\nE:").instructions
    assert [ins.index for ins in found] == [0, 1, 2]
    assert found[1].text == "@!%p1 add.s32 %r1, %r1, 2"
    assert found[1].guard is not None
    assert (found[1].guard.register.name, found[1].guard.negated) == ("%p1", True)
    assert found[2].guard is not None
    assert (found[2].guard.register.name, found[2].guard.negated) == ("%p2", False)
    assert (found[2].opcode, found[2].parts) == ("bra.uni", ("bra", "uni"))
    assert found[2].operands == (Label("E", 3),)
    assert [ins.ptx_line - found[0].ptx_line for ins in found] == [0, 1, 2]


def test_parts_split_at_single_dots_and_spaces_do_not_count():
    found = kernel("cp.async.bulk .shared::cluster\t.global  [%r1], [%rd1];").instructions[0]
    assert found.opcode == "cp.async.bulk.shared::cluster.global"
    assert found.parts == ("cp", "async", "bulk", "shared::cluster", "global")


WAIT = """
// begin inline asm
{
.reg .pred       P1;
LAB_WAIT:
mbarrier.try_wait.parity.shared.b64 P1, [%r1], %r2, 10000000;
@P1 bra.uni DONE;
bra.uni     LAB_WAIT;
DONE:
}
// end inline asm
"""


def test_inline_assembly_repeats_its_names():
    found = kernel(WAIT + WAIT + "ret;")
    first, second = found.instructions[:3], found.instructions[3:6]
    assert first[1].operands == (Label("DONE", 3),)
    assert first[2].operands == (Label("LAB_WAIT", 0),)
    assert second[1].operands == (Label("DONE", 6),)
    assert second[2].operands == (Label("LAB_WAIT", 3),)
    slots = [ins.operands[0].slot for ins in (first[0], second[0])]
    assert slots == [len(found.registers) - 2, len(found.registers) - 1]
    assert [found.registers[slot].name for slot in slots] == ["P1", "P1"]


def test_an_inner_register_hides_an_outer_one_while_its_scope_is_open():
    found = kernel("mov.b32 %r1, 1; { mov.b32 %r1, 2; .reg .b16 %r1; mov.b16 %r1, 3; { mov.b16 %r1, 4; } } "
                   "mov.b32 %r1, 5;")  # fmt: skip
    assert [ins.operands[0].bits for ins in found.instructions] == [32, 32, 16, 16, 32]


def test_a_helper_of_a_helper_has_the_call_that_inlined_both():
    helpers = (
        ".loc 1 30 5, function_name $L__s0, inlined_at 1 {line} 9\n"
        ".loc 1 20 3, function_name $L__s1, inlined_at 1 30 5\nmov.b32 %r1, {line};\n"
    )
    body = helpers.format(line=72) + helpers.format(line=119) + helpers.format(line=72)
    text = module_text(body + "ret;") + '.file 1 "/a/k.py"\n'
    found = [ins.location for ins in parse(text).kernels["k"].instructions if ins.opcode == "mov.b32"]
    calls = [(one.line, one.inlined_at.line, one.inlined_at.inlined_at.line) for one in found]
    assert calls == [(20, 30, 72), (20, 30, 119), (20, 30, 72)]


def test_an_inlined_line_of_a_library_is_the_user_s_line_that_called_it():
    library = "/x/site-packages/triton/language/standard.py"
    text = module_text(
        ".loc 2 314 12, function_name $L__s0, inlined_at 1 51 13\nmov.b32 %r1, 1;\n"
        ".loc 2 287 12, function_name $L__s0, inlined_at 2 314 12\nmov.b32 %r1, 2;\n.loc 2 9 1\nret;"
    )
    text += f'.file 1 "/a/k.py"\n.file 2 "{library}"\n.section .debug_str\n{{\n$L__s0:\n.b8 120\n.b8 0\n}}\n'
    user = Location("/a/k.py", 51, 13)
    assert [ins.location for ins in parse(text).kernels["k"].instructions] == [user, user, Location(library, 9, 1)]


def test_source_lines():
    text = module_text(
        ".loc 1 0 0\nmov.b32 %r1, 1;\n.loc\t1 12 3\nmov.b32 %r1, 2;\n"
        ".loc 2 30 5, function_name $L__s1, inlined_at 1 12 3\nmov.b32 %r1, 3;\n"
        ".loc 2 40 6, function_name $L__s1+2, inlined_at 2 30 5\nmov.b32 %r1, 4;\n"
        ".loc 9 1 1\nmov.b32 %r1, 5;\n.loc 2 7\nret;"
    )
    text += (
        '.file 1 "/a b/k.py"\n.file 2 "/a/lib.py", 1700000000, 99\n'
        ".section .debug_str\n{\n$L__s0:\n.b8 120\n.b8 0\n$L__s1:\n.b8 102,111\n.b8 111\n.b8 0\n}\n"
    )
    found = [ins.location for ins in parse(text).kernels["k"].instructions]
    user = Location("/a b/k.py", 12, 3)
    inlined = Location("/a/lib.py", 30, 5, "foo", user)
    assert found == [
        None,
        user,
        inlined,
        Location("/a/lib.py", 40, 6, "o", inlined),
        None,
        Location("/a/lib.py", 7),
    ]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (r"/a b/pr\303\274j/k.py", "/a b/prüj/k.py"),
        (r"/\346\227\245/k.py", "/日/k.py"),
        (r"/a\\b/k.py", r"/a\b/k.py"),
        (r"/a\\101.py", r"/a\101.py"),  # a backslash and digits, no letter in octal
        (r"/say \"it\".py", '/say "it".py'),
    ],
)
def test_the_name_of_a_file_is_that_of_the_file_system(written, name):
    text = module_text(".loc 1 12 3\nret;") + f'.file 1 "{written}"'
    assert parse(text).kernels["k"].instructions[0].location == Location(name, 12, 3)


def test_lines_inside_inline_assembly_are_not_the_users():
    text = module_text(
        ".loc 1 12 3\nmov.b32 %r1, 1;\n// begin inline asm\n{\n.loc 1 14 3\nmov.b32 %r1, 2;\n"
        ".loc 1 15 3\nmov.b32 %r1, 3;\n}\n// end inline asm\nmov.b32 %r1, 4;\n.loc 1 13 2\nret;"
    )
    found = parse(text + '.file 1 "k.py"').kernels["k"].instructions
    assert [ins.location.line for ins in found] == [12, 12, 12, 12, 13]


def test_an_operation_without_a_line_of_its_own_has_that_of_the_one_before():
    """Column 0, where CuTe DSL writes the line of another function."""
    text = module_text(
        ".loc 1 9 0\nmov.b32 %r1, 1;\n.loc 1 12 3\nmov.b32 %r1, 2;\n.loc 1 678 0\nmov.b32 %r1, 3;\n"
        ".loc 1 0 0\nmov.b32 %r1, 4;\n.loc 1 678 0\nret;"
    )
    found = parse(text + '.file 1 "k.py"').kernels["k"].instructions
    assert [ins.location.line if ins.location else None for ins in found] == [9, 12, 12, None, 12]


@pytest.mark.parametrize(("between", "line"), [("", 12), ("LOOP:\n", 12), ("bra.uni LAST;\n", None)])
def test_an_operation_that_nvcc_has_moved_has_the_next_line_of_its_block(between, line):
    """Line 0 with a column: loads that are moved out of a loop, for example."""
    text = module_text(
        f".loc 1 9 3\nmov.b32 %r1, 1;\n.loc 1 0 5\nmov.b32 %r1, 2;\nmov.b32 %r1, 3;\n{between}"
        ".loc 1 12 3\nmov.b32 %r1, 4;\n.loc 1 0 5\nmov.b32 %r1, 5;\nLAST:\nret;"
    )
    found = parse(text + '.file 1 "k.cu"').kernels["k"].instructions
    lines = [ins.location.line if ins.location else None for ins in found if not ins.opcode.startswith("bra")]
    assert lines == [9, line, line, 12, None, None]


def test_a_line_behind_the_end_of_its_file_is_none_of_the_users(tmp_path):
    file = tmp_path / "k.py"
    file.write_text("one\ntwo\n")
    text = module_text(".loc 1 2 3\nmov.b32 %r1, 1;\n.loc 1 847 18\nret;") + f'.file 1 "{file}"'
    assert [ins.location.line for ins in parse(text).kernels["k"].instructions] == [2, 2]


@pytest.mark.parametrize("text", [".loc 1", ".loc x 1 2", ".loc 1 2 3, bogus 4"])
def test_a_loc_that_is_none(text):
    with pytest.raises(PtxError, match=r"expected \.loc FILE LINE"):
        kernel(f"{text}\nret;")


CALL = """{ // callseq 0, 0
.param .b64 param0;
st.param.b64 [param0+0], %rd1;
.param .b32 retval0;
call.uni (retval0),
vprintf,
(
param0,
param0
);
ld.param.b32 %r1, [retval0+0];
} // callseq 0
"""
PRINTF = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);"


def test_calls_of_external_functions():
    found = kernel(CALL + CALL, before=PRINTF)
    assert [(v.name, v.space, v.size) for v in found.variables] == [
        ("param0", "param", 8),
        ("retval0", "param", 4),
        ("param0@1", "param", 8),
        ("retval0@1", "param", 4),
    ]
    store, call, load = found.instructions[3:]
    assert store.operands[0] == Address(Symbol("param0@1"), 0)
    assert call.operands == (
        Vector((Symbol("retval0@1"),)),
        Symbol("vprintf"),
        Vector((Symbol("param0@1"), Symbol("param0@1"))),
    )
    assert load.operands[1] == Address(Symbol("retval0@1"), 0)


def test_calls_through_a_register_keep_their_prototype():
    found = kernel("proto : .callprototype (.param .b32 _) _ (.param .b32 _);\ncall (%r1), %rd1, (%r2), proto;")
    assert [type(operand) for operand in found.instructions[0].operands] == [Vector, Register, Vector, Symbol]


def test_a_function_may_be_declared_before_or_after_its_use():
    text = module_text("call f, ();") + ".extern .func f ();"
    assert parse(text).kernels["k"].instructions[0].operands == (Symbol("f"), Vector(()))


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 1, "no .version"),
        (".version 8\n", 1, "expected one such as 8.7"),
        (".version 8.8\n.address_size 32\n", 2, "unsupported: addresses of 32 bits"),
        (HEAD + "ret;\n", 4, "expected a directive"),
        (HEAD + "{ }\n", 4, "expected a directive"),
        (HEAD + ".entry k() { ret;\n", 4, "the body of k is not closed"),
        (HEAD + ".entry k() {\nret;\n}\n}\n", 7, "expected a directive"),
        (HEAD + ".entry k() { ret; }\n.entry k() { ret; }", 5, "defined twice"),
        (HEAD + ".entry k() 5 { ret; }", 4, "expected a performance directive"),
        (HEAD + ".entry (.param .b32 r) k() { ret; }", 4, "returns a value"),
        (HEAD + ".entry k() .reqntid x { ret; }", 4, "reqntid x"),
        (HEAD + ".entry k() .reqntid 1,2,3,4 { ret; }", 4, "one to three sizes"),
        (HEAD + ".entry k() .reqntid 0 { ret; }", 4, "one to three sizes"),
        (HEAD + ".entry 5() { ret; }", 4, "expected a name"),
        (HEAD + ".entry k() {\nA:\nret;\nA:\nret; }", 7, "label A is defined twice"),
        (HEAD + ".entry k() {\n.branchtargets A; A: ret; }", 5, "expected a label before"),
        (HEAD + ".entry k() {\nret\n}\n.entry l() { ret; }", 5, "missing"),
        (HEAD + ".entry k() {\n.entry l() { ret; }\n}", 5, "expected an instruction"),
    ],
)
def test_text_that_is_no_module(text, line, why):
    with pytest.raises(PtxError, match=why) as caught:
        parse(text, source="file.ptx")
    assert caught.value.line == line
    assert str(caught.value).startswith(f"file.ptx:{line}: ")


def test_pieces_without_meaning_for_a_run_are_skipped():
    found = kernel(
        '.pragma "nounroll";\n.file 3 "x"\nret;;\n.section .x { .b8 1 }\n', before='.pragma "x";\n.loc 1 1 1'
    )
    assert len(found.instructions) == 1


# ---- texts made from values ----------------------------------------------------------------------------------------

REGISTER = {name: value for value in kernel("").registers for name in [value.name]}
ANY32 = st.sampled_from([REGISTER[f"%r{number}"] for number in range(64)])
ANY64 = st.sampled_from([REGISTER[f"%rd{number}"] for number in range(16)])
ANYPRED = st.sampled_from([REGISTER[f"%p{number}"] for number in range(8)])
NUMBER = st.integers(-(2**63), 2**64 - 1).map(Immediate)
FLOAT = st.one_of(
    st.integers(0, 2**32 - 1).map(lambda bits: Immediate(bits, 32)),
    st.integers(0, 2**64 - 1).map(lambda bits: Immediate(bits, 64)),
)
ITEM = st.one_of(ANY32, NUMBER, st.just(Sink()))
OPERAND = st.one_of(
    ANY32,
    ANY64,
    NUMBER,
    FLOAT,
    ANYPRED.map(lambda p: Register(p.name, p.slot, 1, True)),
    st.sampled_from(["tid.x", "laneid", "clusterid.z", "clock64"]).map(Special),
    st.builds(Symbol, st.just("g"), st.integers(0, 1000)),
    st.builds(Address, st.one_of(ANY32, ANY64, st.just(Symbol("g"))), st.integers(-(2**31), 2**31)),
    st.builds(Vector, st.lists(ITEM, min_size=1, max_size=5).map(tuple)),
    st.builds(Pair, st.one_of(ANY32, st.just(Sink())), st.one_of(ANYPRED, st.just(Sink()))),
)
INSTRUCTION = st.tuples(
    st.sampled_from(["add.s32", "cp.async.bulk.shared::cta.global", "x", "tcgen05.ld.32x32b"]),
    st.one_of(st.none(), st.builds(Guard, ANYPRED, st.booleans())),
    st.lists(OPERAND, max_size=4),
)


@given(st.lists(INSTRUCTION, max_size=12), st.randoms(use_true_random=False))
def test_what_is_written_is_read(instructions, dice):
    gaps = [" ", "\n", "\t", " /* ;{ */ ", " // }\n", "\r\n  "]
    text = ""
    for opcode, guard, operands in instructions:
        text += f"@{'!' * guard.negated}{guard.register.name}{dice.choice(gaps)}" if guard else ""
        text += opcode + dice.choice(gaps)
        text += f"{dice.choice(gaps)},{dice.choice(gaps)}".join(map(written, operands)) + ";" + dice.choice(gaps)
    found = kernel(text, before=".global .b8 g[2000];").instructions
    assert [(ins.opcode, ins.guard, list(ins.operands)) for ins in found] == instructions


@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=15))
def test_scopes_nest(tree):
    """Each scope declares x and L anew, uses them before and after its inner scopes, and sees its own."""
    expected = []
    slots = iter(range(len(REGISTER), 10_000))

    def write(scope):
        slot = next(slots)
        text = "{ .reg .b32 x; "
        expected.append(slot)
        text += "mov.b32 x, 1; "
        for inner in scope:
            text += write(inner)
        expected.append(slot)
        return text + "mov.b32 x, 2; L: bra L; } "

    text = write(tree)
    found = kernel(text).instructions
    assert [ins.operands[0].slot for ins in found if ins.opcode == "mov.b32"] == expected
    for ins in found:
        if ins.opcode == "bra":
            assert ins.operands == (Label("L", ins.index),)


def test_cutting_a_text_anywhere_gives_a_module_or_a_ptx_error():
    text = module_text(WAIT + CALL + ".loc 1 2 3\nt: .branchtargets A; brx.idx %r1, t; A: mov.b64 {%r1,%r2}, %rd1;\n",
                       before=PRINTF + ".global .b32 x[2][2] = {{1,2},{3,4}};") + '.file 1 "x"\n'  # fmt: skip
    parse(text)
    dice = random.Random(7)
    for position in range(0, len(text), 3):
        for broken in (text[:position], text[:position] + text[position + dice.randrange(1, 9) :],
                       text[:position] + dice.choice("{}[]();,:.%@!|\"'") + text[position:]):  # fmt: skip
            try:
                module = parse(broken)
            except PtxError as error:
                assert 1 <= error.line <= broken.count("\n") + 1  # noqa: PT017 - one of the two ways is right
            else:
                assert module.version == "8.8"
