"""Two kernels timed in turns on one device: A B, B A, A B, ..., each turn in a process of its own.

Turns of one session share addresses of the machine, temperature and clocks, so that a slow drift affects both kernels
alike. All conditions of ``benchmark`` hold for both: outputs of timed calls are judged, launches are counted, times are
plausible, and the processes of a kernel agree.

**The interval** of the ratio is the wider one of two. One is that of `bench.regression` for interleaved rounds, at its
own error rate, in which a round of a turn A B and one of the next turn B A count as one. It takes rounds for
independent of their process, but two processes of one kernel differ by where their buffers lie. The other one is
therefore that of the turns: the logarithms of the ratios of their medians, less a constant drift, which has one sign in
turns A B and the other one in turns B A (Student's t, 95 %).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_nvfp4.bench.distributions import student_t_quantile
from pytest_nvfp4.bench.judge import agreement_findings, timing_findings
from pytest_nvfp4.bench.launches import launch_findings
from pytest_nvfp4.bench.regression import Policy, ShapeRounds, compare
from pytest_nvfp4.bench.twice import cases_of
from pytest_nvfp4.device.job import Job, KernelSpec
from pytest_nvfp4.device.remote.base import Batch, BatchResult
from pytest_nvfp4.device.remote.schedule import block_rounds
from pytest_nvfp4.device.result import Measurement, Result
from pytest_nvfp4.device.verdict import Judge
from pytest_nvfp4.device.verify import Rounds, benchmark_job, judged
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.problem import Problem

COUNTED = 3
"""Inputs on which launches are counted, in the last turn of each kernel."""
_CONFIDENCE = 0.95
_LEAST_TURNS = 4
"""Turns below which nothing is known of the difference between processes."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two kernels.

    Attributes:
        status: ``passed``, or why its times are worth nothing.
        findings: What was found, errors first; a passed kernel has warnings only.
        times: Its measurements by problem; empty unless it passed.
    """

    status: str
    findings: tuple[Finding, ...]
    times: tuple[Measurement, ...]


class Interval(NamedTuple):
    """The ratio of two kernels, second over first: its estimate and its ends; the geometric mean over the problems."""

    ratio: float
    low: float
    high: float


def paired_batch(
    kernels: tuple[KernelSpec, KernelSpec],
    problems: Sequence[Problem],
    *,
    rounds: int,
    turns: int,
    deadline_s: float,
    capability: tuple[int, int] | None,
) -> Batch:
    """Return the batch that times two kernels in turns; each call draws other inputs and another order of calls.

    Args:
        kernels: The kernels; the first one begins.
        problems: The problems.
        rounds: Timed calls of each kernel and problem.
        turns: Processes of each kernel.
        deadline_s: Seconds of the whole batch.
        capability: Compute capability that the device must have; None for any.
    """
    jobs = [
        benchmark_job(kernel, cases_of(problems), rounds=Rounds(rounds, COUNTED), deadline_s=deadline_s / 2)
        for kernel in kernels
    ]
    return Batch(jobs=tuple(jobs), blocks=turns, capability=capability, exact=True)


def judged_sides(
    batch: Batch, done: BatchResult, problems: Sequence[Problem], *, folder: Path, judge: Judge
) -> tuple[Side, Side]:
    """Return both kernels of a batch, with the verdicts on outputs, times and launches.

    Args:
        batch: The batch of `paired_batch`.
        done: Its results.
        problems: Its problems.
        folder: Folder of the files that the results name.
        judge: Judges both kernels, and further batches with these problems.
    """
    first, second = (
        _side(job, result, problems, turns=batch.blocks, folder=folder, judge=judge)
        for job, result in zip(batch.jobs, done.results, strict=True)
    )
    return first, second


def _side(job: Job, result: Result, problems: Sequence[Problem], *, turns: int, folder: Path, judge: Judge) -> Side:
    verdicts = judged(job, result, folder=folder, judge=judge)
    if bad := next((verdict for verdict in verdicts if verdict.status != "passed"), None):
        return Side(bad.status, tuple(bad.findings), ())
    by_case = {measurement.case: measurement for measurement in result.measurements}
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    for index, problem in enumerate(problems):
        times = by_case[index]
        findings += timing_findings(times, problem, result.device)
        findings += launch_findings(times, times, problem)
        one, *others = (times.model_copy(update={"device_us": part}) for part in in_turns(times.device_us, turns))
        for other in others:
            findings += agreement_findings(one, other, problem)
    unique = tuple(sorted(dict.fromkeys(findings), key=lambda finding: finding.severity != "error"))
    if any(finding.severity == "error" for finding in unique):
        return Side("cheated", unique, ())
    return Side("passed", unique, tuple(by_case[index] for index in range(len(problems))))


def in_turns(times: Sequence[float], turns: int) -> list[tuple[float, ...]]:
    """Return the times of each turn."""
    parts, first = [], 0
    for count in block_rounds(len(times), turns):
        parts.append(tuple(times[first : first + count]))
        first += count
    return parts


def ratio_interval(
    first: Sequence[Measurement],
    second: Sequence[Measurement],
    problems: Sequence[Problem],
    *,
    turns: int,
    policy: Policy,
) -> Interval:
    """Return the ratio of the times of two kernels, second over first.

    With fewer than four turns the interval reaches from 0 to infinity, because the difference between processes is
    unknown.
    """
    shapes = [
        ShapeRounds(problem.name, _both_ways(one, turns), _both_ways(other, turns), interleaved=True)
        for problem, one, other in zip(problems, first, second, strict=True)
    ]
    verdict = compare(shapes, policy)
    whole = verdict.geomean or verdict.shapes[0]
    logs = [
        statistics.fmean(logs)
        for logs in zip(
            *(_log_ratios(one, other, turns) for one, other in zip(first, second, strict=True)), strict=True
        )
    ]
    low, high = _of_turns(logs)
    return Interval(whole.ratio, min(whole.low, low), max(whole.high, high))


def _both_ways(times: Measurement, turns: int) -> list[float]:
    """Return the geometric means of a round of a turn A B and one of the next turn B A: a drift cancels."""
    parts = in_turns(times.device_us, turns)
    if len(parts) < 2:
        return list(times.device_us)
    return [
        math.sqrt(one * other)
        for first, second in zip(parts[::2], parts[1::2], strict=False)
        for one, other in zip(first, second, strict=False)
    ]


def _log_ratios(first: Measurement, second: Measurement, turns: int) -> list[float]:
    pairs = zip(in_turns(first.device_us, turns), in_turns(second.device_us, turns), strict=True)
    return [math.log(statistics.median(other) / statistics.median(one)) for one, other in pairs]


def _of_turns(logs: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the ratio from the logarithm of the ratio in each turn."""
    count = len(logs) - len(logs) % 2  # as many turns A B as B A
    if count < _LEAST_TURNS:
        return 0.0, math.inf
    used = logs[:count]
    mean = statistics.fmean(used)
    drift = statistics.fmean(value if turn % 2 == 0 else -value for turn, value in enumerate(used))
    rest = sum((value - mean - (drift if turn % 2 == 0 else -drift)) ** 2 for turn, value in enumerate(used))
    half = student_t_quantile(1 - (1 - _CONFIDENCE) / 2, count - 2) * math.sqrt(rest / (count - 2) / count)
    return math.exp(mean - half), math.exp(mean + half)
