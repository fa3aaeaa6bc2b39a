"""Names that a program takes from CuTe DSL and that the installed version does not have."""

from __future__ import annotations

import types
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_nvfp4.selfcheck.dsl_names import names_of
from pytest_nvfp4.toolchain import dsl_names
from pytest_nvfp4.toolchain.request import installed_dsl_version
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
        assert "4.4.2, 4.5.3, 4.6.3 have it" in said
        assert "DSLBaseError" in said
        assert said.endswith("change it, or install nvidia-cutlass-dsl==4.6.*")


def test_a_name_of_a_newer_version_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsl_names, "installed_dsl_version", lambda: "4.4.0")
    module = "cutlass.cute.nvgpu.common"
    error = ImportError(f"cannot import name 'DSLUserCodeError' from '{module}' (/x.py)", name=module)
    assert "4.7.1, 4.8.1 have it: change it, or install nvidia-cutlass-dsl==4.8.*" in dsl_names.missing_name(error)
    module = "cutlass.base_dsl.compile_backend"
    missing = ModuleNotFoundError(f"No module named '{module}'", name=module)
    assert f"there is no {module}: " in dsl_names.missing_name(missing)
    assert "4.8.1 has it" in dsl_names.missing_name(missing)


@pytest.mark.slow
def test_the_table_agrees_with_the_installed_version() -> None:
    """Its names are read from files; those of this version are what an import finds."""
    pytest.importorskip("cutlass")
    version, top = installed_dsl_version(), find_spec("cutlass")
    assert top is not None
    assert top.origin is not None
    names = names_of(Path(top.origin).parents[1])
    listed = [each for modules in dsl_names._names().values() for each in modules.items()]
    known = [(module, name) for module, text in listed for name in text.split(" ")]
    assert len(known) > 1000
    for module, name in known:
        if version in dsl_names.versions_with(module, name):
            assert name in names[module], (module, name)
        elif version == "4.8.1":
            assert name not in names.get(module, ()), (module, name)


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
