"""Names that a program takes from CuTe DSL and that the installed version does not have."""

from __future__ import annotations

import types

import pytest

from pytest_nvfp4.toolchain import dsl_names
from pytest_nvfp4.toolchain.worker.findings import from_exception


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsl_names, "installed_dsl_version", lambda: "4.8.1")


def _attribute(module: types.ModuleType, name: str) -> AttributeError:
    with pytest.raises(AttributeError) as raised:
        getattr(module, name)
    return raised.value


def test_a_name_that_moved_is_named_with_its_version_and_what_replaces_it() -> None:
    module = "cutlass.cute.nvgpu.common"
    imported = ImportError(f"cannot import name 'OpError' from '{module}' (/x/common.py)", name=module)
    for error in (imported, _attribute(types.ModuleType(module), "OpError")):
        said = dsl_names.missing_name(error)
        assert f"in the installed nvidia-cutlass-dsl 4.8.1 {module} has no OpError" in said
        assert "written for DSL 4.4" in said
        assert "DSLBaseError" in said
        assert "install nvidia-cutlass-dsl==4.4.*" in said


def test_a_finding_has_the_hint() -> None:
    error = ImportError("cannot import name 'f' from 'cutlass.utils' (/x.py)", name="cutlass.utils")
    message = from_exception("import", "k.py could not be imported", error, lambda _: False).message
    assert message.endswith(
        "in the installed nvidia-cutlass-dsl 4.8.1 cutlass.utils has no f: it is written for another version; change "
        "it, or install that version"
    )


def test_a_module_that_is_missing_is_named() -> None:
    error = ModuleNotFoundError("No module named 'cutlass.new'", name="cutlass.new")
    assert "4.8.1 there is no cutlass.new: it is written for another version" in dsl_names.missing_name(error)


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'cutlass'", name="cutlass"),
        ModuleNotFoundError("No module named 'cutlasses'", name="cutlasses"),
        ImportError("cannot import name 'a' from 'os' (/os.py)", name="os"),
        ImportError("cutlass broke", name="cutlass.cute"),
        _attribute(types.ModuleType("os"), "a"),
        AttributeError("no module", name="x", obj=3),
        ValueError("cutlass"),
    ],
)
def test_other_errors_have_no_hint(error: BaseException) -> None:
    assert dsl_names.missing_name(error) == ""


def test_without_the_dsl_there_is_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsl_names, "installed_dsl_version", lambda: None)
    error = ModuleNotFoundError("No module named 'cutlass.new'", name="cutlass.new")
    assert dsl_names.missing_name(error) == ""
