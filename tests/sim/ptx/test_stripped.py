"""Lines of code beside inline assembly in PTX whose comments fatbinary has removed."""

import re

import pytest

from pytest_nvfp4.sim.ptx.parser import parse

HEAD = ".version {}\n.target sm_100a\n.address_size 64\n\n\n.visible .entry k()\n{{\n.reg .b32 %r<5>;\n.loc 1 1 0\n\n"
TAIL = 'ret;\n\n}\n.file 1 "k.cu"\n'
IN = ", function_name $L, inlined_at 1 9 3"

ONE_LINE = ".loc 1 {0} 3\n// begin inline asm\n.loc 1 {0} 3\nmov.b32 %r1, 1;\n\n// end inline asm\n"
BLOCK = """.loc 1 20 3
mov.b32 %r2, 2;
// begin inline asm
{
.reg .b32 t;
.loc 1 22 3
mov.b32 t, 1;
// only a comment
.loc 1 24 3
mov.b32 %r1,
t;
.loc 1 26 3
mov.b32 %r1, t;
}


// end inline asm
mov.b32 %r3, 3;
.loc 1 21 3
mov.b32 %r3, 3;
"""
HELPER = f""".loc 1 9 3
.loc 1 30 3{IN}
// begin inline asm
.loc 1 30 3{IN}
mov.b32 %r1, 1;
.loc 1 31 3{IN}
mov.b32 %r1, 2;

// end inline asm
.loc 1 9 3
mov.b32 %r3, 3;
"""
NOTHING = ".loc 1 40 3\n// begin inline asm\n// end inline asm\n.loc 1 41 3\nmov.b32 %r1, 1;\n.loc 1 42 3\n"


def lines(body: str, version: str, *, comments: bool) -> list[int]:
    text = HEAD.format(version) + body + TAIL
    if not comments:
        text = re.sub(r"//.*", "", text)
    return [ins.location.line for ins in parse(text).kernels["k"].instructions if ins.location]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ONE_LINE.format(10), [10, 10]),
        (ONE_LINE.format(10) + ONE_LINE.format(11) + ".loc 1 12 3\n", [10, 11, 12]),
        (BLOCK, [20, 20, 20, 20, 20, 21, 21]),
        (HELPER, [30, 30, 9, 9]),
        (NOTHING, [41, 42]),
        (BLOCK + HELPER + ONE_LINE.format(10), [20, 20, 20, 20, 20, 21, 30, 30, 9, 10, 10]),
    ],
    ids=["one line", "beside each other", "block", "inlined", "empty", "in turn"],
)
def test_removed_comments_change_no_line(body, expected):
    assert lines(body, "9.5", comments=True) == expected
    assert lines(body, "9.5", comments=False) == expected


def test_older_compilers_count_no_lines_of_assembly():
    body = ".loc 1 5 3\n// begin inline asm\nmov.b32 %r1, 1;\n// end inline asm\n.loc 1 7 3\nmov.b32 %r1, 2;\n"
    assert lines(body, "9.0", comments=False) == [5, 7, 7]
