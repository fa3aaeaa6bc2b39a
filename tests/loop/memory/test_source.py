"""Equal sources are those that Python cannot tell apart; whatever may read itself is compared byte for byte."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.loop.memory.source import source_sha256

PLAIN = '''"""A kernel."""
import cutlass

STAGES = 4


def kernel(x, *, tile=(128, 64)):
    """Multiply."""
    for stage in range(STAGES):
        x = f"{x}{stage}"
    return x
'''


def digest(text: str | bytes, name: str = "k.py") -> str:
    return source_sha256({name: text if isinstance(text, bytes) else text.encode()})


SAME = {
    "comment": PLAIN.replace("STAGES = 4", "# more stages are faster\nSTAGES = 4  # four"),
    "blank lines": PLAIN.replace("\n\n\n", "\n\n\n\n\n"),
    "spaces": PLAIN.replace("STAGES = 4", "STAGES   =  4"),
    "lines in parentheses": PLAIN.replace("(128, 64)", "(\n    128,  # rows\n    64)"),
    "docstrings": PLAIN.replace("Multiply.", "Multiply faster."),
    "no docstrings": PLAIN.replace('    """Multiply."""\n', ""),
    "a statement that is a string": PLAIN.replace("STAGES = 4", "STAGES = 4\n'the number of stages'"),
    "indentation": PLAIN.replace("    ", "  "),
    "line ends": PLAIN.replace("\n", "\r\n"),
    "no line end at the end": PLAIN.rstrip("\n"),
}
OTHER = {
    "number": PLAIN.replace("4", "5"),
    "string": PLAIN.replace("{x}{stage}", "{x}:{stage}"),
    "order": PLAIN.replace("(128, 64)", "(64, 128)"),
    "level": PLAIN.replace("    return", "        return"),
    "an empty body": PLAIN.replace('    """Multiply."""\n', "    pass\n"),
    "a formatted string, which calls": PLAIN.replace('"""Multiply."""', 'f"{print()}"'),
    "a docstring with an escape that Python refuses": PLAIN.replace("Multiply.", "\\x"),
    "another coding": "# coding: latin-1\n" + PLAIN,
}


@pytest.mark.parametrize("change", SAME)
def test_what_does_not_decide_how_it_runs_does_not_count(change: str) -> None:
    assert SAME[change] != PLAIN
    assert digest(SAME[change]) == digest(PLAIN)
    assert digest(SAME[change], "k.txt") != digest(PLAIN, "k.txt")


@pytest.mark.parametrize("change", OTHER)
def test_what_decides_counts(change: str) -> None:
    assert digest(OTHER[change]) != digest(PLAIN)


@pytest.mark.parametrize(
    "reader",
    [
        "open(__file__)",
        "kernel.__doc__",
        "inspect.getsource(kernel)",
        "sys._getframe().f_lineno",
        "f.__code__.co_lines",
        "getattr(kernel, '__doc__')",
        "import linecache",
        "Path('k.py').read_text()",
        "sys.argv[0]",
    ],
)
def test_a_source_that_may_read_itself_is_compared_as_it_is(reader: str) -> None:
    source = f"{PLAIN}\n{reader}\n"
    assert digest(source) == digest(source)
    assert digest(source) != digest(source.replace("Multiply.", "Multiply faster."))
    assert digest(source) != digest(source + "# a comment\n")
    assert digest(f"{PLAIN}# {reader}\n") == digest(PLAIN), "a comment reads nothing"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"if x:\n\ty = 1\n        z = 2\n", b"if x:\n        y = 1\n        z = 2\n"),  # TabError
        (b"x = 1  # a\ry = 2\n", b"x = 1\n"),  # a carriage return ends the line
        (b"x = 1  # \xff\n", b"x = 1\n"),  # not UTF-8
        (b"x = 1  # \0\n", b"x = 1\n"),  # a NUL byte
        (b"x = (\n", b"x = (\n\n"),
        (b"x = $\n", b"x =  $\n"),
        (b'x = f"{y = }"\n', b'x = f"{y=}"\n'),
    ],
)
def test_what_python_refuses_or_sees_otherwise_is_compared_as_it_is(one: bytes, other: bytes) -> None:
    assert digest(one) != digest(other)
    assert digest(one) == digest(one)


def test_all_files_count_with_their_names() -> None:
    both = {"k.py": b"x = 1\n", "h.py": b"y = 2\n"}
    assert source_sha256(both) == source_sha256(dict(reversed(both.items())))
    for other in (
        {"k.py": b"x = 1\n"},
        {"k.py": b"x = 1\n", "h.py": None},
        {"k.py": b"x = 1\n", "g.py": b"y = 2\n"},
        {"k.py": b"y = 2\n", "h.py": b"x = 1\n"},
    ):
        assert source_sha256(other) != source_sha256(both)


def test_a_large_source_is_compared_as_it_is() -> None:
    large = b"x = 1\n" * 200_000
    assert digest(large) == digest(large)
    assert digest(large) != digest(large + b"# end\n")


NAMES = st.sampled_from(["x", "y", "range", "f"])
LINES = st.lists(
    st.one_of(
        st.builds("{} = {}".format, NAMES, st.integers(0, 9)),
        st.builds("if {}:\n  {}({})".format, NAMES, NAMES, st.integers(0, 3)),
        st.builds("{}  # {}".format, NAMES, NAMES),
        st.builds('"{}"'.format, NAMES),
        st.builds('def f():\n "{}"\n return f"{{{}}}"'.format, NAMES, NAMES),
        st.just(""),
    ),
    max_size=5,
).map("\n".join)


def effect(source: str) -> str:
    """The syntax tree without the statements that are strings, in which comments and blanks are gone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [
                line
                for line in body
                if not (
                    isinstance(line, ast.Expr)
                    and isinstance(line.value, ast.Constant)
                    and isinstance(line.value.value, str)
                )
            ]
    return ast.dump(tree)


@given(LINES, LINES)
def test_equal_hashes_mean_equal_syntax_trees(one: str, other: str) -> None:
    if digest(one) == digest(other):
        assert effect(one) == effect(other)
    if one == other:
        assert digest(one) == digest(other)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_garbage_has_a_hash_of_its_own(one: bytes, other: bytes) -> None:
    assert len(digest(one)) == 64
    if digest(one) == digest(other) and one != other:  # then Python reads both alike
        assert effect(one.decode()) == effect(other.decode())
