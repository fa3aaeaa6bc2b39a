"""The far side: do a batch where the device is. It runs in the container, and by ``python -m`` on other machines.

Each step is a process of its own with its own deadline, so a kernel that crashes, hangs or spoils the CUDA context
ends only itself. The process that runs this never loads torch and never touches the GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from pytest_nvfp4.device.batch import CompletedJob, run_batch
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.process import run_in_worker
from pytest_nvfp4.device.remote.base import Answer, Batch, Place, RemoteError
from pytest_nvfp4.device.remote.interleave import merged, steps, together
from pytest_nvfp4.device.remote.wire import inlined, pack_answer, unpack_batch
from pytest_nvfp4.device.result import DeviceInfo, Result
from pytest_nvfp4.finding import Finding

SOURCE = Path("/nvfp4-source")
"""Below this, findings name the user's files; the near side puts the user's own folder in its place."""
_DISTRIBUTIONS = ("torch", "nvidia-cutlass-dsl", "numpy", "modal")
_CLOCK_SM = 1
_PR_SET_DUMPABLE = 4

RunJob = Callable[[Job, Path], Result]
"""Does a job; files that its result names lie in the folder."""
WORKERS = ("cuda", "sim", "host")
"""Backends of the worker process."""


def worker(backend: str) -> RunJob:
    """Runs a job where ``backend`` says.

    Args:
        backend: ``cuda`` for the GPU. The others are for tests, and their results say what they are: ``sim`` is the
            simulator and ``host`` torch on the CPU, in a worker process; ``none`` runs nothing and answers at once, so
            that what is left is the overhead of the way there and back; ``MODULE:NAME`` is a ``RunJob`` of the far
            side's own.

    Raises:
        RemoteError: it is not there.
    """
    if backend == "none":
        return _echo
    if backend not in WORKERS:
        return _foreign(backend)
    if backend == "sim" and importlib.util.find_spec("pytest_nvfp4.sim") is None:
        raise RemoteError("setup", "the far side has no simulator", "deploy the app again with NVFP4_MODAL_BACKEND=sim")
    return lambda job, folder: run_in_worker(job, backend=backend, folder=folder, base=SOURCE)


def _foreign(backend: str) -> RunJob:
    module, _, name = backend.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        known = ", ".join((*WORKERS, "none"))
        raise RemoteError("setup", f"the far side has no backend {backend!r}: {error}", f"known are {known}") from error
    assert callable(found)
    return cast(RunJob, found)


def _echo(job: Job, folder: Path) -> Result:  # noqa: ARG001
    finding = Finding(kind="device", message="this remote runs nothing: it is there to be timed")
    return Result(job=job.id, status="unavailable", findings=(finding,))


def do_batch(batch: Batch, *, run: RunJob, place: Place) -> Answer:
    """Do the jobs of a batch.

    Args:
        batch: The batch.
        run: Runs one job in a folder.
        place: Where this is.
    """
    start = time.monotonic()
    parts: list[list[Result]] = [[] for _ in batch.jobs]

    def one(job: Job) -> CompletedJob:
        with tempfile.TemporaryDirectory(prefix="nvfp4-job-") as name:
            return CompletedJob(inlined(run(job, Path(name)), Path(name)), Path(name))

    for several in together(steps(batch)):
        # Where one block of a job went wrong, the others would only cost time.
        left = [step for step in several if all(part.status == "passed" for part in parts[step.index])]
        for step, (result, _) in zip(left, run_batch([step.job for step in left], one), strict=True):
            parts[step.index].append(_refused(result, batch.capability))
    return Answer(
        batch=batch.id,
        results=tuple(merged(results) for results in parts),
        place=place,
        busy_s=round(time.monotonic() - start, 4),
    )


def _refused(result: Result, capability: tuple[int, int] | None) -> Result:
    """The result, or that it was made on another device than was asked for."""
    device = result.device
    if capability is None or device is None or device.capability == capability:
        return result
    return Result(job=result.job, status="unsupported", device=device, findings=(wrong_device(device, capability),))


def wrong_device(device: DeviceInfo, capability: tuple[int, int]) -> Finding:
    """That a device is not what was rented."""
    return Finding(
        kind="device",
        message=f"the remote has {device}, and compute capability {capability[0]}.{capability[1]} was asked for: "
        "nothing was run on it",
    )


def here(*, container: str, image: str = "", startup_s: float = 0.0) -> Place:
    """What can be said of this machine without touching a GPU's memory."""
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
    """Driver and SM clock (now, most). Source: NVML API, "Device Queries"."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, None
    if nvml.nvmlInit_v2():
        return None, None
    try:
        text = ctypes.create_string_buffer(96)
        driver = None if nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) else text.value.decode()
        device, now, most = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
        clocks = None
        if (
            not nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(0), ctypes.byref(device))
            and not nvml.nvmlDeviceGetClockInfo(device, ctypes.c_int(_CLOCK_SM), ctypes.byref(now))
            and not nvml.nvmlDeviceGetMaxClockInfo(device, ctypes.c_int(_CLOCK_SM), ctypes.byref(most))
        ):
            clocks = (int(now.value), int(most.value))
        return driver, clocks
    finally:
        nvml.nvmlShutdown()


def keep_to_itself() -> None:
    """Let no process of the same user read this one's memory and environment (prctl(2), PR_SET_DUMPABLE).

    A kernel's process gets a scrubbed environment; without this it could read ours from ``/proc``. It does not hold
    against a kernel that runs as root.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def main() -> int:
    """Do the batch on standard input and write the answer to standard output: ``python -m ...far [BACKEND]``."""
    keep_to_itself()
    backend = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    start = time.monotonic()
    try:
        batch = unpack_batch(sys.stdin.read())
    except RemoteError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    place = here(container=os.uname().nodename, startup_s=time.monotonic() - start)
    sys.stdout.write(pack_answer(do_batch(batch, run=worker(backend), place=place)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
