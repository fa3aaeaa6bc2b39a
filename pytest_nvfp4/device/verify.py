"""Verify and time a kernel on a device, with one process for all cases whose verdicts stay independent."""

from __future__ import annotations

import secrets
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pytest_nvfp4.device.base import Device, SendsAhead
from pytest_nvfp4.device.batch import INCONCLUSIVE, CompletedJob, run_batch
from pytest_nvfp4.device.cause_search import explained
from pytest_nvfp4.device.given import with_given
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, Simulating, Timing
from pytest_nvfp4.device.judged_job import run_and_judge
from pytest_nvfp4.device.result import DeviceInfo, Result
from pytest_nvfp4.device.simulate import simulate
from pytest_nvfp4.device.verdict import CaseVerdict, Judge
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.temporary import folder_in

_LEAST_SECOND_ROUNDS = 9
_COUNTED_INPUTS = 3


class Rounds(NamedTuple):
    """What one process measures of a kernel.

    Attributes:
        timed: Timed rounds.
        counted: Inputs on which its launches are counted, after the timed rounds.
    """

    timed: int
    counted: int = 0


def in_two_processes(rounds: int) -> tuple[Rounds, Rounds]:
    """Return what the two processes measure that every benchmark of a kernel has.

    The times of the first one are reported. The second one is a fresh process, which need only show the same median,
    and counts launches. Jobs with different ``Rounds`` never share a process (see ``device.batch``).
    """
    return Rounds(rounds), Rounds(max(_LEAST_SECOND_ROUNDS, rounds // 4), _COUNTED_INPUTS)


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdicts of some cases.

    Attributes:
        verdicts: One verdict for each case, in order.
        device: The device that ran them; None if unknown.
        order_seed: Seed of the inputs and of the order of calls, which makes a run repeatable.
        stdout: End of the kernel's standard output.
        stderr: End of its standard error.
    """

    verdicts: tuple[CaseVerdict, ...]
    device: DeviceInfo | None
    order_seed: int
    stdout: str
    stderr: str


class Verifier:
    """Verifies kernels on one device. The files of jobs in ``folder`` are removed once they have been judged."""

    def __init__(self, device: Device, *, folder: Path, deadline_s: float = 300.0) -> None:
        self._device = device
        self._folder = folder
        self._deadline_s = deadline_s

    def verify(
        self,
        kernel: KernelSpec,
        cases: Sequence[JobCase],
        *,
        base: Path | None = None,
        order_seed: int | None = None,
        sms: int | None = None,
    ) -> Verification:
        """Return the verdict of every case.

        The cases run in one process, which takes one start and reveals state that a kernel keeps between calls. If
        that process does not end properly, each problem runs again in a process of its own, so that verdicts stay
        independent.

        The kernel's files are relative to ``base``. For ``order_seed`` and ``sms`` see ``verify_job``.
        """
        run = partial(self._run, kernel, base=base, drawn=order_seed is None, sms=sms)
        result, verdicts, seed = run(cases, seed=order_seed)
        problems = list(dict.fromkeys(case.problem for case in cases))
        if result.status in INCONCLUSIVE and len(problems) > 1:
            by_case = dict(zip(cases, verdicts, strict=True))
            for problem in problems:
                alone = [case for case in cases if case.problem == problem]
                _, again, _ = run(alone, seed=seed)
                by_case.update(zip(alone, again, strict=True))
            verdicts = [by_case[case] for case in cases]
        if self._device.name == "sim":
            call = partial(
                simulate, self._device, kernel, folder=self._folder, base=base, deadline_s=self._deadline_s, sms=sms
            )
            for verdict, findings in zip(verdicts, explained(verdicts, call), strict=True):
                verdict.findings[:] = findings
        return Verification(tuple(verdicts), result.device, seed, result.stdout, result.stderr)

    def _run(
        self,
        kernel: KernelSpec,
        cases: Sequence[JobCase],
        *,
        base: Path | None,
        seed: int | None,
        drawn: bool,
        sms: int | None,
    ) -> tuple[Result, list[CaseVerdict], int]:
        """Run one process, and return its result, its verdicts, and the seed, which a job sent ahead may have drawn."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with folder_in(self._folder, "job-") as folder:
            job = verify_job(kernel, cases, deadline_s=self._deadline_s, seed=seed, sms=sms)
            if drawn:
                job = _with_draws_sent(self._device, job)
            job, result, verdicts = run_and_judge(self._device, job, Judge(), folder=folder, base=base)
            return result, verdicts, job.order_seed


def verify_job(
    kernel: KernelSpec, cases: Sequence[JobCase], *, deadline_s: float, seed: int | None = None, sms: int | None = None
) -> Job:
    """Return the job that verifies a kernel on some cases.

    ``seed`` is that of the order of calls; it is drawn if None, so that a kernel cannot predict it. ``sms`` is the SM
    count of a simulated device; None for that of the product.
    """
    seed = secrets.randbits(32) if seed is None else seed
    return Job(
        id=f"job-{uuid.uuid4().hex[:12]}",
        action="verify",
        kernel=kernel,
        cases=tuple(cases),
        order_seed=seed,
        row_key=seed,
        simulating=Simulating(sms=sms),
        deadline_s=deadline_s,
    )


def benchmark_job(
    kernel: KernelSpec,
    cases: Sequence[JobCase],
    *,
    rounds: Rounds,
    deadline_s: float,
    row_key: int | None = None,
) -> Job:
    """Return the job that times a kernel on some cases; jobs that may share a process have the same ``row_key``."""
    return Job(
        id=f"job-{uuid.uuid4().hex[:12]}",
        action="benchmark",
        kernel=kernel,
        cases=tuple(cases),
        order_seed=secrets.randbits(32),
        row_key=secrets.randbits(32) if row_key is None else row_key,
        timing=Timing(rounds=rounds.timed, repeats=max(5, rounds.timed // 4), counted=rounds.counted),
        deadline_s=deadline_s,
    )


def measure(
    device: Device,
    kernel: KernelSpec,
    cases: Sequence[JobCase],
    *,
    folder: Path,
    rounds: Rounds,
    base: Path | None = None,
    deadline_s: float = 600.0,
) -> tuple[Result, list[CaseVerdict]]:
    """Time every case on a device, and return the result with the verdicts on the outputs of the timed calls."""
    folder.mkdir(parents=True, exist_ok=True)
    with folder_in(folder, "job-") as place:
        asked = benchmark_job(kernel, cases, rounds=rounds, deadline_s=deadline_s)
        job = with_given(_with_draws_sent(device, asked))
        result = device.run(job, folder=place, base=base)
        return result, judged(job, result, folder=place)


def measure_each(
    device: Device,
    kernel: KernelSpec,
    cases: Sequence[JobCase],
    *,
    folder: Path,
    rounds: Rounds,
    base: Path | None = None,
    deadline_s: float = 600.0,
) -> list[tuple[Result, CaseVerdict]]:
    """Time every case on a device of this machine, if possible in one process, with the results of separate jobs.

    Returns:
        For each case its result, without outputs, and its verdict.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = secrets.randbits(32)
    jobs = [
        with_given(benchmark_job(kernel, [case], rounds=rounds, deadline_s=deadline_s, row_key=key)) for case in cases
    ]
    with folder_in(folder, "job-") as place:

        def run(job: Job) -> CompletedJob:
            job_folder = Path(tempfile.mkdtemp(dir=place))
            return CompletedJob(device.run(job, folder=job_folder, base=base), job_folder)

        measured = []
        for job, (result, job_folder) in zip(jobs, run_batch(jobs, run), strict=True):
            (verdict,) = judged(job, result, folder=job_folder)
            measured.append((result.model_copy(update={"outputs": (), "samples": ()}), verdict))
        return measured


def judged(job: Job, result: Result, *, folder: Path, judge: Judge | None = None) -> list[CaseVerdict]:
    """Return the verdicts on the timed calls of a job: each round has its time, and a sample of its outputs.

    ``judge`` has judged other jobs with the same cases, if there were any.
    """
    verdicts = (judge or Judge()).judge(job, result, folder=folder)
    rounds = job.timing.rounds
    for index, verdict in enumerate(verdicts):
        timed = sum(len(measurement.device_us) for measurement in result.measurements if measurement.case == index)
        sampled = sum(sample.case == index for sample in result.samples)
        if verdict.status == "passed" and (timed != rounds or sampled < rounds):
            message = f"the device returned {timed} times and {sampled} samples of outputs of {rounds} timed rounds"
            verdict.findings.append(Finding("internal", f"{message}: what it leaves out is unknown"))
            verdict.status = "crashed"
    return verdicts


def _with_draws_sent(device: Device, job: Job) -> Job:
    """Return the job with the random draws of the job that was sent ahead in its place, if there is one."""
    if not isinstance(device, SendsAhead):
        return job
    sent = device.job_as_run(job)
    return job.model_copy(update={"order_seed": sent.order_seed, "row_key": sent.row_key})
