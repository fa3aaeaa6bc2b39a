"""The variable that a call's value is assigned to, by the position of the call in its line."""

from __future__ import annotations

import linecache
import sys
from types import SimpleNamespace

import pytest

from pytest_nvfp4.driver.assigned import assigned_name

PRELUDE = "def wrapped(value): return value\n"


def names(source: str, file: str) -> list[str | None]:
    """The name for each call of ``make``, in order."""
    found: list[str | None] = []

    def make() -> SimpleNamespace:
        found.append(assigned_name(sys._getframe(1)))
        return SimpleNamespace(view=lambda: None, data=SimpleNamespace(view=lambda: None))

    text = PRELUDE + source
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), {"make": make, "it": SimpleNamespace()})
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = make()", ["x"]),
        ("x, y = make(), make()", ["x", "y"]),
        ("(x, y), z = (make(), make()), make()", ["x", "y", "z"]),
        ("it.x = make()", ["it.x"]),
        ("x: object = make()", ["x"]),
        ("x = (\n    make()\n    .view()\n)", ["x"]),
        ("x = make().data.view()", ["x"]),
        ("x = make(); y = make()", ["x", "y"]),
        ("x = y = make()", ["y"]),
        ("x = wrapped(make())", [None]),
        ("x = [make(), make()]", [None, None]),
        ("x, y = [make() for _ in range(2)]", [None, None]),
        ("make()", [None]),
        ("x = 1 if make() else 2", [None]),
        ("def of():\n    return make()\nx = of()", [None]),
    ],
)
def test_each(source: str, expected: list[str | None], request: pytest.FixtureRequest) -> None:
    assert names(source, f"{request.node.name}.py") == expected


def test_a_file_without_source() -> None:
    code = compile("x = make()", "nowhere.py", "exec")
    found: list[str | None] = []
    exec(code, {"make": lambda: found.append(assigned_name(sys._getframe(1)))})
    assert found == [None]
