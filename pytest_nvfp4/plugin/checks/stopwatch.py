"""Time kernels for ``benchmark``: which problems share a process, what is measured again, and which times are valid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_nvfp4.plugin.checks.kernel import job_case
from pytest_nvfp4.plugin.failure import CheckFailure, failure_at
from pytest_nvfp4.plugin.remote import remote_error
from pytest_nvfp4.problem import Problem

if TYPE_CHECKING:
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.job import KernelSpec
    from pytest_nvfp4.device.result import DeviceInfo, Measurement, Result
    from pytest_nvfp4.device.verdict import CaseVerdict

_FINDINGS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Timed:
    """A valid measurement, and the device it was made on."""

    measurement: Measurement
    device: DeviceInfo
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """The result and verdict of a timed kernel, and those of a second process; None if the first one failed."""

    result: Result
    verdict: CaseVerdict
    second: tuple[Result, CaseVerdict] | None = None


class Stopwatch:
    """Times kernels. On a device of this machine, the problems of a kernel that the run requests share a process.

    Args:
        folder: Folder for the files of jobs.
        rounds: Timed rounds of each problem.
        timeout_s: Timeout of a process in seconds.
    """

    def __init__(self, *, folder: Path, rounds: int, timeout_s: float) -> None:
        self._folder = folder
        self._rounds = rounds
        self._timeout_s = timeout_s
        self._requested: set[tuple[KernelSpec, Problem]] = set()
        self._measured: dict[tuple[KernelSpec, Problem], Timing] = {}

    def time(
        self, device: Device, kernel: KernelSpec, problem: Problem, *, others: Sequence[Problem], base: Path
    ) -> Timing:
        """Return the times of a kernel on one problem, and whether its answers were right.

        The kernel is timed in two processes; its launches are counted in the second one (see ``in_two_processes``). A
        second request for the same problem measures again.

        Args:
            device: The device.
            kernel: The kernel.
            problem: The problem.
            others: Problems that will be requested later; they may contain this one. All of them have been sent to a
                remote before, so only this one is requested from it.
            base: The user's folder that the kernel's files are relative to.
        """
        from pytest_nvfp4.device.base import SendsAhead
        from pytest_nvfp4.device.verify import in_two_processes, measure, measure_each

        settings: dict[str, Any] = {"folder": self._folder, "base": base, "deadline_s": self._timeout_s}
        first, second = in_two_processes(self._rounds)
        if isinstance(device, SendsAhead):
            case = job_case(problem)
            result, (verdict,) = measure(device, kernel, [case], rounds=first, **settings)
            if verdict.status != "passed":
                return Timing(result, verdict)
            again, (other,) = measure(device, kernel, [case], rounds=second, **settings)
            return Timing(result, verdict, (again, other))
        if (kernel, problem) not in self._measured:
            new = (other for other in others if (kernel, other) not in self._requested)
            batch = list(dict.fromkeys((problem, *new)))
            self._requested |= {(kernel, member) for member in batch}
            cases = [job_case(member) for member in batch]
            results = measure_each(device, kernel, cases, rounds=first, **settings)
            repeated = measure_each(device, kernel, cases, rounds=second, **settings)
            for member, (result, verdict), both in zip(batch, results, repeated, strict=True):
                self._measured[kernel, member] = Timing(result, verdict, both)
        return self._measured.pop((kernel, problem))


def checked(
    timing: Timing, problem: Problem, *, device: Device, file: Path, not_run: Callable[[str], NoReturn]
) -> Timed:
    """Return the times if they are valid.

    Args:
        not_run: Skips or fails the calling test because its device timed nothing.

    Raises:
        CheckFailure: An answer was wrong, the kernel did not run to its end, the times are implausible, or those of two
            processes do not agree.
    """
    from pytest_nvfp4.bench.judge import agreement_findings, timing_findings
    from pytest_nvfp4.bench.launches import launch_findings

    result = timing.result
    if timing.verdict.status == "unavailable" and remote_error(result.findings) is None:
        not_run(result.reason)
    measurement = _measured(timing.result, timing.verdict, problem, device=device, file=file)
    assert timing.second is not None, "the first process passed"
    second = _measured(*timing.second, problem, device=device, file=file)
    findings = [
        *timing_findings(measurement, problem, result.device),
        *agreement_findings(measurement, second, problem),
        *launch_findings(measurement, second, problem),
    ]
    if wrong := [str(finding) for finding in findings if finding.severity == "error"]:
        raise CheckFailure("the times cannot be true:\n" + "\n".join(f"  {line}" for line in wrong), file=str(file))
    assert result.device is not None
    return Timed(measurement, result.device, tuple(finding.message for finding in findings))


def _measured(result: Result, verdict: CaseVerdict, problem: Problem, *, device: Device, file: Path) -> Measurement:
    """Return the times of one process. Raises CheckFailure if there are none, or an answer was wrong."""
    if (reason := remote_error(result.findings)) is not None:
        raise CheckFailure(f"not run on {device.name}: {reason}", file=str(file))
    if verdict.status != "passed":
        lines = [
            *map(str, verdict.findings[:_FINDINGS_SHOWN]),
            f"{verdict.status} while it was timed on {problem.name}",
        ]
        raise failure_at(lines, verdict.findings, kernel=file)
    if result.device is None or not result.measurements:
        raise CheckFailure(f"the device returned no times for {problem.name}", file=str(file))
    return result.measurements[0]
