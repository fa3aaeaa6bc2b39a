"""The pytest plugin: options, the collector of kernel files, checks, fixtures, snapshots and reports.

Importing it loads neither torch, cutlass, modal, numpy nor z3, and few other modules, because most runs of pytest have
no kernels.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.end_signals import as_interrupts
from pytest_nvfp4.plugin import device_options as _device_options
from pytest_nvfp4.plugin import options as _options
from pytest_nvfp4.plugin.causes import CAUSES, Causes
from pytest_nvfp4.plugin.devices import DEVICES, Devices
from pytest_nvfp4.plugin.failure import CheckFailure, KernelWarning, TimingWarning
from pytest_nvfp4.plugin.fitted import FITTED_PROBLEMS, FittedProblems
from pytest_nvfp4.plugin.fixtures import (
    layout_snapshot,
    nvfp4_case,
    nvfp4_cost_snapshot,
    nvfp4_device,
    nvfp4_fact_snapshot,
    nvfp4_kernel,
    nvfp4_model_snapshot,
    nvfp4_run,
    nvfp4_trace,
)
from pytest_nvfp4.plugin.remote import RemoteRun
from pytest_nvfp4.plugin.simulations import SIMULATIONS, Simulations
from pytest_nvfp4.plugin.state import RUN, Run, is_xdist_worker
from pytest_nvfp4.plugin.verifications import VERIFICATIONS, Verifications
from pytest_nvfp4.sandbox_mode import MODE_VARIABLE

__all__ = [
    "CheckFailure",
    "KernelWarning",
    "TimingWarning",
    "layout_snapshot",
    "nvfp4_case",
    "nvfp4_cost_snapshot",
    "nvfp4_device",
    "nvfp4_fact_snapshot",
    "nvfp4_kernel",
    "nvfp4_model_snapshot",
    "nvfp4_run",
    "nvfp4_trace",
]


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the options and ini settings of the plugin and of all checks."""
    from pytest_nvfp4.plugin.checks.registry import PLUGIN_NAME, CheckRegistry

    _options.add(parser)
    _device_options.add(parser)
    pluginmanager.register(CheckRegistry(parser), PLUGIN_NAME)


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, and register the state and hooks of the run."""
    from pytest_nvfp4.plugin.background import Background
    from pytest_nvfp4.plugin.checks.registry import CheckRegistry
    from pytest_nvfp4.plugin.session import SessionHooks

    config.stash[RUN] = Run(config, _options.read(config))
    _choose_sandbox(config)
    options = _device_options.read(config)
    registry = CheckRegistry.of(config)
    remote = None
    if options.remote is not None:
        from pytest_nvfp4.plugin.ahead import LookAhead

        remote = RemoteRun(config, options.remote)
        if options.remote.traces:
            config.stash[RUN].make_tracer = remote.tracer
        config.pluginmanager.register(remote, "nvfp4-remote")
        config.pluginmanager.register(LookAhead(config, registry, remote), "nvfp4-ahead")
    devices = config.stash[DEVICES] = Devices(config, options, remote)
    simulations = config.stash[SIMULATIONS] = Simulations(config, devices)
    config.stash[VERIFICATIONS] = Verifications(devices, simulations)
    config.stash[CAUSES] = Causes()
    config.stash[FITTED_PROBLEMS] = FittedProblems(simulations)
    registry.configure(config)
    listed = "".join(f"\n    {check.name}: {check.help}" for check in registry)
    config.addinivalue_line("markers", f"nvfp4: a check of a kernel file (set on its items), one of{listed}")
    config.pluginmanager.register(SessionHooks(config, registry), "nvfp4-session")
    if remote is not None or _may_collect_kernels(config):
        config.add_cleanup(as_interrupts())
    background = Background(config)
    config.pluginmanager.register(background, "nvfp4-background")
    if _may_collect_kernels(config):
        from pytest_nvfp4.plugin import live

        config.pluginmanager.register(live.LiveProgress(config, lambda: background.queued), live.NAME)


def _choose_sandbox(config: pytest.Config) -> None:
    """Pass the mode of the sandbox on to whatever starts a worker. Raises pytest.UsageError if it cannot stand."""
    mode = config.stash[RUN].options.sandbox
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setenv(MODE_VARIABLE, mode)
    if mode == "require" and not is_xdist_worker(config):
        from pytest_nvfp4.toolchain.sandbox import Sandbox, SandboxError

        try:
            Sandbox.probe().require()
        except SandboxError as error:
            raise pytest.UsageError(f"--nvfp4-sandbox=require: {error}") from error


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, Any, Any]:
    """Collect a kernel file, and keep other plugins from importing it."""
    from pytest_nvfp4.plugin.collector import collect_file

    collectors = collect_file(file_path, parent, (yield))
    if not collectors:
        parent.config.stash[RUN].uncollected.append(file_path)
    return collectors


def _may_collect_kernels(config: pytest.Config) -> bool:
    """Return whether the run may collect kernels: others need nothing of this plugin, and see nothing of it."""
    run = config.stash[RUN]
    named = any(str(argument).split("::")[0].endswith(".py") for argument in config.args)
    return bool(named or run.options.kernels or run.settings.tables)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return the version of the DSL and the device, in a run that may collect kernels."""
    run, options = config.stash[RUN], config.stash[DEVICES].options
    if not _may_collect_kernels(config):
        return None
    from pytest_nvfp4.device.gpus import describe_gpus
    from pytest_nvfp4.toolchain.request import installed_dsl_version
    from pytest_nvfp4.toolchain.sandbox import Sandbox

    version = installed_dsl_version()
    dsl = f"nvidia-cutlass-dsl {version}" if version else "nvidia-cutlass-dsl is not installed"
    sandbox = "no sandbox (--nvfp4-sandbox=off)" if run.options.sandbox == "off" else Sandbox.probe().describe()
    if options.remote is not None:
        return f"nvfp4: {dsl}; device {options.remote}; here {sandbox}"
    no_gpu = "no GPU; kernels run in the simulator" if options.simulates else "no GPU"
    device = f"device {options.device}: {'; '.join(describe_gpus()) or no_gpu}"
    return f"nvfp4: {dsl}; {device}\nnvfp4: {sandbox}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write what ran on the remote, and how much the cache of simulations saved."""
    if (remote := config.stash[DEVICES].remote) is not None:
        remote.summarise(terminalreporter)
    if hits := config.stash[SIMULATIONS].cache_hits:
        cases = "1 case is" if hits == 1 else f"{hits} cases are"
        terminalreporter.write_line(
            f"nvfp4: {cases} known to pass in the simulator, with the same kernel, inputs and versions "
            "(--nvfp4-fresh simulates them again)"
        )
