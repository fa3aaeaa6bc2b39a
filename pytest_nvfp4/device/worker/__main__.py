"""Run one job: ``python -m pytest_nvfp4.device.worker JOB.json FOLDER [cuda|host|sim]``.

The worker reads the job, runs the kernel, and sends events on the descriptor named by ``NVFP4_RESULT_FD``. It writes
outputs to files in FOLDER. The parent computes the expected outputs itself and judges them. With ``sim`` the kernel
runs in a process of its own (``machine_worker``).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_nvfp4.device.job import Job, KernelSpec
from pytest_nvfp4.device.worker import device_info
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.imported_kernel import RefusedKernelError, import_kernel, watch
from pytest_nvfp4.device.worker.job_steps import JobSteps, completed
from pytest_nvfp4.device.worker.memory import CudaMemory, DeviceMemory, DriverError, HostMemory
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.host.compile_cache import COMPILED_VARIABLE, KEEP_VARIABLE, CompileCache
from pytest_nvfp4.isolation.environment import RESULT_VARIABLE, taken
from pytest_nvfp4.isolation.limits import write_stack_in_time
from pytest_nvfp4.isolation.seal.audit import KernelAudit
from pytest_nvfp4.isolation.seal.keeper import Sealed, keep
from pytest_nvfp4.isolation.wall import enter_from_environment
from pytest_nvfp4.toolchain.worker.findings import from_exception
from pytest_nvfp4.toolchain.worker.loading import end_imports

_PLACES = {"cuda": " on the device"}
"""Where a kernel of each backend ran, for messages."""

_Custom = Callable[[Any], Any]
_Prepare = Callable[[Any], Any]
_Action = Callable[[_Custom, _Prepare | None], None]


class Worker(JobSteps):
    """Runs one job, from the device's description to the last event.

    Args:
        folder: Folder for sources, scratch files and outputs, shared with the parent.
        backend: ``cuda`` for a real device; ``host`` for torch's stand-in device, which computes on the CPU.
        sealed: Where to list the memory that must not change; None below a profiler (``profile_worker``).
    """

    def __init__(self, job: Job, folder: Path, events: Events, *, backend: str, sealed: Sealed | None) -> None:
        super().__init__(job, folder, events)
        self._backend = backend
        self._sealed = sealed

    def _own(self, file: str) -> bool:
        return file.startswith(str(self._sources))

    def run(self) -> None:
        """Run the job."""
        torch = self._import_torch()
        if self._backend == "host":
            from pytest_nvfp4.host import torch_cuda

            torch_cuda.install()
        self._describe(torch)
        if self._job.action == "probe":
            return
        assert self._job.kernel is not None
        # Everything that the worker relies on is loaded and recorded before the kernel's first line runs.
        act = self._action(torch)
        self._reuse_modules(self._job.kernel)
        end_imports()

        def seal(audit: KernelAudit) -> None:
            roots = {"the worker": self, "what it calls": act, "its audit": audit, "__main__": globals()}
            assert self._sealed is not None
            self._sealed.seal("pytest_nvfp4", roots)

        listing = None if self._sealed is None else seal
        accesses = watch(folder=self._folder, sources=self._sources, own=self._own, seal=listing)
        custom, prepare = self._import_kernel(self._job.kernel)
        raised: BaseException | None = None
        try:
            act(custom, prepare)
        except BaseException as error:
            raised = error
        self._report(accesses())
        if isinstance(raised, DriverError):
            self._finish("error", Finding("cuda", f"the device is in an error state after the kernel: {raised}"))
        if raised is not None:
            name, place = Path(self._job.kernel.main).name, _PLACES.get(self._backend, "")
            self._finish("error", from_exception("run", f"{name} failed{place}", raised, self._own))

    def _describe(self, torch: Any) -> None:
        reason = device_info.unavailable(torch)
        if reason is not None:
            self._finish("unavailable", Finding("environment", f"no CUDA device: {reason}"))
        info = device_info.describe(torch, simulated=self._backend != "cuda")
        self._events.send("device", **info)
        if self._job.kernel is None:
            return
        self._check_arch(self._job.kernel, name=info["name"], capability=info["capability"])
        if self._job.kernel.entry is not None and not self._job.given:
            self._refuse_entry()

    def _action(self, torch: Any) -> _Action:
        job = self._job
        if job.action == "simulate":
            self._finish("unavailable", Finding("device", "launches and counters are recorded by the simulator only"))
        if job.action == "verify":
            from pytest_nvfp4.device.worker.called_kernel import LocalKernel
            from pytest_nvfp4.device.worker.verify import CallRunner

            memory: DeviceMemory = CudaMemory() if self._backend == "cuda" else HostMemory()

            def run(custom: _Custom, prepare: _Prepare | None) -> None:
                kernel = LocalKernel(torch, memory, custom, prepare)
                CallRunner(kernel, memory, self._events, self._folder).run(job)

            return run
        if job.action == "profile":
            from pytest_nvfp4.device.worker.profiled import ProfileRunner

            cuda = self._backend == "cuda"
            place = CudaMemory() if cuda else HostMemory()
            profile = ProfileRunner(torch, place, self._events, self._folder, device=cuda)
            return lambda custom, prepare: profile.run(job, custom, prepare)
        if self._backend != "cuda":
            self._finish("unavailable", Finding("device", "not run: this device is the CPU, which has no GPU clock"))
        from pytest_nvfp4.device.worker.benchmark import BenchmarkRunner

        benchmark = BenchmarkRunner(torch, CudaMemory(), self._events, self._folder)
        return lambda custom, prepare: benchmark.run(job, custom, prepare)

    def _import_kernel(self, kernel: KernelSpec) -> tuple[_Custom, _Prepare | None]:
        self._write_sources(kernel)
        self._events.stage("import kernel")
        try:
            imported = import_kernel(
                self._sources,
                main=kernel.main,
                entry=kernel.entry,
                compile_options=kernel.compile_options,
                own=self._own,
            )
        except RefusedKernelError as error:
            self._finish("error", error.finding)
        return imported.function, imported.prepare

    def _reuse_modules(self, kernel: KernelSpec) -> None:
        """Reuse the DSL's modules of an earlier process of this kernel, or store those of this one for a later one."""
        known = [Path(folder) for folder in os.environ.pop(COMPILED_VARIABLE, "").split(os.pathsep) if folder]
        keep = os.environ.pop(KEEP_VARIABLE, "")
        if not (known or keep) or not any("cutlass" in file.text for file in kernel.files):
            return
        if importlib.util.find_spec("cutlass") is None:
            return
        compiler = importlib.import_module("cutlass.base_dsl.compiler").Compiler
        cache = CompileCache(known, keep=Path(keep) if keep else None)
        compiler.compile = cache.compiling(vars(compiler)["compile"])

    def _report(self, messages: list[str]) -> None:
        if messages:
            self._finish("cheated", *(Finding("cheat", message) for message in messages))


def main() -> None:
    """Run the job named on the command line, and exit without running any of the kernel's exit handlers."""
    if sys.argv[3:] == ["sim"]:
        from pytest_nvfp4.device.worker import machine_worker  # where the device is real, no simulator is installed

        machine_worker.main()
    sealed = keep(int(taken(RESULT_VARIABLE)))
    enter_from_environment(keep=sealed.descriptors, first=sealed.open_memory)
    events = Events(sealed.result)
    exit_process = os._exit  # like the next ones, bound before a kernel can replace it
    flush = [stream.flush for stream in (sys.stdout, sys.stderr)]

    def run() -> None:
        _, file, folder, backend = [*sys.argv, "cuda"][:4]
        job = Job.model_validate_json(Path(file).read_bytes())
        Path(file).unlink()  # it reveals which calls are judged, and their inputs
        del sys.argv[1:]
        write_stack_in_time(sys.stderr)
        Worker(job, Path(folder), events, backend=backend, sealed=sealed).run()

    completed(events, run)
    sealed.wait()
    for flush_stream in flush:
        with contextlib.suppress(Exception):
            flush_stream()
    exit_process(0)


if __name__ == "__main__":
    main()
