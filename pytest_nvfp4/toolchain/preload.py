"""The modules that a fork server imports for workers with torch."""

from __future__ import annotations

from typing import Final

PRELOAD: Final = (
    "numpy",
    "torch",
    "pytest_nvfp4.host.compile_cache",
    "pytest_nvfp4.host.redirect",
    "pytest_nvfp4.driver.tensormap",
    "pytest_nvfp4.host.large_random",
    "pytest_nvfp4.host.torch_cuda",
    "pytest_nvfp4.toolchain.worker.capture",
    "pytest_nvfp4.toolchain.worker.contract",
    "pytest_nvfp4.toolchain.worker.options",
    "pytest_nvfp4.toolchain.preloaded_dsl",
)
"""It never imports the DSL directly: that import reads the environment of the job (``preloaded_dsl``)."""
