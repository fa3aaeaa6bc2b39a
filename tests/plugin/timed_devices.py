"""Devices that record the problems that they are requested to time."""

from __future__ import annotations

from pathlib import Path

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import DeviceInfo, Result
from tests.device.remote.loopback.devices import clocked


class RecordingDevice:
    """A device that notes what it is asked to time; one that has been sent all of it ahead, or not."""

    name = "counting"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def describe(self) -> DeviceInfo:
        return DeviceInfo(name="x", capability=(10, 0))

    def unsupported(self, arch: str) -> str | None:  # noqa: ARG002
        return None

    def run(self, job: Job, *, folder: Path, base: Path | None = None) -> Result:  # noqa: ARG002
        assert list(folder.iterdir()) == []
        self.asked.append("".join(case.problem.name for case in job.cases))
        return Result(job=job.id, status="passed", wall_s=float(len(self.asked)))


class SendingDevice(RecordingDevice):
    """A remote with right answers and made-up times (``clocked``), which notes rounds and counted inputs, too.

    Attributes:
        left_out: ``device_us`` or ``samples``: of what the second process leaves one out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_out = ""
        self.rounds: list[tuple[int, int]] = []

    def job_as_run(self, job: Job) -> Job:
        return job

    def run(self, job: Job, *, folder: Path, base: Path | None = None) -> Result:
        super().run(job, folder=folder, base=base)
        self.rounds.append((job.timing.rounds, job.timing.counted))
        result = clocked.run(job, folder)
        if job.timing.counted and self.left_out == "samples":
            return result.model_copy(update={"samples": result.samples[1:]})
        if job.timing.counted and self.left_out == "device_us":
            (one,) = result.measurements
            fewer = one.model_copy(update={"device_us": one.device_us[1:]})
            return result.model_copy(update={"measurements": (fewer,)})
        return result
