"""Where checks run kernels: the options about devices, and the device of a run once one is needed."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_nvfp4.plugin import remote

if TYPE_CHECKING:
    from pytest_nvfp4.bench.storage import BenchmarkHooks
    from pytest_nvfp4.bench.table import Row
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.job import Case, KernelSpec
    from pytest_nvfp4.device.kept import KeptSimulations, KeptVerdicts
    from pytest_nvfp4.device.simulate import Simulated
    from pytest_nvfp4.device.verify import Verification, Verifier
    from pytest_nvfp4.plugin.remote import RemoteRequest, RemoteRun


NOT_RUN = "not run: "
"""How the reason of a check that found no device begins."""


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What the user asked for about devices.

    Attributes:
        device: Name of the device.
        require: A check that finds no device fails instead of being skipped.
        families: Input families to verify with; empty for the default ones.
        rounds: Timed calls of a benchmark.
        threshold: Least slowdown that fails a benchmark with a baseline, as a share.
        timeout_s: Seconds that one job may take.
        fresh: Simulate again what is known to pass.
        trace: Folder for timelines of what is simulated; None for none.
        trace_ctas: CTAs of each launch that a timeline shows.
        remote: The remote that takes the device's place; None for none.
        races: On which problems to look for races: ``all``, ``small`` (one a kernel) or ``off``.
        schedules: Random schedules that the races check tries besides the eager one.
        schedule: The one schedule that it tries; None for the eager one and ``schedules`` more.
        race_warnings: Tell also of what official kernels leave out.
    """

    device: str
    require: bool
    families: tuple[str, ...]
    rounds: int
    threshold: float
    timeout_s: float
    fresh: bool = False
    trace: Path | None = None
    trace_ctas: int = 4
    remote: RemoteRequest | None = None
    races: str = "small"
    schedules: int = 0
    schedule: str | None = None
    race_warnings: bool = False

    @property
    def simulates(self) -> bool:
        """Whether kernels are simulated at all: checks that count what a kernel does need it."""
        return self.device in ("auto", "sim")


