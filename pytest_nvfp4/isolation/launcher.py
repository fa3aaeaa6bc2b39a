"""Start a module of this package as a worker, in any interpreter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation.worker import Worker

PACKAGE: Final = Path(__file__).resolve().parents[1]
"""Folder of this package."""
BOOTSTRAP: Final = PACKAGE / "isolation" / "bootstrap.py"
"""Script that starts a module of this package in any interpreter."""


def worker(
    module: str, *arguments: str | Path, python: str | Path = sys.executable, preload: tuple[str, ...] = ()
) -> Worker:
    """Return a worker that runs a module of this package.

    Args:
        module: Full name of the module.
        arguments: Its arguments.
        python: The interpreter.
        preload: Modules that a fork server may import in advance.
    """
    launcher = (str(python), "-P", str(BOOTSTRAP), str(PACKAGE))
    return Worker(launcher, module, tuple(map(str, arguments)), preload)
