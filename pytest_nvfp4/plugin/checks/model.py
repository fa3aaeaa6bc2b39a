"""``model``: one call is not modelled slower than its snapshot.

The simulator records what every warp issues and waits for, and the recording is replayed on a table of a device's
constants. The result is a *modelled* time, which is compared with modelled ones only. The check has items for the
problems of the setting ``model-problems``, or with ``--nvfp4-model`` for those that are simulated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.bench.storage import stores
from pytest_nvfp4.plugin.checks.base import CheckItem, CollectedKernel, Differences, Needs, Preparation
from pytest_nvfp4.plugin.checks.benchmark import may_time
from pytest_nvfp4.plugin.checks.coverage import SimulatedCheck, require_call
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest, job_case
from pytest_nvfp4.plugin.devices import DEVICES
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.record import CheckRecord
from pytest_nvfp4.plugin.simulations import SIMULATIONS
from pytest_nvfp4.plugin.state import RUN, KernelCase

if TYPE_CHECKING:
    from pytest_nvfp4.device.modelled import ModelledCall
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.model.constants import DeviceConstants
    from pytest_nvfp4.plugin.checks.modelled_benchmarks import ModelledBenchmarks
    from pytest_nvfp4.plugin.compare_modelled import ModelSnapshot

_CONDITIONS = "gpumode"


class ModelCheck(SimulatedCheck):
    """The check of a call's modelled time against its snapshot."""

    name = "model"
    help = "one call is not slower than its snapshot (modelled)"
    optional = True
    wrong_results_reported_by = "coverage"
    summary_title = "modelled times (nothing was measured)"
    device: str | None = None
    every: bool = False
    _benchmarks: ModelledBenchmarks | None = None

    def add_options(self, parser: pytest.Parser) -> None:
        """Declare the options."""
        group = parser.getgroup("nvfp4")
        group.addoption(
            "--nvfp4-model",
            action="store_true",
            help="model the time of every kernel on the problems that are simulated, not only of those with the "
            "setting model-problems",
        )
        group.addoption(
            "--nvfp4-model-device",
            metavar="NAME",
            help="table of the device that times are modelled for, or a file (default: that of the architecture)",
        )

    def configure(self, config: pytest.Config) -> None:
        """Read the options. Raises pytest.UsageError."""
        self.every = config.getoption("--nvfp4-model")
        self.device = config.getoption("--nvfp4-model-device")
        if self.device is not None:
            from pytest_nvfp4.model.constants import ConstantsError, load_device

            try:
                load_device(self.device)
            except ConstantsError as error:
                raise pytest.UsageError(f"--nvfp4-model-device {self.device}: {error}") from error
        settings = config.stash[RUN].settings
        if self.every or any(table.settings.model for table in settings.tables) or settings.default.model:
            config.pluginmanager.register(_Header(self.device), "nvfp4-model-tables")
            self._install(config)

    def _install(self, config: pytest.Config) -> None:
        """Register the hooks that store modelled times in pytest-benchmark, if this run can measure none."""
        if stores(config) and not may_time(config.stash[DEVICES].options):
            from pytest_nvfp4.plugin.checks.modelled_benchmarks import ModelledBenchmarks

            self._benchmarks = ModelledBenchmarks(config, self._machine)
            config.pluginmanager.register(self._benchmarks, "nvfp4-modelled")

    def _machine(self, item: pytest.Item) -> str | None:
        """Return the modelled machine of an item; None if it models nothing."""
        from pytest_nvfp4.device.modelled import machine_name

        if not isinstance(item, CheckItem) or item.check is not self:
            return None
        with contextlib.suppress(CheckFailure):  # which the item itself meets
            return machine_name(self._device(item.case).name)
        return None

    def cases(self, kernel: CollectedKernel) -> Iterator[KernelCase]:
        """Yield the cases to model."""
        if self.every:
            yield from super().cases(kernel)
        elif kernel.device_options.simulates:
            for cases in kernel.runnable:
                compiled = {case.problem: case for case in cases}
                for problem in cases[0].settings.model:
                    if problem in (kernel.run.chosen(cases[0].path, cases[0].settings) or (problem,)):
                        yield compiled.get(problem, cases[0]).on(problem)

    def needs(self, item: CheckItem) -> Needs:
        """Return the trace and the modelled time."""
        key = (self.name, item.case.path, item.case.label)
        preparation = Preparation(key, lambda: self._modelled(KernelUnderTest(item)))
        return Needs(traces=(item.case.trace_case,), preparations=(preparation,))

    def run(
        self, nvfp4_case: KernelUnderTest, nvfp4_model_snapshot: ModelSnapshot, request: pytest.FixtureRequest
    ) -> None:
        """Fail if the modelled time grew by more than its tolerance."""
        from pytest_nvfp4.device.simulate import SimulationResult

        done = self._modelled(nvfp4_case)
        if isinstance(done, SimulationResult):
            require_call(nvfp4_case, done)
            nvfp4_case.defer_wrong_results(self.wrong_results_reported_by)
            raise CheckFailure(
                f"no time is modelled: {done.errors[0]}" if done.errors else f"no time is modelled: {done.status}",
                file=str(nvfp4_case.case.path),
            )
        case = nvfp4_case.case
        nvfp4_case.show("modelled", done, case.problem)
        tolerance = case.settings.model_tolerance
        if done.refused:  # pytest shows no reason of a skip by itself
            nvfp4_case.note(f"no time is modelled: {done.refused[0]}")
        against = "" if done.refused else self._stored(nvfp4_case, request, done, tolerance)
        result = nvfp4_model_snapshot(nvfp4_case.trace(), done, case.problem, tolerance=tolerance)
        origin = self._device(case).origin
        own = nvfp4_case.run.relative(Path(origin)) if origin else ""
        line = "; ".join(filter(None, (time_line(done, own), result, against)))
        nvfp4_case.note(line)
        nvfp4_case.establish(line)

    def _stored(
        self, kernel: KernelUnderTest, request: pytest.FixtureRequest, call: ModelledCall, tolerance: float
    ) -> str:
        """Store the time in pytest-benchmark, if that is requested, and return the comparison in words.

        Raises:
            CheckFailure: The time grew against the baseline by more than its tolerance.
        """
        from pytest_nvfp4.bench.baseline import BaselineError

        if self._benchmarks is None:
            return ""
        file = str(kernel.case.path)
        try:
            change = self._benchmarks.store(kernel.item, request, call)
        except BaselineError as error:
            raise CheckFailure(str(error), file=file) from error
        if isinstance(change, str):
            return change
        if change.share > tolerance:
            raise CheckFailure(
                f"modelled slower than the baseline on {call.title}: {change}, tolerance {100 * tolerance:g} %\n"
                "if that is meant, save a new baseline with --benchmark-autosave",
                file=file,
            )
        return f"against the baseline: {change}"

    def _modelled(self, kernel: KernelUnderTest) -> ModelledCall | SimulationResult:
        from pytest_nvfp4.device.modelled import conditions_of

        spec, base = kernel.spec()
        device = self._device(kernel.case)
        return kernel.item.config.stash[SIMULATIONS].modelled(
            spec,
            job_case(kernel.problem),
            device,
            conditions_of(_CONDITIONS, device),
            base=base,
            without_accepted=kernel.without_accepted,
        )

    def _device(self, case: KernelCase) -> DeviceConstants:
        from pytest_nvfp4.device.modelled import device_for
        from pytest_nvfp4.model.constants import ConstantsError

        try:
            return device_for(case.settings.arch, self.device)
        except ConstantsError as error:
            raise CheckFailure(f"no time is modelled: {error}", file=str(case.path)) from error

    def differences(self, record: CheckRecord) -> Differences:
        """Return the facts that changed, without the parts of the critical path. Raises SheetError."""
        from pytest_nvfp4.bench.modelled_facts import without_path
        from pytest_nvfp4.layout.launch_facts import diff_facts
        from pytest_nvfp4.toolchain.sheet import Sheet

        old, new = (Sheet.parse(text or "", kind=self.name).facts for text in (record.old, record.new))
        return Differences(facts=diff_facts(without_path(old), without_path(new)))


