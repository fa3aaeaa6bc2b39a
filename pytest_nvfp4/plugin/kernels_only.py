"""A further plugin, under which no code of the repository runs in pytest's own process.

It is added with ``-p pytest_nvfp4.plugin.kernels_only``. pytest imports test modules, a kernel that also holds tests,
and ``__init__.py`` of folders above it; whoever may write these files would run code outside of the sandbox. Here a
kernel file has its checks and nothing else.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_nvfp4.plugin.collector import KernelFile


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector:
    """Return a folder that is no package, so that its ``__init__.py`` is not imported."""
    directory: pytest.Dir = pytest.Dir.from_parent(parent, path=path)
    return directory


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Return the checks of a kernel file only."""
    return [one for one in (yield) if isinstance(one, KernelFile)]
