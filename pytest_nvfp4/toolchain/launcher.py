"""Start a module of this package as a worker, in any interpreter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation import Worker

PACKAGE: Final = Path(__file__).resolve().parents[1]
"""The folder of this package."""
BOOTSTRAP: Final = PACKAGE / "toolchain" / "worker" / "bootstrap.py"
"""The script that starts a module of this package in any interpreter."""
PRELOAD: Final = (
    "numpy",
    "torch",
    "pytest_nvfp4.host.compile_cache",
    "pytest_nvfp4.host.redirect",
    "pytest_nvfp4.driver.tensormap",
    "pytest_nvfp4.host.torch_cuda",
    "pytest_nvfp4.toolchain.worker.capture",
    "pytest_nvfp4.toolchain.worker.contract",
    "pytest_nvfp4.toolchain.worker.options",
)
"""What a worker that compiles kernels with torch imports before the first of them; never the DSL, which reads the
environment of each job while it is imported."""


def worker(
    module: str, *arguments: str | Path, python: str | Path = sys.executable, preload: tuple[str, ...] = ()
) -> Worker:
    """A worker that runs a module of this package.

    Args:
        module: Its full name.
        arguments: Its arguments.
        python: The interpreter.
        preload: Modules that a fork server may import for it.
    """
    launcher = (str(python), "-P", str(BOOTSTRAP), str(PACKAGE))
    return Worker(launcher, module, tuple(map(str, arguments)), preload)
