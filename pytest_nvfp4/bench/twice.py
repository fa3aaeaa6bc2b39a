"""Times of a kernel outside pytest: measured in two processes, with all conditions that ``benchmark`` holds them to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.bench.judge import agreement_findings, timing_findings
from pytest_nvfp4.bench.launches import launch_findings
from pytest_nvfp4.device.base import Device
from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.result import Measurement, Result
from pytest_nvfp4.device.verdict import CaseVerdict
from pytest_nvfp4.device.verify import in_two_processes, measure
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.problem import Problem

FAMILY = "gpumode"
"""Family of the inputs of times: those of GPU MODE."""


@dataclass(frozen=True, slots=True)
class TimedProblem:
    """A problem that was timed.

    Attributes:
        problem: The problem.
        verdict: Whether answers and times are right; its findings have the warnings too.
        measurement: The times of the first process; None if the verdict is not ``passed``.
    """

    problem: Problem
    verdict: CaseVerdict
    measurement: Measurement | None


def cases_of(problems: Sequence[Problem]) -> list[JobCase]:
    """Return the cases of problems."""
    return [JobCase(problem=ProblemSpec.of(problem), family=FAMILY) for problem in problems]


def measure_twice(
    device: Device,
    kernel: KernelSpec,
    problems: Sequence[Problem],
    *,
    folder: Path,
    rounds: int,
    base: Path,
    deadline_s: float,
) -> tuple[Result, list[TimedProblem]]:
    """Time a kernel on problems in two processes, and judge outputs, times and launches.

    The second process only runs if the first one is right.

    Returns:
        The result of the first process, and the problems in order.
    """
    cases = cases_of(problems)
    first, second = in_two_processes(rounds)
    result, verdicts = measure(device, kernel, cases, folder=folder, rounds=first, base=base, deadline_s=deadline_s)
    repeated, others = result, verdicts
    if all(verdict.status == "passed" for verdict in verdicts):
        repeated, others = measure(
            device, kernel, cases, folder=folder, rounds=second, base=base, deadline_s=deadline_s
        )
    times = {measurement.case: measurement for measurement in result.measurements}
    again = {measurement.case: measurement for measurement in repeated.measurements}
    timed = []
    for index, (problem, verdict) in enumerate(zip(problems, verdicts, strict=True)):
        if verdict.status == "passed" and others[index].status != "passed":
            verdict.status = others[index].status
            verdict.findings += others[index].findings
        if verdict.status == "passed" and (index not in times or index not in again):
            verdict.status = "crashed"
            verdict.findings.append(Finding("internal", f"the device returned no times for {problem.name}"))
        if verdict.status == "passed":
            found = timing_findings(times[index], problem, result.device)
            found += agreement_findings(times[index], again[index], problem)
            found += launch_findings(times[index], again[index], problem)
            verdict.findings += found
            if any(finding.severity == "error" for finding in found):
                verdict.status = "cheated"
        timed.append(TimedProblem(problem, verdict, times[index] if verdict.status == "passed" else None))
    return result, timed
