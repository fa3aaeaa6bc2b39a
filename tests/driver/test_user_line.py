"""A library's lines are not the user's, wherever the library is installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.driver.user_line import user_line

LIBRARY = "def launch(call):\n    return call()\n"


@pytest.mark.parametrize(("name", "lines"), [("triton", 1), ("my_helpers", 2)])
def test_a_library_outside_of_site_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, lines: int
) -> None:
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.import_module(name).launch(user_line)
    monkeypatch.delitem(sys.modules, name)
    assert found is not None
    files = [found.file, found.caller.file if found.caller is not None else ""]
    assert files[:lines] == ([__file__] if lines == 1 else [str(package / "__init__.py"), __file__])
