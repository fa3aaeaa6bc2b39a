"""Time a kernel on several problems in one process, which imports and compiles it once.

That takes most of the time, and a batch only saves time. If its process did not end properly, it is unknown which job
is to blame, so each job is then run in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import Result

INCONCLUSIVE = frozenset({"error", "timeout", "crashed"})
"""Statuses of a process with several cases that do not tell which case is to blame."""


class CompletedJob(NamedTuple):
    """A result, and the folder of the files that it names."""

    result: Result
    folder: Path


def can_batch(one: Job, other: Job) -> bool:
    """Return whether two jobs may share a process: benchmarks of one kernel that differ in cases and order seed."""
    return (
        one.action == other.action == "benchmark"
        and one.kernel == other.kernel
        and one.timing == other.timing
        and one.row_key == other.row_key
        and one.memory_bytes == other.memory_bytes
    )


def run_batch(jobs: Sequence[Job], run: Callable[[Job], CompletedJob]) -> list[CompletedJob]:
    """Run jobs that may share a process (see ``can_batch``), or each in its own if that process does not end properly.

    Returns:
        For each job, in order, what it would have produced in its own process.
    """
    if len(jobs) > 1:
        result, folder = run(_merged(jobs))
        if result.status == "passed":
            return [CompletedJob(part, folder) for part in _split(result, jobs)]
        # The device is missing or unsuitable, or the kernel cheats, which makes all its results worthless.
        if result.status not in INCONCLUSIVE:
            return [CompletedJob(result.model_copy(update={"job": job.id}), folder) for job in jobs]
    return [run(job) for job in jobs]


def _merged(jobs: Sequence[Job]) -> Job:
    """Return one job with all cases. Its deadline is that of a single job: if it takes longer, each runs separately."""
    return jobs[0].model_copy(
        update={
            "cases": tuple(case for job in jobs for case in job.cases),
            "deadline_s": max(job.deadline_s for job in jobs),
        }
    )


def _split(result: Result, jobs: Sequence[Job]) -> list[Result]:
    """Return the result of each job, from that of the merged job."""
    parts, first = [], 0
    for job in jobs:
        cases = range(first, first + len(job.cases))
        fields = {
            name: tuple(
                entry.model_copy(update={"case": entry.case - first})
                for entry in getattr(result, name)
                if entry.case in cases
            )
            for name in ("outputs", "cases", "measurements", "samples", "simulated")
        }
        wall_s = round(result.wall_s / len(jobs), 3)
        parts.append(result.model_copy(update={**fields, "job": job.id, "wall_s": wall_s}))
        first = cases.stop
    return parts
