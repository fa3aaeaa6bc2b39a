"""Time a kernel on several problems in one process: it is imported and compiled once, which takes most of the time.

It only saves time. A process that did not come to its end says nothing of who was to blame, so each job is then run by
itself, as if nothing had been tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import Result

Ran = tuple[Result, Path]
"""A result, and the folder of the files that it names."""
ALONE = frozenset({"error", "timeout", "crashed"})
"""How a process ends that does not say whose fault it was."""


def can_batch(one: Job, other: Job) -> bool:
    """Whether two jobs may share a process: benchmarks of the same kernel, alike but for their cases and seeds."""
    return (
        one.action == other.action == "benchmark"
        and one.kernel == other.kernel
        and one.timing == other.timing
        and one.row_key == other.row_key
        and one.memory_bytes == other.memory_bytes
    )


def run_batch(jobs: Sequence[Job], run: Callable[[Job], Ran]) -> list[Ran]:
    """Run jobs that fit together, in one process where that goes well.

    Args:
        jobs: The jobs, each of which fits together with the first.
        run: Runs one job in a new folder.

    Returns:
        What each job would have given by itself, in order.
    """
    if len(jobs) > 1:
        result, folder = run(_joined(jobs))
        if result.status == "passed":
            return [(part, folder) for part in _parts(result, jobs)]
        if result.status not in ALONE:  # the device's doing, or a cheat's, which makes all answers worthless
            return [(result.model_copy(update={"job": job.id}), folder) for job in jobs]
    return [run(job) for job in jobs]


def _joined(jobs: Sequence[Job]) -> Job:
    """One job with all cases. It gets the time of one: what takes longer is run apart, each with its own."""
    return jobs[0].model_copy(
        update={
            "cases": tuple(case for job in jobs for case in job.cases),
            "deadline_s": max(job.deadline_s for job in jobs),
        }
    )


def _parts(result: Result, jobs: Sequence[Job]) -> list[Result]:
    """The result of each job out of that of all."""
    parts, first = [], 0
    for job in jobs:
        own = range(first, first + len(job.cases))
        fields = {
            name: tuple(
                one.model_copy(update={"case": one.case - first}) for one in getattr(result, name) if one.case in own
            )
            for name in ("outputs", "cases", "measurements", "samples", "simulated")
        }
        wall_s = round(result.wall_s / len(jobs), 3)
        parts.append(result.model_copy(update={**fields, "job": job.id, "wall_s": wall_s}))
        first = own.stop
    return parts
