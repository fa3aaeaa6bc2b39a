"""Places of the operations that the DSL builds."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest

from pytest_nvfp4.host import dsl_positions

OPERATION = """
def operation():
    return inspect.getframeinfo(inspect.currentframe().f_back)
"""
CALLER = """
def call(function):
    return function()
"""


def _module(name: str, text: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(names)
    exec(compile(text, f"{name}.py", "exec"), vars(module))
    return module


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module as that of the decorator of DSL 4.4, with the replacements."""
    module = _module("cutlass.base_dsl._mlir_helpers.op", OPERATION, inspect=inspect)
    monkeypatch.setitem(sys.modules, "cutlass._mlir_helpers.op", None)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "cutlass.base_dsl._mlir_helpers", ModuleType("_mlir_helpers"))
    for owner, name, value in dsl_positions.replacements():
        monkeypatch.setattr(owner, name, value)
    return module


@pytest.mark.parametrize(
    ("caller", "file"),
    [
        ("kernel", "kernel.py"),
        ("cutlass.operators.gemm", "cutlass.operators.gemm.py"),
        ("cutlass_of_mine", "cutlass_of_mine.py"),
        ("cutlass.utils.tmem_allocator", __file__),
    ],
)
def test_dsl_4_4_attributes_an_operation_to_the_first_frame_outside_the_dsl(
    caller: str, file: str, operations: ModuleType
) -> None:
    """The operation is called through one more module of the DSL; its own file is no place of a user."""
    within = _module("cutlass.utils.inner", CALLER)
    outer = _module(caller, "def call(function, operation):\n    return function(operation)\n")
    found = outer.call(within.call, operations.operation)
    assert found.filename == file
    assert found.code_context is None or "outer.call" in found.code_context[0]


@pytest.mark.parametrize(
    ("call", "file"), [("given[0](*given[1:], **named)", __file__), ("given[0](given[1])", "of.py")]
)
def test_dsl_4_4_attributes_what_is_passed_on_to_who_gave_it(call: str, file: str, operations: ModuleType) -> None:
    within = _module("cutlass.utils.inner", CALLER)
    library = _module("of", f"def create(*given, **named):\n    return {call}\n")
    assert library.create(within.call, operations.operation).filename == file
