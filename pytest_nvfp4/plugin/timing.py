"""Time a kernel for a benchmark check, and judge its times against their baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.plugin.failure import CheckFailure

if TYPE_CHECKING:
    from pytest_nvfp4.bench.provenance import Provenance
    from pytest_nvfp4.bench.regression import Policy, ShapeRounds, ShapeVerdict
    from pytest_nvfp4.bench.table import Row
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.job import Job, JobCase, KernelSpec
    from pytest_nvfp4.device.result import DeviceInfo, Measurement, Result
    from pytest_nvfp4.device.verdict import CaseVerdict
    from pytest_nvfp4.problem import Problem

THRESHOLD_MARK = "nvfp4_threshold"
"""Marker that sets the least slowdown that fails a benchmark, in percent: ``@pytest.mark.nvfp4_threshold(2)``."""


class TimingWarning(pytest.PytestWarning):
    """Something about a measurement that does not fail it."""

    __module__ = "pytest_nvfp4.plugin"


@dataclass(frozen=True, slots=True)
class Timed:
    """A measurement that holds, with the device it was made on."""

    measurement: Measurement
    device: DeviceInfo
    warnings: tuple[str, ...]


class Stopwatch:
    """Times kernels. On a device of this machine, all problems of a kernel that the run asks for share a process.

    Args:
        folder: Folder for the files of jobs.
        rounds: Timed rounds of each problem.
        timeout_s: Seconds that one process may take.
    """

    def __init__(self, *, folder: Path, rounds: int, timeout_s: float) -> None:
        self._folder = folder
        self._rounds = rounds
        self._timeout_s = timeout_s
        self._asked: set[tuple[KernelSpec, Problem]] = set()
        self._measured: dict[tuple[KernelSpec, Problem], tuple[Result, CaseVerdict]] = {}

    def time(
        self, device: Device, kernel: KernelSpec, problem: Problem, *, others: Sequence[Problem], base: Path
    ) -> tuple[Result, CaseVerdict]:
        """The times of a kernel on one problem, and whether its answers held. A second question measures again.

        Args:
            device: The device.
            kernel: The kernel.
            problem: The problem.
            others: Problems that will be asked for later, this one among them or not. A remote has been sent them all,
                and is asked for this one only.
            base: The folder of the user's that the kernel's files are relative to.
        """
        from pytest_nvfp4.device.base import SendsAhead
        from pytest_nvfp4.device.verify import measure, measure_each

        more: dict[str, Any] = {"rounds": self._rounds, "base": base, "deadline_s": self._timeout_s}
        if isinstance(device, SendsAhead):
            result, (verdict,) = measure(device, kernel, [_case(problem)], folder=self._folder, **more)
            return result, verdict
        if (kernel, problem) not in self._measured:
            fresh = (one for one in others if (kernel, one) not in self._asked)
            wanted = list(dict.fromkeys((problem, *fresh)))
            self._asked |= {(kernel, one) for one in wanted}
            found = measure_each(device, kernel, [_case(one) for one in wanted], folder=self._folder, **more)
            self._measured |= {(kernel, one): result for one, result in zip(wanted, found, strict=True)}
        return self._measured.pop((kernel, problem))


def checked(result: Result, verdict: CaseVerdict, problem: Problem, *, device: Device, file: Path) -> Timed:
    """The times, if they hold.

    Raises:
        CheckFailure: an answer was wrong, the kernel did not run to its end, or the times cannot be true.
    """
    from pytest_nvfp4.bench.judge import timing_findings
    from pytest_nvfp4.plugin.remote import remote_trouble

    if (trouble := remote_trouble(result)) is not None:
        raise CheckFailure(f"not run on {device.name}: {trouble}", file=str(file))
    if verdict.status == "unavailable":
        pytest.skip(f"not run: {result.reason}")
    if verdict.status != "passed":
        lines = [*map(str, verdict.findings[:4]), f"{verdict.status} while it was timed on {problem.name}"]
        place = next((one for one in verdict.findings if one.file), None)
        raise CheckFailure(
            "\n".join(lines), file=place.file if place and place.file else str(file), line=place.line if place else None
        )
    if result.device is None or not result.measurements:
        raise CheckFailure(f"the device returned no times for {problem.name}", file=str(file))
    measurement = result.measurements[0]
    findings = timing_findings(measurement, problem, result.device)
    if wrong := [str(one) for one in findings if one.severity == "error"]:
        raise CheckFailure("the times cannot be true:\n" + "\n".join(f"  {one}" for one in wrong), file=str(file))
    return Timed(measurement, result.device, tuple(one.message for one in findings))


def job_of(kernel: KernelSpec, problem: Problem, *, rounds: int, timeout_s: float, row_key: int) -> Job:
    """The job that ``Stopwatch`` asks a remote to do; those with the same ``row_key`` may share a process there."""
    from pytest_nvfp4.device.verify import benchmark_job

    return benchmark_job(kernel, [_case(problem)], rounds=rounds, deadline_s=timeout_s, row_key=row_key)


def _case(problem: Problem) -> JobCase:
    from pytest_nvfp4.device.job import JobCase, ProblemSpec

    return JobCase(problem=ProblemSpec.of(problem), family="gpumode")


def taken(config: pytest.Config) -> bool:
    """Whether pytest-benchmark takes times in this run: see ``wanted``."""
    session = getattr(config, "_benchmarksession", None)
    return session is not None and not session.disabled


_PAIRS: pytest.StashKey[dict[str, list[ShapeRounds]]] = pytest.StashKey()


class Comparison:
    """Compares times with the stored baseline of a test, and those of all problems of its kernel together.

    A kernel's checks share the chance of a false alarm (``Policy.alpha``): each shape's verdict and the one on the
    geometric mean get their part of it.

    Args:
        item: The check.
        siblings: All benchmark checks of the same kernel and configuration that this process runs, in their order.
        threshold: Least change that matters, as a share, unless a marker says otherwise.
    """

    def __init__(self, item: pytest.Item, *, siblings: Sequence[pytest.Item], threshold: float) -> None:
        self._item = item
        self._siblings = siblings
        self._threshold = threshold
        self._pairs = item.config.stash.setdefault(_PAIRS, {}).setdefault(siblings[0].nodeid, [])

    def _least(self) -> float:
        """The least change that matters, as a share: the marker's, else the setting's."""
        mark = self._item.get_closest_marker(THRESHOLD_MARK)
        if mark is None:
            return self._threshold
        try:
            (percent,) = mark.args
            share = float(percent) / 100
        except (TypeError, ValueError) as error:
            raise CheckFailure(f"the marker {THRESHOLD_MARK}{mark.args} takes one number, in percent") from error
        if not 0 < share < 1:
            raise CheckFailure(f"the marker {THRESHOLD_MARK}({percent}) must be more than 0 and less than 100 percent")
        return share

    def verdict(self, timed: Timed, provenance: Provenance, name: str) -> tuple[ShapeVerdict | None, str]:
        """The verdict against the baseline, or why there is none.

        Raises:
            CheckFailure: there is a baseline, and it cannot be compared with.
        """
        from pytest_nvfp4.bench.baseline import BaselineError, against, baseline_rounds
        from pytest_nvfp4.bench.regression import compare

        try:
            baseline = baseline_rounds(self._item.config, self._item.nodeid)
            if baseline is None:
                return None, self._no_baseline()
            pair = against(
                baseline,
                rounds_us=timed.measurement.device_us,
                provenance=provenance,
                name=name,
                threshold=self._least(),
            )
        except BaselineError as error:
            raise CheckFailure(str(error)) from error
        self._pairs.append(pair.rounds)
        (found,) = compare([pair.rounds], self._policy(verdicts=len(self._siblings) + (len(self._siblings) > 1))).shapes
        return found, "; ".join(pair.notes)

    def _no_baseline(self) -> str:
        """Why a check has nothing to be compared with; empty where nobody asked."""
        if not getattr(self._item.config.option, "benchmark_compare", None):
            return ""
        session = self._item.config.pluginmanager.get_plugin("pytest-benchmark")
        if not getattr(session, "compared_mapping", None):
            return "no baseline: no stored file was found that could be read"
        return "no baseline of this check"

    def geomean(self) -> ShapeVerdict | None:
        """The verdict on all problems of the kernel together, at the last of their checks; None elsewhere.

        There is none either where a problem has no baseline, or was not measured.
        """
        from pytest_nvfp4.bench.regression import compare

        whole = len(self._siblings) > 1 and len(self._pairs) == len(self._siblings)
        return compare(self._pairs, self._policy()).geomean if whole else None

    def _policy(self, *, verdicts: int = 1) -> Policy:
        from pytest_nvfp4.bench.regression import Policy

        policy = Policy(threshold=self._threshold)
        return replace(policy, alpha=policy.alpha / verdicts)


def replay(benchmark: Any, timed: Timed, problem: Problem, kernel: KernelSpec) -> Provenance:
    """Put the times into pytest-benchmark."""
    from pytest_nvfp4.bench.replay import BenchmarkReplay

    return BenchmarkReplay(benchmark).replay(
        timed.measurement, device=timed.device, problem=problem, kernel_sha256=kernel.sha256
    )


def wanted(benchmark: Any) -> bool:
    """Whether pytest-benchmark takes times: not with ``--benchmark-disable``, not under xdist."""
    return not benchmark.disabled


def row(name: str, problem: Problem, timed: Timed, verdict: ShapeVerdict | None, note: str) -> Row:
    """A measurement as a row of the table at the end of a run."""
    from pytest_nvfp4.bench.table import Row

    return Row(name, problem, timed.measurement, timed.device, verdict, note)
