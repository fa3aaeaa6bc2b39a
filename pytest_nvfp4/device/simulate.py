"""Run a kernel once on each case in the simulator, and say what each call did."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.device.base import Device
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, Simulating
from pytest_nvfp4.device.result import DeviceInfo, Result, SimulatedCall, Status
from pytest_nvfp4.finding import Finding

_ALONE = frozenset({"error", "timeout", "crashed"})


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """One case, run once.

    Attributes:
        case: The case.
        status: How it went; for a run without outputs nothing is said of their values.
        findings: What was found, errors and notes.
        call: What the call did, as far as it came; None where it did not come to a launch.
        device: What was simulated; None where that could not be asked.
        stdout, stderr: The end of what the kernel's host code wrote.
        trace: The timeline as JSON text, where it was asked for.
    """

    case: JobCase
    status: Status
    findings: tuple[Finding, ...]
    call: SimulatedCall | None
    device: DeviceInfo | None = None
    stdout: str = ""
    stderr: str = ""
    trace: bytes | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


def simulate(
    device: Device,
    kernel: KernelSpec,
    cases: Sequence[JobCase],
    *,
    folder: Path,
    base: Path | None = None,
    deadline_s: float = 600.0,
    outputs: bool = False,
    trace_ctas: int = 0,
    races: bool = False,
    race_warnings: bool = False,
    schedule: str = "eager",
) -> list[SimulationResult]:
    """What a kernel does on every case, in their order; a case that ends the process badly spoils no other.

    Args:
        device: The device; one that is not a simulator answers ``unavailable``.
        kernel: The kernel.
        cases: The cases.
        folder: Where the files of jobs go; each is removed.
        base: The folder its files are relative to.
        deadline_s: Seconds a job may take.
        outputs: Judge the outputs too.
        trace_ctas: CTAs of each launch whose timeline is kept; 0 for none.
        races: Look for races.
        race_warnings: Tell also of what official kernels leave out.
        schedule: ``eager``, ``lazy``, or the seed of a random schedule.
    """
    how = Simulating(
        outputs=outputs, trace_ctas=trace_ctas, races=races, race_warnings=race_warnings, schedule=schedule
    )
    done = _run(device, kernel, cases, folder=folder, base=base, deadline_s=deadline_s, how=how)
    if len(cases) > 1 and any(one.status in _ALONE for one in done):
        done = [
            _run(device, kernel, [case], folder=folder, base=base, deadline_s=deadline_s, how=how)[0] for case in cases
        ]
    return done


def _run(
    device: Device,
    kernel: KernelSpec,
    cases: Sequence[JobCase],
    *,
    folder: Path,
    base: Path | None,
    deadline_s: float,
    how: Simulating,
) -> list[SimulationResult]:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="job-") as name:
        place = Path(name)
        job = Job(
            id=place.name,
            action="simulate",
            kernel=kernel,
            cases=tuple(cases),
            simulating=how,
            deadline_s=deadline_s,
        )
        result = device.run(job, folder=place, base=base)
        if how.outputs:
            from pytest_nvfp4.device.verdict import Judge

            judged = Judge().judge(job, result, folder=place)
            verdicts = [(verdict.status, tuple(verdict.findings)) for verdict in judged]
        else:
            verdicts = [_seen(result, index) for index in range(len(cases))]
        return [
            _simulated(case, status, findings, result=result, index=index, folder=place)
            for index, (case, (status, findings)) in enumerate(zip(cases, verdicts, strict=True))
        ]


def _seen(result: Result, index: int) -> tuple[Status, tuple[Finding, ...]]:
    """The status of a case whose outputs were not asked for."""
    if result.status != "passed":
        return result.status, result.findings
    findings = [finding for report in result.cases if report.case == index for finding in report.findings]
    for report in result.cases:
        if report.case == index and report.inputs_before != report.inputs_after:
            findings.append(Finding(kind="inputs", message="the call changed its inputs (A, B or scale factors)"))
    bad = any(finding.severity == "error" for finding in findings)
    return "failed" if bad else "passed", tuple(findings)


def _simulated(
    case: JobCase, status: Status, findings: tuple[Finding, ...], *, result: Result, index: int, folder: Path
) -> SimulationResult:
    call = next((call for call in result.simulated if call.case == index), None)
    trace = None
    if call is not None and call.trace is not None:
        try:
            trace = call.trace.read(folder)
        except (ValueError, OSError) as error:
            findings += (Finding(kind="internal", message=f"the timeline cannot be read: {error}", severity="warning"),)
        call = call.model_copy(update={"trace": None})
    return SimulationResult(case, status, findings, call, result.device, result.stdout, result.stderr, trace)
