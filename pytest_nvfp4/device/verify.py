"""Verify a kernel on a device: run the cases together, and one defect spoils no other case's verdict."""

from __future__ import annotations

import secrets
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.device.base import Device, SendsAhead
from pytest_nvfp4.device.batch import ALONE, Ran, run_batch
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, Timing
from pytest_nvfp4.device.result import DeviceInfo, Result
from pytest_nvfp4.device.verdict import CaseVerdict, Judge


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdicts of some cases, in their order, and what ran them.

    Attributes:
        verdicts: One a case.
        device: The device; None where it could not be asked.
        order_seed: Seed of the order of calls, to repeat a run.
        stdout: The end of what the kernel printed.
        stderr: The end of what it wrote to stderr.
    """

    verdicts: tuple[CaseVerdict, ...]
    device: DeviceInfo | None
    order_seed: int
    stdout: str
    stderr: str


class Verifier:
    """Verifies kernels on one device.

    Args:
        device: Where they run.
        folder: Where the files of jobs go; each is removed once it was judged.
        deadline_s: Seconds a job may take.
    """

    def __init__(self, device: Device, *, folder: Path, deadline_s: float = 300.0) -> None:
        self._device = device
        self._folder = folder
        self._deadline_s = deadline_s
        self._judge = Judge()

    def verify(
        self, kernel: KernelSpec, cases: Sequence[JobCase], *, base: Path | None = None, order_seed: int | None = None
    ) -> Verification:
        """The verdict of every case.

        The cases run in one process, which costs one start and lets a kernel's memory of earlier calls show. When
        that process ends badly, each problem is run once more by itself, so that the verdict of one says nothing
        about another.

        Args:
            kernel: The kernel.
            cases: The cases.
            base: The folder its files are relative to.
            order_seed: Seed of the order of calls; drawn anew where None, so that a kernel cannot know it.
        """
        seed = secrets.randbits(32) if order_seed is None else order_seed
        drawn = order_seed is None
        result, verdicts, seed = self._run(kernel, cases, base=base, seed=seed, drawn=drawn)
        problems = list(dict.fromkeys(case.problem for case in cases))
        if result.status in ALONE and len(problems) > 1:
            by_case = dict(zip(cases, verdicts, strict=True))
            for problem in problems:
                alone = [case for case in cases if case.problem == problem]
                _, again, _ = self._run(kernel, alone, base=base, seed=seed, drawn=drawn)
                by_case.update(zip(alone, again, strict=True))
            verdicts = [by_case[case] for case in cases]
        return Verification(tuple(verdicts), result.device, seed, result.stdout, result.stderr)

    def _run(
        self, kernel: KernelSpec, cases: Sequence[JobCase], *, base: Path | None, seed: int, drawn: bool
    ) -> tuple[Result, list[CaseVerdict], int]:
        """One process, and with which seed it ran: of a drawn one, a device may have the answer with another."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="job-") as name:
            folder = Path(name)
            job = verify_job(kernel, cases, deadline_s=self._deadline_s, seed=seed)
            if drawn:
                job = _as_run(self._device, job)
            result = self._device.run(job, folder=folder, base=base)
            return result, self._judge.judge(job, result, folder=folder), job.order_seed


def verify_job(kernel: KernelSpec, cases: Sequence[JobCase], *, deadline_s: float, seed: int | None = None) -> Job:
    """The job that verifies a kernel on some cases.

    Args:
        kernel: The kernel.
        cases: The cases.
        deadline_s: Seconds it may take.
        seed: Seed of the order of calls; drawn where None, so that a kernel cannot know it.
    """
    seed = secrets.randbits(32) if seed is None else seed
    return Job(
        id=f"job-{uuid.uuid4().hex[:12]}",
        action="verify",
        kernel=kernel,
        cases=tuple(cases),
        order_seed=seed,
        row_key=seed,
        deadline_s=deadline_s,
    )


def benchmark_job(
    kernel: KernelSpec, cases: Sequence[JobCase], *, rounds: int, deadline_s: float, row_key: int | None = None
) -> Job:
    """The job that times a kernel on some cases; those that may share a process have the same ``row_key``."""
    return Job(
        id=f"job-{uuid.uuid4().hex[:12]}",
        action="benchmark",
        kernel=kernel,
        cases=tuple(cases),
        order_seed=secrets.randbits(32),
        row_key=secrets.randbits(32) if row_key is None else row_key,
        timing=Timing(rounds=rounds, repeats=max(5, rounds // 4)),
        deadline_s=deadline_s,
    )


def measure(
    device: Device,
    kernel: KernelSpec,
    cases: Sequence[JobCase],
    *,
    folder: Path,
    rounds: int,
    base: Path | None = None,
    deadline_s: float = 600.0,
) -> tuple[Result, list[CaseVerdict]]:
    """Time every case on a device; the verdicts say whether the answers held while it was timed."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="job-") as name:
        job = _as_run(device, benchmark_job(kernel, cases, rounds=rounds, deadline_s=deadline_s))
        result = device.run(job, folder=Path(name), base=base)
        return result, Judge().judge(job, result, folder=Path(name))


def measure_each(
    device: Device,
    kernel: KernelSpec,
    cases: Sequence[JobCase],
    *,
    folder: Path,
    rounds: int,
    base: Path | None = None,
    deadline_s: float = 600.0,
) -> list[tuple[Result, CaseVerdict]]:
    """Time every case on a device of this machine, each as if by itself: in one process where that goes well.

    Args:
        device: The device.
        kernel: The kernel.
        cases: The cases.
        folder: Folder for the files of jobs.
        rounds: Timed rounds of each case.
        base: The folder of the user's that the kernel's files are relative to.
        deadline_s: Seconds that a process may take.

    Returns:
        For each case its result, without outputs, and its verdict.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = secrets.randbits(32)
    jobs = [benchmark_job(kernel, [case], rounds=rounds, deadline_s=deadline_s, row_key=key) for case in cases]
    with tempfile.TemporaryDirectory(dir=folder, prefix="job-") as name:

        def run(job: Job) -> Ran:
            place = Path(tempfile.mkdtemp(dir=name))
            return device.run(job, folder=place, base=base), place

        found = []
        for job, (result, place) in zip(jobs, run_batch(jobs, run), strict=True):
            (verdict,) = Judge().judge(job, result, folder=place)
            found.append((result.model_copy(update={"outputs": (), "samples": ()}), verdict))
        return found


def _as_run(device: Device, job: Job) -> Job:
    """The job with the draws with which a device has run it, or will."""
    if not isinstance(device, SendsAhead):
        return job
    ran = device.ahead(job)
    return job.model_copy(update={"order_seed": ran.order_seed, "row_key": ran.row_key})
