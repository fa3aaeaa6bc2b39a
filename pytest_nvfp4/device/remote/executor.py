"""Remote side: execute a batch where the device is, in a container or with ``python -m`` on another machine.

Each step runs in a process with its own deadline, so that a kernel that crashes, hangs or corrupts the CUDA context
ends only that process. The process of this module never loads torch and never touches the GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from pytest_nvfp4.device.batch import CompletedJob, run_batch
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.profiling.run import run_job
from pytest_nvfp4.device.remote.base import Batch, BatchResult, Place, RemoteError
from pytest_nvfp4.device.remote.schedule import group_steps, merge_results, steps
from pytest_nvfp4.device.remote.serialization import inline_blobs, pack_result, unpack_batch
from pytest_nvfp4.device.result import DeviceInfo, Result
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.temporary import temporary_folder

SOURCE = Path("/nvfp4-source")
"""Folder of the user's files in findings; the local side replaces it with the user's own folder."""
_DISTRIBUTIONS = ("torch", "nvidia-cutlass-dsl", "numpy", "modal")
_CLOCK_SM = 1  # NVML_CLOCK_SM (nvml.h)
_PR_SET_DUMPABLE = 4  # linux/prctl.h

RunJob = Callable[[Job, Path], Result]
"""Runs a job; the files of its result lie in the folder."""
BACKENDS = ("cuda", "sim", "host")
"""Backends of the worker process."""


def job_runner(backend: str) -> RunJob:
    """Return the function that runs jobs on a backend.

    Args:
        backend: ``cuda`` for the GPU. The others are for tests, and their results name them: ``sim`` is the simulator
            and ``host`` torch on the CPU, both in a worker process; ``none`` runs nothing and returns at once, which
            leaves the overhead of the transport; ``MODULE:NAME`` is a `RunJob` that is importable on the remote side.

    Raises:
        RemoteError: The backend is not available.
    """
    if backend == "none":
        return _run_nothing
    if backend not in BACKENDS:
        return _import_runner(backend)
    if backend == "sim" and importlib.util.find_spec("pytest_nvfp4.sim") is None:
        remedy = "deploy the app again with NVFP4_MODAL_GPU=none"
        raise RemoteError("setup", "the remote side has no simulator", remedy)
    return lambda job, folder: run_job(job, backend=backend, folder=folder, base=SOURCE)


def _import_runner(backend: str) -> RunJob:
    module, _, name = backend.partition(":")
    try:
        runner = getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        problem = f"the remote side has no backend {backend!r}: {error}"
        raise RemoteError("setup", problem, f"known backends: {', '.join((*BACKENDS, 'none'))}") from error
    assert callable(runner)
    return cast(RunJob, runner)


def _run_nothing(job: Job, folder: Path) -> Result:  # noqa: ARG001
    finding = Finding(kind="device", message="this backend runs nothing; it measures the overhead of the transport")
    return Result(job=job.id, status="unavailable", findings=(finding,))


def execute_batch(batch: Batch, *, run: RunJob, place: Place) -> BatchResult:
    """Execute the jobs of a batch with ``run`` on this machine, which ``place`` describes."""
    start = time.monotonic()
    parts: list[list[Result]] = [[] for _ in batch.jobs]

    def run_one(job: Job) -> CompletedJob:
        with temporary_folder("job") as name:
            return CompletedJob(inline_blobs(run(job, Path(name)), Path(name)), Path(name))

    for group in group_steps(steps(batch)):
        # After a failed block the others of the job would only cost time.
        left = [step for step in group if all(part.status == "passed" for part in parts[step.index])]
        for step, (result, _) in zip(left, run_batch([step.job for step in left], run_one), strict=True):
            parts[step.index].append(_checked_device(result, batch.capability))
    return BatchResult(
        batch=batch.id,
        results=tuple(merge_results(results) for results in parts),
        place=place,
        busy_s=round(time.monotonic() - start, 4),
    )


def _checked_device(result: Result, capability: tuple[int, int] | None) -> Result:
    """Return the result, or an unsupported one if it comes from another device than the requested one."""
    device = result.device
    if capability is None or device is None or device.capability == capability:
        return result
    return Result(job=result.job, status="unsupported", device=device, findings=(wrong_device(device, capability),))


def wrong_device(device: DeviceInfo, capability: tuple[int, int]) -> Finding:
    """Return the finding that reports another device than the requested one."""
    return Finding(
        kind="device",
        message=f"the remote has {device}, and compute capability {capability[0]}.{capability[1]} was requested: "
        "its result is rejected",
    )


def describe_place(*, container: str, image: str = "", startup_s: float = 0.0) -> Place:
    """Describe this machine without touching the memory of a GPU."""
    driver, clocks = _nvml()
    versions = {}
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    versions["python"] = ".".join(map(str, sys.version_info[:3]))
    return Place(
        container=container,
        image=image,
        driver=driver,
        clocks_mhz=clocks,
        versions=versions,
        startup_s=round(startup_s, 3),
    )


def _nvml() -> tuple[str | None, tuple[int, int] | None]:
    """Return the driver's version and the current and maximum SM clock (NVML API, "Device Queries").

    NVML needs no CUDA context, so this leaves the GPU's memory alone.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, None
    if nvml.nvmlInit_v2():
        return None, None
    try:
        text = ctypes.create_string_buffer(96)
        driver = None if nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) else text.value.decode()
        device, current, maximum = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
        clocks = None
        if (
            not nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(0), ctypes.byref(device))
            and not nvml.nvmlDeviceGetClockInfo(device, ctypes.c_int(_CLOCK_SM), ctypes.byref(current))
            and not nvml.nvmlDeviceGetMaxClockInfo(device, ctypes.c_int(_CLOCK_SM), ctypes.byref(maximum))
        ):
            clocks = (int(current.value), int(maximum.value))
        return driver, clocks
    finally:
        nvml.nvmlShutdown()


def protect_memory() -> None:
    """Keep processes of the same user from reading the memory and environment of this one (prctl(2), PR_SET_DUMPABLE).

    A kernel's process has a scrubbed environment, but could read this one's from ``/proc``. This does not stop a
    kernel that runs as root.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def main() -> int:
    """Execute the batch on standard input and write its result: ``python -m ...executor [BACKEND]``."""
    protect_memory()
    backend = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    start = time.monotonic()
    try:
        batch = unpack_batch(sys.stdin.read())
    except RemoteError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    place = describe_place(container=os.uname().nodename, startup_s=time.monotonic() - start)
    sys.stdout.write(pack_result(execute_batch(batch, run=job_runner(backend), place=place)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
