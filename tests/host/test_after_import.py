"""Functions that are called when a module has been imported."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pytest_nvfp4.host.after_import import after_import

NAME = "imported_later_by_a_test"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)


def test_it_is_called_once_at_the_end_of_the_import():
    seen: list[int] = []

    def then(made: ModuleType) -> None:
        seen.append(made.value)
        made.value = 2

    before = list(sys.meta_path)
    after_import(NAME, then)
    assert importlib.import_module(NAME).value == 2
    assert importlib.import_module(NAME).value == 2
    assert seen == [1]
    assert sys.meta_path == before
    made = sys.modules.pop(NAME)
    for loader in (made.__spec__.loader, made.__loader__):
        assert type(loader).__module__ != after_import.__module__


def test_it_is_called_at_once_for_a_module_that_is_there():
    seen: list[str] = []
    after_import("sys", lambda made: seen.append(made.__name__))
    assert seen == ["sys"]


def test_it_can_be_cancelled():
    seen: list[str] = []
    before = list(sys.meta_path)
    cancel = after_import(NAME, lambda made: seen.append(made.__name__))
    cancel()
    cancel()
    importlib.import_module(NAME)
    del sys.modules[NAME]
    assert (seen, sys.meta_path) == ([], before)


def test_a_module_that_does_not_exist_is_not_found():
    cancel = after_import("there_is_no_such_module", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("there_is_no_such_module")
    cancel()
