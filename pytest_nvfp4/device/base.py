"""What a device is: something that says what it is and runs jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import DeviceInfo, Result


class DeviceUnavailableError(RuntimeError):
    """There is no such device here; the message says why and what to do."""


class Device(Protocol):
    """A place where kernels run.

    ``name`` is what ``--nvfp4-device`` calls it. A device never raises for what a kernel does: whatever happens, a
    job gets a result.
    """

    name: str

    def describe(self) -> DeviceInfo:
        """What the device is. Raises DeviceUnavailableError."""

    def unsupported(self, arch: str) -> str | None:
        """Why it cannot run code for an architecture, or None. Raises DeviceUnavailableError."""

    def run(self, job: Job, *, folder: Path, base: Path | None = None) -> Result:
        """Run a job.

        Args:
            job: What to do.
            folder: A new, empty folder; files that the result names lie there.
            base: The folder of the user's that the kernel's files are relative to, so that findings name them.
        """


@runtime_checkable
class SendsAhead(Protocol):
    """A device to which jobs may have been sent before they are asked for."""

    def ahead(self, job: Job) -> Job:
        """The job that was run in place of this one (it asks the same, with other draws), or this one; it may wait."""