def add(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("nvfp4")
    group.addoption(
        "--nvfp4-device",
        default="auto",
        metavar="NAME",
        help="where verify and benchmark checks run: auto (a GPU of this machine that fits the kernel, else the "
        "simulator), local, sim, none (there are no such checks), or a device that another package adds",
    )
    group.addoption(
        "--nvfp4-require-device",
        action="store_true",
        help="fail the checks that find no device they could run on, instead of skipping them; --nvfp4-device=local "
        "with it makes sure that nothing is simulated",
    )
    group.addoption(
        "--nvfp4-family",
        action="append",
        default=[],
        metavar="NAME",
        help="input family to verify with instead of the default ones; may be repeated",
    )
    group.addoption(
        "--nvfp4-rounds", type=int, default=50, metavar="N", help="timed calls of a benchmark check (default: 50)"
    )
    group.addoption(
        "--nvfp4-device-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="seconds one job may take on a device (default: 600)",
    )
    group.addoption(
        "--nvfp4-fresh",
        action="store_true",
        help="simulate everything again; otherwise a case that passed is not run again while the kernel, the inputs, "
        "the simulator and the versions of torch and the DSL are the same",
    )
    group.addoption(
        "--nvfp4-trace",
        metavar="FOLDER",
        help="write a timeline of each simulated check (Chrome's trace format, for ui.perfetto.dev) in steps, not time",
    )
    group.addoption(
        "--nvfp4-trace-ctas",
        type=int,
        default=4,
        metavar="N",
        help="CTAs of each launch that a timeline shows (default: 4)",
    )
    group.addoption(
        "--nvfp4-races",
        choices=("all", "small", "off"),
        default="small",
        help="look for races in the simulator, by happens-before: on one small problem of each kernel (default), on "
        "all problems that are verified, or not at all",
    )
    group.addoption(
        "--nvfp4-schedules",
        type=int,
        default=0,
        metavar="N",
        help="run the races check under N random schedules more, each drawn from a seed (default: 0)",
    )
    group.addoption(
        "--nvfp4-schedule",
        metavar="SEED",
        help="run the races check under this schedule alone: eager, lazy, late-0-3 (warps 0 and 3 run when no other "
        "can), or the seed that a finding named",
    )
    group.addoption(
        "--nvfp4-race-warnings",
        action="store_true",
        help="warn also of what official kernels leave out: tcgen05.wait::ld, fence.mbarrier_init",
    )
    group.addoption(
        "--nvfp4-threshold",
        type=float,
        metavar="PERCENT",
        help="least slowdown that fails a benchmark check with a baseline (default: ini nvfp4_threshold, else 0.5); a "
        "test may have its own with the marker nvfp4_threshold",
    )
    remote.add(group)
    parser.addini("nvfp4_threshold", "least slowdown that fails a benchmark check, in percent", default="0.5")


def read(config: pytest.Config) -> DeviceOptions:
    """The options of a run. Raises pytest.UsageError."""
    rounds, timeout = config.getoption("--nvfp4-rounds"), config.getoption("--nvfp4-device-timeout")
    if rounds < 3:
        raise pytest.UsageError(f"--nvfp4-rounds {rounds} is too few: at least 3 are needed")
    if not timeout > 0:
        raise pytest.UsageError(f"--nvfp4-device-timeout {timeout:g} must be more than zero seconds")
    trace = config.getoption("--nvfp4-trace")
    if not 1 <= config.getoption("--nvfp4-trace-ctas") <= 9999:
        raise pytest.UsageError("--nvfp4-trace-ctas must be 1 to 9999")
    if trace is not None and (config.invocation_params.dir / trace).is_file():
        raise pytest.UsageError(f"--nvfp4-trace {trace} is a file: name a folder")
    name = config.getoption("--nvfp4-device")
    if name not in ("auto", "local", "sim", "none"):
        from pytest_nvfp4.device.select import known_names

        if name not in known_names():
            raise pytest.UsageError(f"--nvfp4-device {name!r}: no such device; known are {', '.join(known_names())}")
    if not 0 <= config.getoption("--nvfp4-schedules") <= 10_000:
        raise pytest.UsageError("--nvfp4-schedules must be 0 to 10000")
    schedule = config.getoption("--nvfp4-schedule")
    if schedule is not None and not re.fullmatch(r"eager|lazy|late(-\d{1,2})+|\d{1,18}", schedule):
        raise pytest.UsageError(
            f"--nvfp4-schedule {schedule!r} must be eager, lazy, late-WARP or a seed (a whole number)"
        )
    families = tuple(config.getoption("--nvfp4-family"))
    if families:
        from pytest_nvfp4.numerics.families import FAMILIES

        for family in families:
            if family not in FAMILIES:
                raise pytest.UsageError(f"--nvfp4-family {family!r}: known are {', '.join(FAMILIES)}")
    wanted = remote.read(config)
    return DeviceOptions(
        device=name if wanted is None else wanted.name,
        remote=wanted,
        require=bool(config.getoption("--nvfp4-require-device")),
        families=families,
        rounds=rounds,
        threshold=_threshold(config),
        timeout_s=timeout,
        fresh=bool(config.getoption("--nvfp4-fresh")),
        trace=None if trace is None else (config.invocation_params.dir / trace).resolve(),
        trace_ctas=config.getoption("--nvfp4-trace-ctas"),
        races=config.getoption("--nvfp4-races"),
        schedules=config.getoption("--nvfp4-schedules"),
        schedule=schedule,
        race_warnings=bool(config.getoption("--nvfp4-race-warnings")),
    )


def _threshold(config: pytest.Config) -> float:
    given = config.getoption("--nvfp4-threshold")
    where = "ini nvfp4_threshold =" if given is None else "--nvfp4-threshold"
    value = config.getini("nvfp4_threshold") if given is None else given
    try:
        percent = float(value)
    except ValueError as error:
        raise pytest.UsageError(f"{where} {value!r} is not a number of percent") from error
    if not 0 < percent < 100:
        raise pytest.UsageError(f"{where} {percent:g} must be more than 0 and less than 100 percent")
    return percent / 100


class Devices:
    """The device of a run, chosen when the first check asks for it."""

    def __init__(self, config: pytest.Config, options: DeviceOptions) -> None:
        self._config = config
        self.options = options
        self.rows: list[Row] = []
        """What benchmark checks measured."""
        self.recalled = 0
        """Cases that were not simulated again."""
        self.remote: RemoteRun | None = None
        """The remote of the run, where one was asked for."""
        if options.remote is not None:
            self.remote = remote.RemoteRun(config, options.remote)
            config.pluginmanager.register(self.remote, "nvfp4-remote")
        self._verifiers: dict[str, Verifier] = {}
        self._verified: dict[tuple[str, str, str], dict[Case, Verification]] = {}
        self._simulated: dict[tuple[str, str, str], dict[Case, Simulated]] = {}

    @cached_property
    def folder(self) -> Path:
        """A folder for the files of jobs; it is removed when the run ends."""
        folder = Path(tempfile.mkdtemp(prefix="pytest-nvfp4-"))
        self._config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        return folder

    @cached_property
    def device(self) -> Device | str:
        """The device, or why there is none."""
        from pytest_nvfp4.device.base import DeviceUnavailableError
        from pytest_nvfp4.device.select import select

        if self.remote is not None:
            return self.remote.device
        try:
            return select(self.options.device, folder=self.folder, worker=self._worker)
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
        from pytest_nvfp4.device.base import DeviceUnavailableError

        device = self.any_arch()
        try:
            unsupported = device.unsupported(arch)
        except DeviceUnavailableError as error:
            unsupported = str(error)
        if unsupported is not None and self.options.device == "auto" and device is not self.simulator:
            device, unsupported = self.simulator, self.simulator.unsupported(arch)
        if unsupported is not None:
            self.lack(unsupported)
        return device

    @cached_property
    def simulator(self) -> Device:
        """The simulator, which is there on every machine."""
        from pytest_nvfp4.device.sim import SimDevice

        return self.device if getattr(self.device, "name", None) == "sim" else SimDevice()  # type: ignore[return-value]

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
        """Where there is a GPU that may be timed, give pytest-benchmark the storage of its kind and our hooks."""
        from pytest_nvfp4.device.gpus import gpu_names

        names = gpu_names() if self.options.device in ("auto", "local") else []
        if self.options.remote is not None:
            names = [f"NVIDIA {self.options.remote.options.gpu}"]
        if not names or not self._config.pluginmanager.hasplugin("benchmark"):
            return
        from pytest_nvfp4.bench.storage import use_gpu_storage

        use_gpu_storage(self._config, names[0])
        self._config.pluginmanager.register(self.hooks, "nvfp4-benchmark")

    def show(self, terminal: Any) -> None:
        """Write the table of what was measured, and name the checks that no device was there for."""
        if self.rows:
            from pytest_nvfp4.bench.table import render

            terminal.write_sep("-", "nvfp4: device times")
            terminal.write_line(render(self.rows, width=terminal._tw.fullwidth).strip("\n"))
        if self.remote is not None:
            self.remote.show(terminal)
        _show_lines(terminal, "nvfp4: coverage (simulated)", COVERAGE_LINE)
        if self.recalled:
            cases = "1 case is" if self.recalled == 1 else f"{self.recalled} cases are"
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
        self, kernel: KernelSpec, wanted: Sequence[Case], *, others: Sequence[Case], base: Path
    ) -> list[tuple[Case, Verification]]:
        """The verdicts of some cases of a kernel, each with the verification it is part of.

        Args:
            kernel: The kernel.
            wanted: The cases whose verdicts are asked for.
            others: Further cases that will be asked for in this process: they run in the same job.
            base: The folder the kernel's files are relative to.
        """
        known = self._verified.setdefault((kernel.sha256, kernel.arch, " ".join(kernel.compile_options)), {})
        # The order of a remote's job is that of its items, whichever of them asks first: it was sent ahead so.
        first, then = (others, wanted) if self.remote is not None else (wanted, others)
        lacking = [case for case in dict.fromkeys([*first, *then]) if case not in known]
        if any(case in lacking for case in wanted):
            if self.for_arch(kernel.arch).name == "sim":
                lacking = self._recall(kernel, lacking, known)
            if lacking:
                done = self.verifier(kernel.arch).verify(kernel, lacking, base=base)
                known.update(dict.fromkeys(lacking, done))
                self._keep(kernel, done)
        return [(case, known[case]) for case in wanted]

    @cached_property
    def _kept(self) -> KeptVerdicts:
        from pytest_nvfp4.device.kept import KeptVerdicts
        from pytest_nvfp4.plugin.state import RUN
        from pytest_nvfp4.toolchain.cache import TraceCache

        kept = KeptVerdicts(TraceCache(self._config.stash[RUN].options.cache).root)
        self._config.add_cleanup(kept.prune)
        return kept

    def _recall(self, kernel: KernelSpec, cases: list[Case], known: dict[Case, Verification]) -> list[Case]:
        """Take from the cache what is known to pass on the simulator; the cases that must be run."""
        from pytest_nvfp4.device.verdict import CaseVerdict
        from pytest_nvfp4.device.verify import Verification

        if self.options.fresh:
            return cases
        info = self.simulator.describe()
        for case in cases:
            if self._kept.has(kernel, case):
                known[case] = Verification((CaseVerdict(case, "passed"),), info, 0, "", "")
                self.recalled += 1
        return [case for case in cases if case not in known]

    def _keep(self, kernel: KernelSpec, done: Verification) -> None:
        if done.device is None or not done.device.simulated:
            return
        for verdict in done.verdicts:
            if verdict.status == "passed" and not verdict.findings:
                self._kept.add(kernel, verdict.case)

    def simulate(self, kernel: KernelSpec, wanted: Case, *, others: Sequence[Case], base: Path) -> Simulated:
        """What a kernel does on a case, run once in the simulator, or known from an earlier run of the same.

        Where the simulator does not know the architecture the caller is skipped, or fails with
        ``--nvfp4-require-device``.

        Args:
            kernel: The kernel.
            wanted: The case.
            others: Further cases that will be asked for in this process: they run in the same job.
            base: The folder the kernel's files are relative to.
        """
        if (unsupported := self.simulator.unsupported(kernel.arch)) is not None:
            self.lack(unsupported)
        key = (kernel.sha256, kernel.arch, " ".join(kernel.compile_options))
        known = self._simulated.setdefault(key, {})
        if wanted in known:
            return known[wanted]
        if not self.shared:
            self._simulate(kernel, [wanted, *others], base=base, known=known)
            return known[wanted]
        # Of two test processes that come to the same case, the second waits and is told.
        from filelock import FileLock

        with FileLock(self._kept_simulations.lock(kernel, wanted)):
            self._simulate(kernel, [wanted, *others], base=base, known=known)
        return known[wanted]

    def _simulate(self, kernel: KernelSpec, cases: Sequence[Case], *, base: Path, known: dict[Case, Simulated]) -> None:
        from pytest_nvfp4.device.simulate import simulate

        kept = self._kept_simulations
        lacking = [case for case in dict.fromkeys(cases) if case not in known]
        if not self.options.fresh and self.options.trace is None:
            for case in lacking:
                if (found := kept.get(kernel, case)) is not None:
                    known[case] = found
                    self.recalled += 1
            lacking = [case for case in lacking if case not in known]
        if not lacking:
            return
        done = simulate(
            self.simulator,
            kernel,
            lacking,
            folder=self.folder / "jobs",
            base=base,
            deadline_s=self.options.timeout_s,
            trace_ctas=self.options.trace_ctas if self.options.trace is not None else 0,
        )
        for one in done:
            known[one.case] = one
            kept.add(kernel, one)

    def races(self, kernel: KernelSpec, case: Case, schedule: str, *, base: Path) -> Simulated | None:
        """A case under a schedule, watched for races; None where that is known to pass.

        Where the simulator does not know the architecture the caller is skipped, as by ``simulate``.
        """
        from pytest_nvfp4.device.kept import KeptVerdicts
        from pytest_nvfp4.device.simulate import simulate
        from pytest_nvfp4.plugin.state import RUN
        from pytest_nvfp4.toolchain.cache import TraceCache

        if (unsupported := self.simulator.unsupported(kernel.arch)) is not None:
            self.lack(unsupported)
        warnings = self.options.race_warnings
        part = f"races-{schedule}" + ("-warnings" if warnings else "")
        kept = KeptVerdicts(TraceCache(self._config.stash[RUN].options.cache).root / part)
        if not self.options.fresh and kept.has(kernel, case):
            self.recalled += 1
            return None
        (done,) = simulate(
            self.simulator,
            kernel,
            [case],
            folder=self.folder / "jobs",
            base=base,
            deadline_s=self.options.timeout_s,
            outputs=True,
            races=True,
            race_warnings=warnings,
            schedule=schedule,
        )
        if done.status == "passed" and not done.findings:
            kept.add(kernel, case)
            kept.prune()
        return done

    @cached_property
    def _kept_simulations(self) -> KeptSimulations:
        from pytest_nvfp4.device.kept import KeptSimulations
        from pytest_nvfp4.plugin.state import RUN
        from pytest_nvfp4.toolchain.cache import TraceCache

        kept = KeptSimulations(TraceCache(self._config.stash[RUN].options.cache).root)
        self._config.add_cleanup(kept.prune)
        return kept


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
