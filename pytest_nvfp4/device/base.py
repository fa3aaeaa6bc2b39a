"""The interface of a device: it describes itself and runs jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import DeviceInfo, Result


class DeviceUnavailableError(RuntimeError):
    """The device does not exist here; the message names the reason and the remedy."""


class Device(Protocol):
    """A place where kernels run.

    ``name`` is its name in ``--nvfp4-device``. A device never raises for anything that a kernel does: every job gets a
    result.
    """

    name: str

    def describe(self) -> DeviceInfo:
        """Return the properties of the device. Raises DeviceUnavailableError."""

    def unsupported(self, arch: str) -> str | None:
        """Return why the device cannot run code for an architecture, or None. Raises DeviceUnavailableError."""

    def run(self, job: Job, *, folder: Path, base: Path | None = None) -> Result:
        """Run a job.

        Args:
            folder: A new, empty folder for the files that the result names.
            base: The user's folder that the kernel's files are relative to, for file names in findings.
        """


@runtime_checkable
class SendsAhead(Protocol):
    """A device to which jobs may be sent before their results are requested."""

    def job_as_run(self, job: Job) -> Job:
        """Return the job that was sent in place of this one (equal but for its random draws), or this one; may wait."""
