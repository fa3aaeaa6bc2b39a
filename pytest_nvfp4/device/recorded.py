"""Kernels whose host code was recorded: made where the DSL is, simulated anywhere (``worker.conversation``)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from pytest_nvfp4.device.base import Device
from pytest_nvfp4.device.job import JobCase, KernelSpec, Model, SourceFile
from pytest_nvfp4.device.simulate import simulate
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import Bounds
from pytest_nvfp4.isolation.door.models import parsed
from pytest_nvfp4.toolchain import trace_archive

_RECORDING = "nvfp4-recording.json"
"""Name of the recording among the files of a kernel."""
_BOUNDS = Bounds(size=trace_archive.MOST_BYTES)


class RecordedKernel(Model):
    """A kernel with the recording of its host code.

    Attributes:
        kernel: The kernel; its files have the recording among them.
        cases: The calls that were recorded, in order.
    """

    kernel: KernelSpec
    cases: tuple[JobCase, ...] = Field(min_length=1)


class RecordingError(Exception):
    """The host code could not be recorded; the message says why."""


def record(device: Device, kernel: KernelSpec, cases: Sequence[JobCase], *, folder: Path, base: Path) -> bytes:
    """Return the entry of an archive for a kernel, which is simulated once on some cases.

    Args:
        device: A simulator.
        kernel: The kernel.
        cases: The cases.
        folder: Folder for the files of the job.
        base: The folder that the kernel's files are relative to.

    Raises:
        RecordingError: The simulation did not run to its end.
    """
    done = simulate(device, kernel, cases, folder=folder, base=base, conversation=True)
    text = next((one.conversation for one in done if one.conversation is not None), None)
    if text is None or any(one.call is None for one in done):
        errors = [error for one in done for error in one.errors]
        raise RecordingError(str(errors[0]) if errors else done[0].status)
    data = text.decode()
    file = SourceFile(path=_RECORDING, text=data, sha256=hashlib.sha256(text).hexdigest())
    spec = kernel.model_copy(update={"files": (*kernel.files, file), "recorded": _RECORDING, "readable": ()})
    return RecordedKernel(kernel=spec, cases=tuple(cases)).model_dump_json().encode()


def recorded(data: bytes, *, source: str) -> RecordedKernel:
    """Return the recorded kernel of an archive. Raises DoorError: it has none, or it is damaged."""
    made = parsed(RecordedKernel, trace_archive.host_of(data, source=source), source=source, bounds=_BOUNDS)
    if made.kernel.recorded is None:
        raise DoorError(source, "has a kernel without a recording: its host code is not run here")
    # The author of a file opens no door of this machine.
    closed = made.kernel.model_copy(update={"readable": (), "network": False})
    return made.model_copy(update={"kernel": closed})
