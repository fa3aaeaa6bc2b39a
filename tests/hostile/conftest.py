"""The place of the user whom the programs of the corpus attack."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def _place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("user") / "user"


@pytest.fixture
def user(_place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, empty: the same one for all programs, whose processes are then forked from one server."""
    shutil.rmtree(_place, ignore_errors=True)
    monkeypatch.setenv("HOME", str(_place / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(_place / "cache"))
    return _place
