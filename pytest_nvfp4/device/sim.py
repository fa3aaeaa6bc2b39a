"""The ``sim`` device: executes the compiled PTX of a kernel on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_nvfp4.device.dialogue import Dialogue
from pytest_nvfp4.device.job import Job, KernelSpec
from pytest_nvfp4.device.process import run_in_worker
from pytest_nvfp4.device.profiling.run import run_job
from pytest_nvfp4.device.result import DeviceInfo, Result
from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.host.compile_cache import COMPILED_VARIABLE
from pytest_nvfp4.isolation import blas

CopyCompiled = Callable[[KernelSpec, Path, Path], bool]
"""Copies a kernel's compiled modules, and returns whether there are any. The arguments are the kernel, the folder that
its files are relative to, and the folder to copy to."""

ARCHS = (
    *("sm_90a", "sm_100a", "sm_100f", "sm_103a", "sm_103f"),
    *("sm_120a", "sm_120f", "sm_121a", "sm_121f"),
)
"""Architectures whose instructions are simulated."""


class SimDevice:
    """The simulator.

    It simulates the device for which a kernel is compiled: a B200 for ``sm_100a``, a B300 for ``sm_103a``, an H200 for
    ``sm_90a``, a GPU of the compute capability for others. It has no clock.

    Args:
        arch: Architecture of the device that ``describe`` returns.
        compiled: Copies compiled modules (see ``host.compile_cache``); without it every job compiles the kernel.
        dialogue: Who gives commands to the debugger, in jobs that have one.
    """

    name = "sim"

    def __init__(
        self, *, arch: str = "sm_100a", compiled: CopyCompiled | None = None, dialogue: Dialogue | None = None
    ) -> None:
        self._arch = arch
        self._dialogue = dialogue
        self._compiled = compiled

    def describe(self) -> DeviceInfo:
        """Return the properties of the simulated device."""
        model = for_arch(self._arch)
        return DeviceInfo(
            name=model.name,
            capability=model.capability,
            sms=model.sm_count,
            l2_bytes=model.l2_bytes,
            memory_bytes=model.memory_bytes,
            simulated=True,
        )

    def unsupported(self, arch: str) -> str | None:
        """Return why code for an architecture cannot be simulated, or None."""
        if arch in ARCHS:
            return None
        return f"the kernel is for {arch}, and the simulator supports {', '.join(ARCHS)}"

    def run(self, job: Job, *, folder: Path, base: Path | None = None) -> Result:
        """Run a job in a worker process; see ``Device``."""
        environ = blas.variables()
        if self._compiled is not None and job.kernel is not None and base is not None:
            copies = folder / "compiled"  # a kernel may read it, and not write
            if self._compiled(job.kernel, base, copies):
                environ[COMPILED_VARIABLE] = str(copies)
        if self._dialogue is not None:
            return run_in_worker(job, backend="sim", folder=folder, base=base, environ=environ, dialogue=self._dialogue)
        return run_job(job, backend="sim", folder=folder, base=base, environ=environ)
