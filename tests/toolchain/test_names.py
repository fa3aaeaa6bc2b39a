from __future__ import annotations

import pytest

from pytest_nvfp4.toolchain.worker.names import SourceNames

NAMES = SourceNames(
    """
class A:
    def kernel(self):
        class Shared:
            x: int

        class OnlyA:
            x: int


class B:
    def kernel(self):
        class Shared:
            x: int


class Outer:
    class Inner:
        def run(self):
            pass
"""
)


@pytest.mark.parametrize(
    ("qualified", "line", "expected"),
    [
        ("kernel.<locals>.OnlyA", 4, "A.kernel.OnlyA"),
        ("kernel.<locals>.Shared", 4, "A.kernel.Shared"),
        ("kernel.<locals>.Shared", 13, "B.kernel.Shared"),
        ("kernel.<locals>.Shared", 20, "kernel.Shared"),  # seen elsewhere: it may be either
        ("A", 20, "A"),
        ("Outer.Inner", 20, "Outer.Inner"),
        ("made.<locals>.AtRunTime", 4, "made.AtRunTime"),
    ],
)
def test_a_class_goes_by_its_authors_name(qualified: str, line: int, expected: str) -> None:
    scope = NAMES.at(line)
    assert scope is not None
    assert NAMES.of_class(qualified, seen_in=scope) == expected


def test_the_innermost_function_of_a_line_is_found() -> None:
    scope = NAMES.at(20)
    assert scope is not None
    assert scope.name == "Outer.Inner.run"
    assert NAMES.at(1) is None
    assert SourceNames("def (").at(1) is None
