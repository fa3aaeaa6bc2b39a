"""Run one job: ``python -m pytest_nvfp4.device.worker JOB.json FOLDER``.

It reads the job, runs the kernel, and says what happened as events on the descriptor named by ``NVFP4_RESULT_FD``.
Outputs go to files in FOLDER. What it says about outputs is checked by the parent, which computes them itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_nvfp4.device.job import Job, KernelSpec
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.isolation.limits import apply as apply_limits
from pytest_nvfp4.toolchain.worker import contract, options
from pytest_nvfp4.toolchain.worker.findings import Finding, from_exception
from pytest_nvfp4.toolchain.worker.loading import load

_RESULT_VARIABLE = "NVFP4_RESULT_FD"


class _Stop(Exception):
    """The job cannot go on; the status and finding have been sent."""


class _Worker:
    def __init__(self, job: Job, folder: Path, events: Events) -> None:
        self._job = job
        self._folder = folder
        self._sources = folder / "source"
        self._events = events

    def _own(self, file: str) -> bool:
        return file.startswith(str(self._sources))

    def _finish(self, status: str, finding: Finding) -> None:
        self._events.send("finding", **finding.to_dict())
        self._events.send("status", status=status)
        raise _Stop

    def run(self) -> None:
        """Do the job."""
        self._events.stage("import torch")
        try:
            import torch
        except ImportError as error:
            self._finish("unavailable", Finding("environment", f"torch cannot be imported: {error}"))
            return
        from pytest_nvfp4.device.worker import describe

        why = describe.unavailable(torch)
        if why is not None:
            self._finish("unavailable", Finding("environment", f"no CUDA device: {why}"))
        info = describe.describe(torch)
        self._events.send("device", **info)
        if self._job.action == "probe":
            return
        assert self._job.kernel is not None
        needed = self._job.kernel.arch
        has = f"sm_{info['capability'][0]}{info['capability'][1]}"
        if needed.rstrip("af") != has:
            self._finish(
                "unsupported",
                Finding("device", f"the kernel is for {needed}, and {info['name']} is {has}: it cannot run its code"),
            )
        custom, prepare = self._import_kernel(self._job.kernel)
        self._act(torch, custom, prepare)

    def _import_kernel(self, kernel: KernelSpec) -> tuple[Callable[[Any], Any], Callable[[Any], Any] | None]:
        for file in kernel.files:
            path = self._sources / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
        if kernel.entry is not None:
            self._finish(
                "unsupported",
                Finding("contract", "a kernel outside GPU MODE's contract has no custom_kernel(data) to call"),
            )
        if kernel.compile_options:
            try:
                options.install(kernel.compile_options, dump_dir=self._folder)
            except (options.OptionError, ImportError) as error:
                self._finish("error", Finding("options", str(error)))
        contract.provide_task(beside=(self._sources / kernel.main).parent)
        self._events.stage("import kernel")
        try:
            module = load(self._sources / kernel.main)
        except BaseException as error:
            self._finish(
                "error", from_exception("import", f"{Path(kernel.main).name} could not be imported", error, self._own)
            )
            raise
        custom = getattr(module, "custom_kernel", None)
        if not callable(custom):
            self._finish("error", Finding("contract", f"{Path(kernel.main).name} defines no custom_kernel(data)"))
        prepare = getattr(module, "compile_kernel", None)
        assert callable(custom)
        return custom, prepare if callable(prepare) else None

    def _act(self, torch: Any, custom: Callable[[Any], Any], prepare: Callable[[Any], Any] | None) -> None:
        from pytest_nvfp4.device.worker.memory import CudaMemory, DriverError

        try:
            memory = CudaMemory()
            if self._job.action == "verify":
                from pytest_nvfp4.device.worker.verify import Verifier

                Verifier(torch, memory, self._events, self._folder).run(self._job, custom, prepare)
            else:
                from pytest_nvfp4.device.worker.benchmark import Benchmark

                Benchmark(torch, memory, self._events, self._folder).run(self._job, custom, prepare)
        except DriverError as error:
            self._finish("error", Finding("cuda", f"the device is in an error state after the kernel: {error}"))
        except BaseException as error:
            assert self._job.kernel is not None
            name = Path(self._job.kernel.main).name
            self._finish("error", from_exception("run", f"{name} failed on the device", error, self._own))


def main() -> None:
    """Do the job named on the command line, and leave without running any of the kernel's exit handlers."""
    events = Events(int(os.environ.pop(_RESULT_VARIABLE)))
    leave = os._exit
    apply_limits(dict(os.environ))
    flush = [stream.flush for stream in (sys.stdout, sys.stderr)]
    try:
        job = Job.model_validate_json(Path(sys.argv[1]).read_bytes())
        _Worker(job, Path(sys.argv[2]), events).run()
    except _Stop:
        pass
    except BaseException as error:
        events.send(
            "finding", **from_exception("internal", "the worker itself failed", error, lambda _: False).to_dict()
        )
        events.send("status", status="error")
    events.send("end")
    for one in flush:
        with contextlib.suppress(Exception):
            one()
    leave(0)


if __name__ == "__main__":
    main()
