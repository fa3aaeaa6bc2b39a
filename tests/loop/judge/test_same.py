"""What of a file's Python makes two candidates different."""

from __future__ import annotations

import pytest

from pytest_nvfp4.loop.judge.same import host_code

FILE = """
import cutlass
import cutlass.cute as cute
from cutlass.cute import kernel as device

@cute.kernel
def one(x):
    x[0] = 1

@device
def two(x):
    x[1] = 1

class Gemm:
    @cutlass.cute.kernel
    def three(self, x):
        x[2] = 1

@cute.jit
def launch(x):
    one(x).launch(grid=(4, 1, 1))

def custom_kernel(data):
    launch(data)
    return data
"""


@pytest.mark.parametrize("old", ["x[0] = 1", "x[1] = 1", "x[2] = 1"])
def test_the_body_of_a_device_function_is_left_to_the_ptx(old: str) -> None:
    assert host_code(FILE.replace(old, "x[5] = 3\n        y = 4".replace("\n        ", "; "))) == host_code(FILE)


def test_comments_and_layout_of_the_text_do_not_count() -> None:
    assert host_code(f"# a comment\n{FILE.replace('(4, 1, 1)', '(4,  1, 1)')}") == host_code(FILE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("grid=(4, 1, 1)", "grid=(8, 1, 1)"),
        ("    return data", "    return data[0]"),
        ("def one(x):", "def one(x, y=1):"),
        ("    x[0] = 1", "    global state\n    state = 1"),
        ("        x[2] = 1", "        self.grid = 1"),
        ("@device\ndef two", "@other.kernel\ndef two"),
        ("@cute.jit\n", ""),
    ],
)
def test_everything_else_does(old: str, new: str) -> None:
    assert FILE.count(old) == 1
    assert host_code(FILE.replace(old, new)) != host_code(FILE)


def test_a_decorator_of_that_name_from_elsewhere_is_host_code() -> None:
    other = FILE.replace("import cutlass.cute as cute\n", "import mine as cute\n")
    assert host_code(other.replace("x[0] = 1", "x[0] = 2")) != host_code(other)
