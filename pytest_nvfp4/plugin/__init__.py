"""The pytest plugin: options, the collector of kernel files, fixtures, snapshots and reports.

Importing it loads neither torch, cutlass, modal, numpy nor z3, and little else: most runs of pytest have nothing to
do with kernels.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.plugin import device_options as _device_options
from pytest_nvfp4.plugin import devices as _devices
from pytest_nvfp4.plugin import options as _options
from pytest_nvfp4.plugin import searching as _searching
from pytest_nvfp4.plugin.background import Background
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.fixtures import (
    layout_snapshot,
    nvfp4_case,
    nvfp4_cost_snapshot,
    nvfp4_device,
    nvfp4_fact_snapshot,
    nvfp4_kernel,
    nvfp4_races,
    nvfp4_running,
    nvfp4_searching,
    nvfp4_simulated,
    nvfp4_trace,
)
from pytest_nvfp4.plugin.kernel import KernelWarning
from pytest_nvfp4.plugin.session import FinishHook, SessionHooks
from pytest_nvfp4.plugin.state import RUN, Run

__all__ = [
    "CheckFailure",
    "KernelWarning",
    "layout_snapshot",
    "nvfp4_case",
    "nvfp4_cost_snapshot",
    "nvfp4_device",
    "nvfp4_fact_snapshot",
    "nvfp4_kernel",
    "nvfp4_races",
    "nvfp4_running",
    "nvfp4_searching",
    "nvfp4_simulated",
    "nvfp4_trace",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini settings."""
    _options.add(parser)
    _device_options.add(parser)
    _searching.add(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Read the options and register what goes with a run."""
    config.addinivalue_line("markers", "nvfp4_threshold(percent): least slowdown that fails this benchmark")
    config.addinivalue_line("markers", "nvfp4: a check of a kernel file (set on the items of kernel files)")
    config.stash[RUN] = Run(config, _options.read(config))
    devices = _devices.Devices(config, _device_options.read(config))
    config.stash[_devices.DEVICES] = devices
    config.stash[_searching.OPTIONS] = _searching.read(config)
    devices.prepare_benchmarks()
    hooks = SessionHooks(config)
    config.pluginmanager.register(hooks, "nvfp4-session")
    config.pluginmanager.register(FinishHook(hooks), "nvfp4-finish")
    config.pluginmanager.register(Background(config), "nvfp4-background")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, Any, Any]:
    """Collect a kernel file as such, and keep other plugins from importing it."""
    from pytest_nvfp4.plugin.collector import collect_file

    collectors = collect_file(file_path, parent, (yield))
    if not collectors:
        parent.config.stash[RUN].passed_over.append(file_path)
    return collectors


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the DSL that compiles kernels, where any may be collected."""
    run = config.stash[RUN]
    named = any(str(argument).split("::")[0].endswith(".py") for argument in config.args)
    if not (named or run.options.kernels or run.settings.tables):
        return None
    from pytest_nvfp4.device.gpus import describe_gpus
    from pytest_nvfp4.toolchain.request import installed_dsl_version

    version = installed_dsl_version()
    dsl = f"nvidia-cutlass-dsl {version}" if version else "nvidia-cutlass-dsl is not installed"
    wanted = config.stash[_devices.DEVICES].options.device
    if (asked := config.stash[_devices.DEVICES].options.remote) is not None:
        return f"nvfp4: {dsl}; device {asked}"
    none = "no GPU; kernels run in the simulator" if config.stash[_devices.DEVICES].options.simulates else "no GPU"
    return f"nvfp4: {dsl}; device {wanted}: {'; '.join(describe_gpus()) or none}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show what was measured."""
    config.stash[_devices.DEVICES].show(terminalreporter)
    _searching.show(terminalreporter)
