"""The device of a run, once a check needs one."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_nvfp4.plugin import remote
from pytest_nvfp4.plugin.device_options import DeviceOptions
from pytest_nvfp4.plugin.simulations import KernelKey, Simulations, kernel_key

if TYPE_CHECKING:
    from pytest_nvfp4.bench.regression import ShapeVerdict
    from pytest_nvfp4.bench.storage import BenchmarkHooks
    from pytest_nvfp4.bench.table import Row
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.job import JobCase, KernelSpec
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.device.verify import Verification, Verifier
    from pytest_nvfp4.plugin.remote import RemoteRun
    from pytest_nvfp4.plugin.timing import Stopwatch


NOT_RUN = "not run: "
"""How the reason of a check that found no device begins."""


class Devices:
    """The device of a run, chosen when the first check asks for it."""

    def __init__(self, config: pytest.Config, options: DeviceOptions) -> None:
        self._config = config
        self.options = options
        self.rows: list[Row] = []
        """What benchmark checks measured."""
        self.geomeans: dict[str, ShapeVerdict] = {}
        """The verdict on all problems of a kernel together."""
        self.remote: RemoteRun | None = None
        """The remote of the run, where one was asked for."""
        if options.remote is not None:
            self.remote = remote.RemoteRun(config, options.remote)
            config.pluginmanager.register(self.remote, "nvfp4-remote")
        self._verifiers: dict[str, Verifier] = {}
        self._verified: dict[KernelKey, dict[JobCase, Verification]] = {}
        self._simulations = Simulations(
            config,
            options,
            simulator=lambda: self.simulator,
            jobs=lambda: self.folder / "jobs",
            shared=self.shared,
        )

    @cached_property
    def folder(self) -> Path:
        """A folder for the files of jobs; it is removed when the run ends."""
        folder = Path(tempfile.mkdtemp(prefix="pytest-nvfp4-"))
        self._config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        return folder

    @cached_property
    def stopwatch(self) -> Stopwatch:
        """What times kernels."""
        from pytest_nvfp4.plugin.timing import Stopwatch

        return Stopwatch(folder=self.folder / "jobs", rounds=self.options.rounds, timeout_s=self.options.timeout_s)

    @cached_property
    def device(self) -> Device | str:
        """The device, or why there is none."""
        from pytest_nvfp4.device.base import DeviceUnavailableError
        from pytest_nvfp4.device.select import select
        from pytest_nvfp4.device.sim import SimDevice

        if self.remote is not None:
            return self.remote.device
        try:
            found = select(self.options.device, folder=self.folder, worker=self._worker)
            return self.simulator if isinstance(found, SimDevice) else found
        except DeviceUnavailableError as error:
            return str(error)

    @property
    def _worker(self) -> str | None:
        return getattr(self._config, "workerinput", {}).get("workerid")

    @property
    def shared(self) -> bool:
        """Whether other test processes of this run work on the same items."""
        return self._worker is not None

    def any_arch(self) -> Device:
        """The device. Where there is none the caller is skipped, or fails with ``--nvfp4-require-device``."""
        device = self.device
        if isinstance(device, str):
            self.lack(device)
        return device

    def for_arch(self, arch: str) -> Device:
        """The device, if it can run code for an architecture; otherwise as ``any_arch`` without a device.

        With ``--nvfp4-device=auto`` the simulator takes the place of a GPU that cannot run the code.
        """
        device = self.any_arch()
        unsupported = _unsupported(device, arch)
        if unsupported is not None and self.options.device == "auto" and device is not self.simulator:
            device, unsupported = self.simulator, self.simulator.unsupported(arch)
        if unsupported is not None:
            self.lack(unsupported)
        return device

    def no_clock(self, arch: str) -> str:
        """Why a kernel of an architecture that is simulated is not timed."""
        device = self.any_arch()
        unsupported = None if device is self.simulator else _unsupported(device, arch)
        return f"{unsupported}, and the simulator has no clock" if unsupported else "the simulator has no clock"

    @cached_property
    def simulator(self) -> Device:
        """The simulator, which is there on every machine. It takes over what the traces of this run compiled."""
        from pytest_nvfp4.device.sim import SimDevice
        from pytest_nvfp4.plugin.state import RUN

        run = self._config.stash[RUN]

        def compiled(kernel: KernelSpec, base: Path) -> list[Path]:
            files = {str(base / file.path): file.sha256 for file in kernel.files}
            return run.tracer.compiled(files, arch=kernel.arch, options=kernel.compile_options)

        return SimDevice(compiled=compiled)

    def lack(self, why: str) -> NoReturn:
        """Skip the calling check for want of a device, or fail it where one is required."""
        if self.options.require:
            from pytest_nvfp4.plugin.failure import CheckFailure

            raise CheckFailure(f"not run: {why} (--nvfp4-require-device)")
        pytest.skip(f"{NOT_RUN}{why}")

    @cached_property
    def hooks(self) -> BenchmarkHooks:
        """What pytest-benchmark is told about devices."""
        from pytest_nvfp4.bench.storage import BenchmarkHooks

        return BenchmarkHooks()

    def prepare_benchmarks(self) -> None:
        """Where there is a device that may be timed, give pytest-benchmark our hooks and the storage of its kind."""
        from pytest_nvfp4.device.gpus import gpu_names

        names = gpu_names() if self.options.device in ("auto", "local") else []
        if self.options.remote is not None:
            names = [f"NVIDIA {self.options.remote.options.gpu}"]
        timed = names or self.options.device not in ("auto", "local", "sim", "none")
        if not timed or not self._config.pluginmanager.hasplugin("benchmark"):
            return
        if names:
            from pytest_nvfp4.bench.storage import use_gpu_storage

            use_gpu_storage(self._config, names[0])
        self._config.pluginmanager.register(self.hooks, "nvfp4-benchmark")

    def show(self, terminal: Any) -> None:
        """Write the table of what was measured, and name the checks that no device was there for."""
        if self.rows:
            from pytest_nvfp4.bench.table import render

            terminal.write_sep("-", "nvfp4: device times")
            terminal.write_line(render(self.rows, geomeans=self.geomeans, width=terminal._tw.fullwidth).strip("\n"))
        if self.remote is not None:
            self.remote.show(terminal)
        _show_lines(terminal, "nvfp4: coverage (simulated)", COVERAGE_LINE)
        if recalled := self._simulations.recalled:
            cases = "1 case is" if recalled == 1 else f"{recalled} cases are"
            terminal.write_line(
                f"nvfp4: {cases} known to pass in the simulator, with the same kernel, inputs and versions "
                "(--nvfp4-fresh simulates them again)"
            )
        reasons: Counter[str] = Counter()
        for report in terminal.stats.get("skipped", []):
            text = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
            if NOT_RUN in text:
                reasons[text.partition(NOT_RUN)[2]] += 1
        for reason, count in sorted(reasons.items()):
            checks = "1 check was" if count == 1 else f"{count} checks were"
            terminal.write_line(
                f"nvfp4: {checks} not run: {reason} (--nvfp4-require-device makes that a failure, "
                "--nvfp4-device=none leaves them out)"
            )

    def verifier(self, arch: str) -> Verifier:
        """Verifies kernels of an architecture on the device that is there for it (see ``for_arch``)."""
        from pytest_nvfp4.device.verify import Verifier

        device = self.for_arch(arch)
        found = self._verifiers.get(device.name)
        if found is None:
            found = Verifier(device, folder=self.folder / "jobs", deadline_s=self.options.timeout_s)
            self._verifiers[device.name] = found
        return found

    def verify(
        self, kernel: KernelSpec, wanted: Sequence[JobCase], *, others: Sequence[JobCase], base: Path
    ) -> list[tuple[JobCase, Verification]]:
        """The verdicts of some cases of a kernel, each with the verification it is part of.

        Args:
            kernel: The kernel.
            wanted: The cases whose verdicts are asked for.
            others: Further cases that will be asked for in this process: they run in the same job.
            base: The folder the kernel's files are relative to.
        """
        with self._simulations.one_at_a_time("verify", kernel):
            known = self._verified.setdefault(kernel_key(kernel), {})
            # The order of a remote's job is that of its items, whichever of them asks first: it was sent ahead so.
            first, then = (others, wanted) if self.remote is not None else (wanted, others)
            lacking = [case for case in dict.fromkeys([*first, *then]) if case not in known]
            if any(case in lacking for case in wanted):
                if self.for_arch(kernel.arch).name == "sim":
                    known.update(self._simulations.recall(kernel, lacking))
                    lacking = [case for case in lacking if case not in known]
                if lacking:
                    done = self.verifier(kernel.arch).verify(kernel, lacking, base=base)
                    known.update(dict.fromkeys(lacking, done))
                    self._simulations.keep(kernel, done)
            return [(case, known[case]) for case in wanted]

    def simulate(
        self, kernel: KernelSpec, wanted: JobCase, *, others: Sequence[JobCase], base: Path
    ) -> SimulationResult:
        """What a kernel does on a case in the simulator; see ``Simulations.simulate``.

        Where the simulator does not know the architecture the caller is skipped, or fails with
        ``--nvfp4-require-device``.
        """
        self._must_simulate(kernel)
        return self._simulations.simulate(kernel, wanted, others=others, base=base)

    def races(self, kernel: KernelSpec, case: JobCase, schedule: str, *, base: Path) -> SimulationResult | None:
        """A case under a schedule, watched for races; None where that is known to pass.

        Where the simulator does not know the architecture the caller is skipped, as by ``simulate``.
        """
        self._must_simulate(kernel)
        return self._simulations.races(kernel, case, schedule, base=base)

    def _must_simulate(self, kernel: KernelSpec) -> None:
        if (unsupported := self.simulator.unsupported(kernel.arch)) is not None:
            self.lack(unsupported)


def _unsupported(device: Device, arch: str) -> str | None:
    """Why a device cannot run code for an architecture, also where it cannot run anything; None where it can."""
    from pytest_nvfp4.device.base import DeviceUnavailableError

    try:
        return device.unsupported(arch)
    except DeviceUnavailableError as error:
        return str(error)


def _show_lines(terminal: Any, title: str, name: str) -> None:
    """Write what checks noted under a name, a line each, from whichever test process."""
    reports = [report for outcome in ("passed", "failed") for report in terminal.stats.get(outcome, [])]
    lines = [
        f"{report.nodeid}: {value}"
        for report in reports
        for key, value in getattr(report, "user_properties", ())
        if key == name and report.when == "call"
    ]
    if lines:
        terminal.write_sep("-", title)
        for line in lines[:_SHOWN]:
            terminal.write_line(line)
        if len(lines) > _SHOWN:
            terminal.write_line(f"... and {len(lines) - _SHOWN} more")


COVERAGE_LINE = "nvfp4_coverage"
"""Under which name a coverage check notes its line."""
_SHOWN = 30

DEVICES = pytest.StashKey[Devices]()