class _Header:
    """Names the device tables that are not shipped ones in the header of the run.

    Args:
        named: The device of the command line.
    """

    def __init__(self, named: str | None) -> None:
        self._named = named

    def pytest_report_header(self, config: pytest.Config) -> list[str]:
        """Return a line for each table of the user that items may use."""
        from pytest_nvfp4.model.calibrated import calibrated_names
        from pytest_nvfp4.model.constants import ConstantsError, load_device

        lines = []
        for name in calibrated_names() if self._named is None else [self._named]:
            with contextlib.suppress(ConstantsError):  # which the item itself meets
                device = load_device(name)
                if device.origin:
                    file = config.stash[RUN].relative(Path(device.origin))
                    lines.append(f"nvfp4: times of {device.name} are modelled with your table {file}, {device.digest}")
        return lines


def time_line(call: ModelledCall, file: str = "") -> str:
    """Return a modelled time with its band and its table in one line; ``file`` is that of a table of the user."""
    band = call.band
    if band is None:
        known = f"no band: {call.without_band}"
    else:
        low, high = band.around(call.us)
        known = f"{low:.3g} to {high:.3g} us, from {band.points} measured times of such kernels"
    bound = ", ".join(dict.fromkeys(launch.bound for launch in call.launches))
    table = f"{call.table_text}, {file}" if file else call.table_text
    return f"modelled {call.us:.3f} us on {call.title} ({known}), bound by {bound}; {table}"
