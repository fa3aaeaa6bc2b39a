"""Comments, strings, line ends and statement boundaries."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.sim.ptx.lexer import Kind, PtxError, clean, tokens


def pieces(text: str) -> list[tuple[Kind, str, int]]:
    return [(token.kind, token.text, token.line) for token in tokens(clean(text))]


def test_statements_labels_and_braces():
    found = pieces("{\nA: B: mov.b32 %r1, {%r2,\n %r3}; @p bra A; }")
    assert found == [
        (Kind.OPEN, "{", 1),
        (Kind.LABEL, "A", 2),
        (Kind.LABEL, "B", 2),
        (Kind.STATEMENT, "mov.b32 %r1, {%r2,\n %r3}", 2),
        (Kind.STATEMENT, "@p bra A", 3),
        (Kind.CLOSE, "}", 3),
        (Kind.END, "", 3),
    ]


def test_a_double_colon_is_no_label():
    assert pieces("fence::x.y a;")[0] == (Kind.STATEMENT, "fence::x.y a", 1)


def test_comments_go_and_lines_stay():
    found = pieces("// a; b\nmov.b32 /* x;\n y */ %r1, // c;\n 1;\nret;")
    assert [(text.split(), line) for _, text, line in found] == [(["mov.b32", "%r1,", "1"], 2), (["ret"], 5), ([], 5)]


def test_a_comment_in_a_string_is_text():
    assert pieces('.pragma "a//b;c/*";\nret;')[:2] == [
        (Kind.DIRECTIVE, '.pragma "a//b;c/*"', 1),
        (Kind.STATEMENT, "ret", 2),
    ]
    assert pieces('.file 1 "http://x/{;"\nret;')[0] == (Kind.LINE, '.file 1 "http://x/{;"', 1)


def test_lines_inside_inline_assembly_are_removed():
    """nvcc 13.5 writes them between the lines of one instruction, too."""
    found = pieces(".loc 1 4 2\n// begin inline asm\nmov.b32 a,\n\t.loc 1 6 2\nb;\n// end inline asm\n.loc 1 9 2\nret;")
    assert [(kind, text.split(), line) for kind, text, line in found] == [
        (Kind.LOC, [".loc", "1", "4", "2"], 1),
        (Kind.STATEMENT, ["mov.b32", "a,", "b"], 3),
        (Kind.LOC, [".loc", "1", "9", "2"], 7),
        (Kind.STATEMENT, ["ret"], 8),
        (Kind.END, [], 8),
    ]


def test_nul_bytes_and_windows_lines():
    assert pieces("ret;\r\nexit;\r\n\0\0") == pieces("ret;\nexit;\n")


def test_a_section_is_one_token():
    found = pieces(".section .debug_str\n{\n$L:\n.b8 1,2\n}\nret;")
    assert [kind for kind, _, _ in found] == [Kind.SECTION, Kind.STATEMENT, Kind.END]
    assert found[1][2] == 6


def test_an_open_comment_is_an_error():
    with pytest.raises(PtxError, match=r"line 2: .*expected \*/"):
        clean('.pragma "/*";\nret; /* x\n')


def test_a_statement_without_its_end():
    with pytest.raises(PtxError, match=r"line 2: expected ';'") as caught:
        pieces("ret;\nadd.s32 %r1, 2, 3")
    assert caught.value.text == "add.s32 %r1, 2, 3"


def test_what_starts_no_statement():
    with pytest.raises(PtxError, match="line 1: expected an instruction"):
        pieces("?add.s32 1; ret;")


def test_errors_survive_a_process_boundary():
    error = PtxError("m", line=3, text="t", source="s", unsupported=True)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.line, again.text, again.source, again.unsupported) == (str(error), 3, "t", "s", True)
    assert str(error) == "s:3: unsupported: m\n    t"


STATEMENTS = ["mov.b32 %r1, {%r2, %r3}", "ret", "@%p1 bra $L_1", "add.s32 %r1, %r2, -4", "ld.b32 %r1, [%rd1+8]"]
GAPS = ["\n", " ", "\t", "\r\n", " /* ; { */ ", " // } ;\n", "\n\n", "/**/"]


@given(st.lists(st.tuples(st.sampled_from(GAPS), st.sampled_from(STATEMENTS))), st.sampled_from(GAPS))
def test_gaps_do_not_matter_but_for_lines(parts, last):
    text = ""
    expected = []
    for gap, statement in parts:
        text += gap
        expected.append((Kind.STATEMENT, statement, text.count("\n") + 1))
        text += statement + ";"
    assert pieces(text + last)[:-1] == expected
