"""The ``local`` device: a GPU of this machine."""

from __future__ import annotations

import uuid
from functools import cached_property
from pathlib import Path

from pytest_nvfp4.device.base import DeviceUnavailableError
from pytest_nvfp4.device.compiled_modules import CompiledModules
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.profiling.run import run_job
from pytest_nvfp4.device.result import DeviceInfo, Result


class LocalDevice:
    """One GPU of this machine.

    Every job has a worker process of its own, so that a CUDA error in one never reaches the next. The GPU is not used
    before the first call of a method.

    Args:
        visible: Value of ``CUDA_VISIBLE_DEVICES`` for its workers; None to leave it unchanged.
        probe_folder: Folder for the files of the job that probes the GPU.
        backend: ``cuda``; ``host`` uses torch's stand-in device instead, for kernels of plain torch operations.

    Attributes:
        modules: Modules that kernels have compiled, for further processes of the same kernels; None to compile in each.
    """

    name = "local"

    def __init__(self, *, visible: str | None = None, probe_folder: Path, backend: str = "cuda") -> None:
        self._visible = visible
        self._backend = backend
        self._probe_folder = probe_folder
        self.modules: CompiledModules | None = None

    @cached_property
    def _probe(self) -> Result:
        folder = self._probe_folder / f"probe-{uuid.uuid4().hex[:8]}"
        folder.mkdir(parents=True)
        return self.run(Job(id="probe", action="probe", deadline_s=120), folder=folder)

    def describe(self) -> DeviceInfo:
        """Return the properties of the GPU. Raises DeviceUnavailableError, also if it cannot run anything."""
        result = self._probe
        if result.status != "passed" or result.device is None:
            raise DeviceUnavailableError(f"no local GPU can be used: {result.reason}")
        return result.device

    def unsupported(self, arch: str) -> str | None:
        """Return why the GPU cannot run code for an architecture; ``sm_90a`` code runs on capability 9.0 only."""
        info = self.describe()
        has = f"sm_{info.capability[0]}{info.capability[1]}"
        if arch.rstrip("af") == has:
            return None
        return f"the kernel is for {arch}, and {info.name} is {has}"

    def run(self, job: Job, *, folder: Path, base: Path | None = None) -> Result:
        """Run a job in a worker process; see ``Device``."""
        environ = {} if self._visible is None else {"CUDA_VISIBLE_DEVICES": self._visible}
        if self.modules is not None:
            environ |= self.modules.variables(job, folder)
        result = run_job(job, backend=self._backend, folder=folder, base=base, environ=environ)
        if self.modules is not None and result.status == "passed":
            self.modules.take(job, folder)
        return result
