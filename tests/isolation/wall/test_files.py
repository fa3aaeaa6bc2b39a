"""Which files a wall lets through."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.wall import Wall, files


def test_the_import_path_opens_packages_and_nothing_of_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, packages = tmp_path / "project", tmp_path / "overlay/lib/python3.11/site-packages"
    tools, home = tmp_path / "tools", tmp_path / "home"
    monkeypatch.setattr(sys, "path", [*sys.path, str(project), str(project / "src"), str(packages)])
    environ = {
        "HOME": str(home),
        "PYTHONPATH": str(project),
        "PATH": f"{tools}:{home / 'bin'}:.",
        "LD_LIBRARY_PATH": str(home / "cuda/lib64"),
    }
    read = {str(place) for place, _ in files.rules(Wall(folder=str(tmp_path / "job")), environ, own_proc=True)}
    assert {str(packages), str(tools), str(home / "cuda/lib64")} <= read
    opened = [Path(place) for place in read if place.startswith(str(tmp_path))]
    for closed in (project, project / "src", home, home / "bin"):
        assert not any(closed.is_relative_to(place) for place in opened), closed
