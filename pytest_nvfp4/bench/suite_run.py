"""Runs of suites: every case on a device, with its times in comparable units."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pytest_nvfp4.bench.operators import METHOD, OperatorTask, OperatorTimes, RunProgram, time_operator
from pytest_nvfp4.bench.peaks import peaks_of
from pytest_nvfp4.bench.provenance import Provenance
from pytest_nvfp4.bench.roofline import columns, percentile
from pytest_nvfp4.bench.stored import StoredTimes
from pytest_nvfp4.bench.suite import Suite, SuiteCase, SuiteError
from pytest_nvfp4.bench.twice import TimedProblem, measure_twice
from pytest_nvfp4.contracts.registry import contract_named, contract_of, contracts
from pytest_nvfp4.device.base import Device
from pytest_nvfp4.device.job import KernelSpec
from pytest_nvfp4.device.result import DeviceInfo
from pytest_nvfp4.problem import GROUP_GEMM, ProblemError
from pytest_nvfp4.settings import Settings, SettingsError

CaseStatus = Literal["passed", "failed", "skipped", "unavailable"]
_STATUSES: dict[str, CaseStatus] = {"passed": "passed", "unavailable": "unavailable", "unsupported": "skipped"}


@dataclass(frozen=True, slots=True)
class Speed:
    """Times of a case.

    Attributes:
        p50_us, p10_us, p90_us, mean_us: Device time.
        gbps: Bytes over the median: of inputs and outputs, each once.
        tflops: Operations over the median.
        roofline_percent: The least time by published peaks over the median; None if the device's are not known.
        rounds, late: Timed rounds, and those whose time includes host time.
        l2: State of the L2 cache before each round.
        method: How it was measured.
        clock_mhz: SM clock under load; None if it was not read.
    """

    p50_us: float
    p10_us: float
    p90_us: float
    mean_us: float
    gbps: float
    tflops: float
    roofline_percent: float | None
    rounds: int
    late: int
    l2: str
    method: str
    clock_mhz: float | None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case of a suite.

    Attributes:
        nodeid: Its name, under which its rounds are stored.
        kernel: Path of the kernel as in the suite.
        contract: How it was called.
        on: Problem, or shape.
        dtype: Type of the elements.
        status: Its status.
        because: Why there are no times; of times, warnings.
        speed: Its times; None if it was not timed.
        device: Where it ran.
        stored: What pytest-benchmark stores; None without times.
    """

    nodeid: str
    kernel: str
    contract: str
    on: str
    dtype: str
    status: CaseStatus
    because: str = ""
    speed: Speed | None = None
    device: DeviceInfo | None = None
    stored: StoredTimes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a suite runs.

    Attributes:
        device: The device.
        run: Runs programs there; None if it cannot, with ``no_programs``.
        folder: Folder for files of jobs.
        settings: The settings, whose folder is that of the shipped suites' kernels.
        rounds: Timed rounds of each case.
        deadline_s: Timeout of a process.
        working: Called with the name of each case before it runs.
    """

    device: Device
    run: RunProgram | None
    folder: Path
    settings: Settings
    rounds: int
    deadline_s: float
    no_programs: str = ""
    working: Callable[[str], None] = lambda _: None

    def cases(self, suite: Suite, kernels: Sequence[Path]) -> Iterator[CaseResult]:
        """Run every case in order.

        Args:
            suite: The suite.
            kernels: Kernels for the cases that name none; the settings' own if there are none.

        Raises:
            SuiteError: A problem is not valid, or there is no kernel.
        """
        root = suite.file.parent if suite.file is not None else self.settings.root
        for case in suite.case:
            if case.contract == "operator":
                yield from self._operators(case, root)
                continue
            if case.kernel is None and not kernels:
                raise SuiteError(
                    f"the suite {suite.name} has a case without a kernel, and {self.settings.file or 'no settings'} "
                    "names none under GPU MODE's contract; give kernels as arguments"
                )
            for path in [root / case.kernel] if case.kernel is not None else kernels:
                yield from self._problems(case, path)

    def _nodeid(self, path: Path, part: str) -> str:
        root = self.settings.root
        shown = path.resolve()
        return f"{shown.relative_to(root).as_posix() if shown.is_relative_to(root) else path}::{part}"

    def _why_not(self, path: Path, arch: str) -> tuple[CaseStatus, str] | None:
        """Return why a kernel cannot be timed; None if it can."""
        if not path.is_file():
            return "unavailable", f"{path}: no such file"
        if self.device.describe().simulated:
            return "unavailable", "the simulator has no clock; select a GPU (--device local, or a remote)"
        if (why := self.device.unsupported(arch)) is not None:
            return "skipped", why
        return None

    def _problems(self, case: SuiteCase, path: Path) -> Iterator[CaseResult]:
        try:
            own = self.settings.for_kernel(path)[0]
            # The problems are those of GPU MODE also where the kernel has a contract of the user's own, and is skipped.
            contract = None if own.own_contract else own.contract
            names, foreign = _of_contract(case.problems or (), contract or GROUP_GEMM)
            for name in foreign:
                made_of = self._case(case, path, name, f"benchmark[{name}]", "nvfp4")
                yield replace(made_of, because=f"{contract or GROUP_GEMM} has no problem {name}")
            if foreign and not names:
                return
            named = self.settings.resolve_problems(names, contract=contract)
            problems = named or contract_named(contract or GROUP_GEMM).benchmarks
            for problem in problems:
                contract_of(problem).require(problem)
        except (SettingsError, ProblemError) as error:
            raise SuiteError(str(error)) from error
        made = [self._case(case, path, problem.name, f"benchmark[{problem.name}]", "nvfp4") for problem in problems]
        why = self._why_not(path, own.arch)
        if why is None and own.entry is not None:
            why = "skipped", "it has an entry in its settings, and is not called under GPU MODE's contract"
        if why is None:
            try:
                spec, base = KernelSpec.from_files(path, roots=(self.settings.root,), **own.of_job)
            except (OSError, SyntaxError, UnicodeDecodeError) as error:
                why = "failed", f"{path}: cannot be read: {error}"
        if why is not None:
            yield from (replace(one, status=why[0], because=why[1]) for one in made)
            return
        self.working(made[0].nodeid)
        result, timed = measure_twice(
            self.device,
            spec,
            problems,
            folder=self.folder,
            rounds=self.rounds,
            base=base,
            deadline_s=self.deadline_s,
        )
        for one, of_problem in zip(made, timed, strict=True):
            yield self._timed_problem(one, of_problem, result.device, spec.sha256)

    def _timed_problem(
        self, made: CaseResult, timed: TimedProblem, device: DeviceInfo | None, sha256: str
    ) -> CaseResult:
        because = "; ".join(str(finding) for finding in timed.verdict.findings)
        measurement = timed.measurement
        if measurement is None or device is None:
            status = _STATUSES.get(timed.verdict.status, "failed")
            return replace(
                made, status="failed" if status == "passed" else status, because=because or timed.verdict.status
            )
        derived = columns(measurement, timed.problem, device)
        provenance = Provenance.of(measurement, device=device, problem=timed.problem, kernel_sha256=sha256)
        speed = Speed(
            p50_us=derived.us,
            p10_us=derived.p10_us,
            p90_us=derived.p90_us,
            mean_us=statistics.fmean(measurement.device_us),
            gbps=derived.gbps,
            tflops=derived.tflops,
            roofline_percent=derived.percent,
            rounds=len(measurement.device_us),
            late=measurement.late_rounds,
            l2=measurement.l2,
            method=measurement.method,
            clock_mhz=provenance.clock_mhz,
        )
        stored = StoredTimes(made.nodeid, measurement.device_us, provenance.model_dump(mode="json"))
        return replace(made, status="passed", because=because, speed=speed, device=device, stored=stored)

    def _operators(self, case: SuiteCase, root: Path) -> Iterator[CaseResult]:
        path = root / (case.kernel or "")
        why = self._why_not(path, self.settings.for_kernel(path)[0].arch)
        if why is None and self.run is None:
            why = "unavailable", self.no_programs
        for dtype in case.dtypes:
            for rows, columns_of in case.matrices:
                on = f"{rows}x{columns_of}"
                made = self._case(case, path, on, f"{case.call}[{dtype}-{on}]", dtype)
                if why is not None or self.run is None:
                    status, because = why or ("unavailable", self.no_programs)
                    yield replace(made, status=status, because=because)
                    continue
                self.working(made.nodeid)
                task = OperatorTask(
                    call=case.call or "",
                    reference=case.reference or "",
                    tolerance=case.tolerance,
                    rows=rows,
                    columns=columns_of,
                    dtype=dtype,
                    rounds=self.rounds,
                )
                times = time_operator(self.run, task, path.read_bytes(), deadline_s=self.deadline_s)
                yield self._timed_operator(made, times, operations=case.operations * rows * columns_of)

    def _timed_operator(self, made: CaseResult, times: OperatorTimes, *, operations: float) -> CaseResult:
        if times.status != "passed" or times.device is None:
            status: CaseStatus = "unavailable" if times.status == "unavailable" else "failed"
            return replace(made, status=status, because=times.because, device=times.device)
        median = statistics.median(times.device_us)
        peaks = peaks_of(times.device.name)
        percent = None if peaks is None else 100 * times.bytes / peaks.memory.per_second * 1e6 / median
        loaded = times.clocks_mhz[1:] or times.clocks_mhz
        speed = Speed(
            p50_us=median,
            p10_us=percentile(times.device_us, 0.1),
            p90_us=percentile(times.device_us, 0.9),
            mean_us=statistics.fmean(times.device_us),
            gbps=times.bytes / median / 1e3,
            tflops=operations / median / 1e6,
            roofline_percent=percent,
            rounds=len(times.device_us),
            late=times.late,
            l2="cold",
            method=METHOD,
            clock_mhz=statistics.median(loaded) if loaded else None,
        )
        because = ""
        if percent is not None and percent > 100 / 0.9:
            because = "the times cannot be true: they are below what the memory bandwidth of the device allows"
            return replace(made, status="failed", because=because, device=times.device)
        extra = {
            "operator": made.nodeid,
            "device": times.device.model_dump(mode="json"),
            "l2": "cold",
            "method": METHOD,
            "clocks_mhz": list(times.clocks_mhz),
        }
        stored = StoredTimes(made.nodeid, times.device_us, extra)
        return replace(made, status="passed", speed=speed, device=times.device, stored=stored)

    def _case(self, case: SuiteCase, path: Path, on: str, part: str, dtype: str) -> CaseResult:
        nodeid = self._nodeid(path, part)
        return CaseResult(nodeid, nodeid.partition("::")[0], case.contract, on, dtype, "skipped")


def _of_contract(names: Sequence[str], contract: str) -> tuple[list[str], list[str]]:
    """Return the names that are not only problems of other contracts of GPU MODE, and those that are."""
    own = {problem.name for of_set in contract_named(contract).sets.values() for problem in of_set}
    official = {problem.name for one in contracts().values() for of_set in one.sets.values() for problem in of_set}
    foreign = [name for name in names if name in official - own]
    return [name for name in names if name not in foreign], foreign


def contract_kernels(settings: Settings) -> list[Path]:
    """Return the kernel files under GPU MODE's contract that the tables of the settings match, in their order."""
    paths = [
        path
        for table in settings.tables
        if table.settings.entry is None
        for path in sorted(settings.root.glob(table.path))
        if path.is_file()
    ]
    return list(dict.fromkeys(paths))


def result_json(suite: Suite, results: Sequence[CaseResult]) -> Mapping[str, Any]:
    """Return the results as plain values, with the environment that measured them."""
    devices = [one.device for one in results if one.device is not None]
    return {
        "suite": suite.name,
        "device": devices[0].model_dump(mode="json") if devices else None,
        "cases": [
            {key: value for key, value in asdict(one).items() if key not in ("stored", "device")} for one in results
        ],
    }
