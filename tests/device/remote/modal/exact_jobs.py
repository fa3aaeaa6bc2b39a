"""Jobs for the device ``exact`` of the loopback server, and the log of those that it executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.remote.cache import RemoteResultCache
from pytest_nvfp4.toolchain.sealed_files import SealedFiles

from ..fakes import source

COUNT = 8


class ExecutedJob(NamedTuple):
    """Container, kernel and problems of a job that was executed."""

    container: int
    kernel: str
    problems: list[str]


def executed_jobs(log: Path) -> list[ExecutedJob]:
    """Read the log."""
    return [ExecutedJob(*json.loads(line)) for line in log.read_text().splitlines()]


def independent_jobs(text: str) -> list[Job]:
    """Return ``COUNT`` jobs that neither share a process nor are compared."""
    kernel = KernelSpec(files=(source(text),), main="kernel.py", arch="sm_100a")
    problems = [ProblemSpec(name=f"p{number}", sizes=((4, 128, 256, 1),), seed=number) for number in range(COUNT)]
    return [
        Job(id=problem.name, action="verify", kernel=kernel, cases=(JobCase(problem=problem, family="pow2_exact"),))
        for problem in problems
    ]


def result_cache(folder: Path) -> RemoteResultCache:
    """Return the cache of results of the device ``exact``."""
    return RemoteResultCache(SealedFiles(folder), remote="modal B200 backend exact:run")
