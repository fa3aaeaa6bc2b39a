"""The pytest plugin: options, the collector of kernel files, fixtures, snapshots and reports.

Importing it loads neither torch, cutlass, modal, numpy nor z3, and little else: most runs of pytest have nothing to
do with kernels.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.plugin import options as _options
from pytest_nvfp4.plugin.fixtures import layout_snapshot, nvfp4_case, nvfp4_fact_snapshot, nvfp4_trace
from pytest_nvfp4.plugin.state import RUN, Run

__all__ = ["layout_snapshot", "nvfp4_case", "nvfp4_fact_snapshot", "nvfp4_trace"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini settings."""
    _options.add(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Read the options and register what goes with a run."""
    config.addinivalue_line("markers", "nvfp4: a check of a kernel file (set on the items of kernel files)")
    config.stash[RUN] = Run(config, _options.read(config))
    if config.pluginmanager.hasplugin("syrupy"):
        from pytest_nvfp4.plugin.session import FinishHook, SessionHooks
        from pytest_nvfp4.plugin.snapshots import configure

        configure(config)
        hooks = SessionHooks(config)
        config.pluginmanager.register(hooks, "nvfp4-session")
        config.pluginmanager.register(FinishHook(hooks), "nvfp4-finish")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, Any, Any]:
    """Collect a kernel file as such, and keep other plugins from importing it."""
    collectors: Any = yield
    from pytest_nvfp4.plugin.collector import collect_file

    kernel = collect_file(file_path, parent)
    return collectors if kernel is None else [kernel]


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the DSL that compiles kernels, where any may be collected."""
    run = config.stash[RUN]
    if not run.options.kernels and not any(str(argument).endswith(".py") for argument in config.args):
        return None
    from pytest_nvfp4.toolchain.request import installed_dsl_version

    version = installed_dsl_version()
    return f"nvfp4: nvidia-cutlass-dsl {version}" if version else "nvfp4: nvidia-cutlass-dsl is not installed"
