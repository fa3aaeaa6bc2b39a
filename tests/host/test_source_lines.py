"""``#line`` directives: what a C preprocessor computes from them is the line of the file in which the text stands."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_nvfp4.host.source_lines import with_lines

FILE = '''import torch

HEADER = """
#include <cstdint>
__device__ float twice(float x) { return 2 * x; }
"""

SOURCE = HEADER + r"""
__global__ void first(float *x) {
    x[threadIdx.x] = twice(x[threadIdx.x]);
}
"""

WIDE = f"""
__global__ void second(float *x) {{
    const int width = {128};
    x[width] = 1;
}}
"""
ONE = "__global__ void third(float *x) { *x = 3; }"
MACRO = r"""
#define STORE(x) \\
    *(x) = 4; \\
    *(x) = 5
/* a comment
   of lines */
__global__ void fourth(float *x) { STORE(x); }
"""
'''
NAMES: dict[str, str] = {}
exec(FILE.replace("import torch", ""), NAMES)


def _presumed(text: str) -> dict[str, tuple[str, int]]:
    """Return the presumed file and line of each line of a text, as the preprocessor counts."""
    file, line = "source", 1
    found = {}
    for each in text.split("\n"):
        if match := re.fullmatch(r'#line (\d+) "(.*)"', each):
            line, file = int(match[1]), match[2]
            continue
        found[each.strip()] = file, line
        line += 1
    return found


def _line(text: str) -> int:
    return next(n for n, line in enumerate(FILE.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("SOURCE", ["x[threadIdx.x] = twice(x[threadIdx.x]);", "__device__ float twice(float x) { return 2 * x; }"]),
        ("WIDE", ["x[width] = 1;"]),
        ("ONE", ["__global__ void third(float *x) { *x = 3; }"]),
        ("MACRO", ["__global__ void fourth(float *x) { STORE(x); }", "*(x) = 5"]),
    ],
)
def test_lines_of_literals(source: str, lines: list[str], tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(FILE)
    found = _presumed(with_lines(NAMES[source], [str(file)], name="kernel.cu"))
    for line in lines:
        assert found[line] == (str(file), _line(line)), source
    if source == "WIDE":  # a formatted line keeps the count
        assert found["const int width = 128;"] == (str(file), _line("const int width"))


def test_a_directive_never_stands_inside_a_macro_or_a_comment(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(FILE.replace("*(x) = 4", "*(x)  = 4").replace("of lines", "of many"))
    text = with_lines(NAMES["MACRO"], [str(file)], name="kernel.cu").split("\n")
    for before, after in pairwise(text):
        if after.startswith("#line"):
            assert not before.endswith("\\")
    inside = text[text.index("/* a comment") : text.index("   of lines */") + 1]
    assert not any(line.startswith("#line") for line in inside)


def test_a_source_of_no_file_has_its_own_name(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text("import torch\n")
    found = _presumed(with_lines(NAMES["SOURCE"], [str(file), str(tmp_path / "none")], name='a"b.cu'))
    line = "__global__ void first(float *x) {"
    assert found[line] == ('a\\"b.cu', NAMES["SOURCE"].split("\n").index(line) + 1)
