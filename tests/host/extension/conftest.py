"""One library for all tests, because nvcc takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.host.extension import sources


@pytest.fixture(scope="session")
def scale_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sources.library(sources.SCALE, tmp_path_factory.mktemp("extension"))
