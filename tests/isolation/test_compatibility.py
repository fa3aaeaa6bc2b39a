"""Whether another process would import the same modules as this one, and share its environment."""

from __future__ import annotations

import colorsys
import importlib
import os
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.fork_server.compatibility import import_path, shadowing, shared_environment

STANDARD = str(Path(os.__file__).parent)
assert Path(colorsys.__file__).parent == Path(STANDARD)


@pytest.fixture(autouse=True)
def _without_distutils(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget setuptools' replacement of a standard module, which another test of this process may have imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "distutils"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "colorsys.py").touch()
    return str(tmp_path)


@pytest.mark.parametrize(
    ("path", "shadows"),
    [
        ("standard", False),
        ("folder standard", True),
        ("standard folder", False),
        ("nowhere standard folder", False),
        ("nowhere folder standard", True),
    ],
)
def test_a_module_is_shadowed_by_an_earlier_folder(folder: str, path: str, shadows: bool) -> None:
    places = {"standard": STANDARD, "folder": folder, "nowhere": f"{folder}/nowhere"}
    reason = shadowing([places[name] for name in path.split()], package="pytest_nvfp4")
    assert reason == (f"colorsys would be imported from {folder}/colorsys.py" if shadows else None)


def test_the_package_itself_is_found_without_a_path(tmp_path: Path) -> None:
    (tmp_path / "pytest_nvfp4").mkdir()
    (tmp_path / "pytest_nvfp4" / "__init__.py").touch()
    assert shadowing([str(tmp_path), STANDARD], package="pytest_nvfp4") is None
    assert shadowing([str(tmp_path), STANDARD], package="another") is not None


def test_a_namespace_package_gets_no_further_portion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in "ab":
        (tmp_path / part / "package_of_parts").mkdir(parents=True)
    one, other = str(tmp_path / "a"), str(tmp_path / "b")
    monkeypatch.syspath_prepend(one)
    importlib.import_module("package_of_parts")
    try:
        reason = shadowing([other, one, STANDARD], package="x")
        assert reason is not None
        assert reason.startswith("package_of_parts would be imported from ")
        assert shadowing([one, STANDARD], package="x") is None
        assert shadowing([STANDARD, one], package="x") is None
    finally:
        del sys.modules["package_of_parts"]
    assert shadowing([other, one, STANDARD], package="x") is None


def test_entries_that_pth_files_put_first_stay_first() -> None:
    base = ["/dsl", STANDARD, "/site"]
    assert import_path({"PYTHONPATH": "own:/site"}, base=base, cwd="/here") == ["/dsl", "/here/own", "/site", STANDARD]
    assert import_path({}, base=base, cwd="/here") == base


def test_variables_of_a_job_are_not_shared_with_the_server() -> None:
    environ = {"OMP_NUM_THREADS": "1", "NVFP4_RESULT_FD": "5", "CUTE_DSL_ARCH": "sm_100a", "PYTHONPATH": "/own"}
    assert shared_environment(environ) == {"OMP_NUM_THREADS": "1"}
