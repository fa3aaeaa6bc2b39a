"""Which imports of another process would find what this one has, and which something else."""

from __future__ import annotations

import colorsys
import importlib
import os
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.nursery.likeness import import_path, kept, shadowed

STANDARD = str(Path(os.__file__).parent)
assert Path(colorsys.__file__).parent == Path(STANDARD)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "colorsys.py").touch()
    return str(tmp_path)


@pytest.mark.parametrize(
    ("base", "path", "hides"),
    [
        ("standard", "standard", False),
        ("standard", "folder standard", True),
        ("standard", "standard folder", False),
        ("standard folder", "folder standard", True),
        ("standard folder", "nowhere standard folder", False),
        ("folder standard", "standard folder", False),
    ],
)
def test_only_what_comes_before_another_folder_anew_hides_it(folder: str, base: str, path: str, hides: bool) -> None:
    places = {"standard": STANDARD, "folder": folder, "nowhere": f"{folder}/nowhere"}
    ours, theirs = ([places[name] for name in names.split()] for names in (base, path))
    said = shadowed(theirs, base=ours, own="pytest_nvfp4")
    assert said == (f"{folder} holds colorsys.py" if hides else None)


def test_the_package_itself_is_found_without_a_path(tmp_path: Path) -> None:
    (tmp_path / "pytest_nvfp4").mkdir()
    (tmp_path / "pytest_nvfp4" / "__init__.py").touch()
    assert shadowed([str(tmp_path), STANDARD], base=[STANDARD], own="pytest_nvfp4") is None
    assert shadowed([str(tmp_path), STANDARD], base=[STANDARD], own="another") is not None


def test_a_package_in_parts_has_none_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in "ab":
        (tmp_path / part / "package_of_parts").mkdir(parents=True)
    one, other = str(tmp_path / "a"), str(tmp_path / "b")
    monkeypatch.syspath_prepend(one)
    importlib.import_module("package_of_parts")
    try:
        assert shadowed([other, one, STANDARD], base=[one, STANDARD], own="x") == f"{other} holds package_of_parts"
        assert shadowed([one, STANDARD], base=[STANDARD, one], own="x") is None
    finally:
        del sys.modules["package_of_parts"]
    assert shadowed([other, one, STANDARD], base=[one, STANDARD], own="x") is None


def test_what_pth_files_put_first_stays_first() -> None:
    base = ["/dsl", STANDARD, "/site"]
    assert import_path({"PYTHONPATH": "own:/site"}, base=base, cwd="/here") == ["/dsl", "/here/own", "/site", STANDARD]
    assert import_path({}, base=base, cwd="/here") == base


def test_variables_of_a_job_are_not_those_of_a_nursery() -> None:
    environ = {"OMP_NUM_THREADS": "1", "NVFP4_RESULT_FD": "5", "CUTE_DSL_ARCH": "sm_100a", "PYTHONPATH": "/own"}
    assert kept(environ) == {"OMP_NUM_THREADS": "1"}
