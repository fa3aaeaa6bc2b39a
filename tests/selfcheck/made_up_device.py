"""A made-up device that times made-up kernels, and experiments on it."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from pytest_nvfp4.bench.regression import Policy
from pytest_nvfp4.device.base import Device
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, SourceFile
from pytest_nvfp4.device.result import Measurement, Result, Status
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.problem import parse_shape
from pytest_nvfp4.selfcheck.rates.dose import FRAME, Schedule
from pytest_nvfp4.selfcheck.rates.error_rates import analyse
from pytest_nvfp4.selfcheck.rates.experiment import Experiment, ExperimentPlan
from pytest_nvfp4.selfcheck.rates.report import Report
from tests.bench.helpers import H200, METHOD

SOURCE = "def custom_kernel(data):\n    return data\n"
PROBLEMS = (parse_shape("96x128x256", name="small"), parse_shape("256x512x256", name="large"))
US_PER_CYCLE = 5e-4


def kernel_spec(files: Mapping[str, str] | None = None, main: str = "k.py") -> KernelSpec:
    """Return a kernel of these files."""
    packed = tuple(
        SourceFile(path=path, text=text, sha256=hashlib.sha256(text.encode()).hexdigest())
        for path, text in (files or {"k.py": SOURCE}).items()
    )
    return KernelSpec(files=packed, main=main, arch="sm_90a")


class MadeUp:
    """A device that times a kernel of 20 or 60 us with spins of the given cycles.

    Args:
        sigma: Noise of a round.
        between: Noise of a session.
        untimed: Calls before the first timed one.
        dose: Part of a spin that shows in the times.
        bias: Slowdown of the second equal arm, which the check must detect.
        status: Status of every job.
    """

    name = "made up"

    def __init__(
        self,
        *,
        sigma: float = 0.004,
        between: float = 0.001,
        untimed: int = 5,
        dose: float = 1.0,
        bias: float = 0.0,
        status: Status = "passed",
    ) -> None:
        self.rng = np.random.default_rng(1)
        self.sigma, self.between, self.untimed, self.dose, self.bias = sigma, between, untimed, dose, bias
        self.status = status
        self.jobs: list[Job] = []

    def run(self, job: Job, *, folder: Path, base: Path | None = None) -> Result:
        """Return the made-up times of a job."""
        assert base is None
        assert folder.is_dir()
        self.jobs.append(job)
        if self.status != "passed":
            finding = Finding(kind="run", message="it fell over")
            return Result(job=job.id, status=self.status, findings=(finding,), device=H200)
        assert job.kernel is not None
        source = next(file.text for file in job.kernel.files if file.path == job.kernel.main)
        match = re.search(r"^SPINS = (.*)$", source, re.MULTILINE)
        assert match is not None
        spins = ast.literal_eval(match[1])
        return Result(
            job=job.id,
            status="passed",
            device=H200,
            wall_s=1.0,
            measurements=tuple(self._case(index, case, spins, job) for index, case in enumerate(job.cases)),
        )

    def _case(self, index: int, case: JobCase, spins: dict[object, list[int]], job: Job) -> Measurement:
        cycles = np.array(spins[case.problem.sizes])
        count = job.timing.rounds
        calls = np.arange(count) + self.untimed
        base = (20 if case.problem.name == "small" else 60) * np.exp(self.rng.normal(0, self.between))
        us = base + self.dose * US_PER_CYCLE * cycles[calls % cycles.size]
        if self.bias and job.id.startswith("session"):
            schedule = Schedule.make([1] * 5, frame_cycles=1, periods=(count - FRAME) // 5, seed=int(job.id[8:]))
            order = [0] * FRAME + list(schedule.order)
            us = us * np.where(np.array(order)[calls % len(order)] == 1, 1 + self.bias, 1.0)
        return Measurement(
            case=index,
            device_us=tuple(us * self.rng.lognormal(0, self.sigma, count)),
            host_us=(80.0,),
            call_us=30.0,
            late_rounds=1,
            method=METHOD,
            l2="cold",
            sets=3,
            clocks_mhz=(1980,),
        )


def plan(**more: Any) -> ExperimentPlan:
    """Return a short plan with changes."""
    given: dict[str, Any] = {"kernel": kernel_spec(), "problems": PROBLEMS[:1], "periods": 200, "sessions": 6}
    return ExperimentPlan(**(given | more))


def experiment(folder: Path, device: MadeUp | None = None, **more: Any) -> tuple[Experiment, list[str]]:
    """Return an experiment, and the list that its progress goes to."""
    lines: list[str] = []
    chosen = cast(Device, device or MadeUp())
    return Experiment(chosen, plan(**more), folder=folder, report=lines.append), lines


def judged(folder: Path, device: MadeUp | None = None, *, rounds: int = 50, **more: Any) -> Report:
    """Return the rates that an experiment measures."""
    data = experiment(folder, device, **more)[0].run()
    return analyse(data, rounds=rounds, effects=plan(**more).effects, policy=Policy())


def write(spec: KernelSpec, folder: Path) -> None:
    """Write the files of a kernel below a folder."""
    for file in spec.files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).write_bytes(file.data)
