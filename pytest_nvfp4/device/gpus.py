"""Count this machine's GPUs without touching them: NVML makes no context and starts nothing."""

from __future__ import annotations

import ctypes
import os


def visible_gpus() -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES`` may be set to, one entry a GPU that this process may use; empty without one.

    It honours a ``CUDA_VISIBLE_DEVICES`` that is already set. That a GPU is listed does not mean that it works: a
    device says so once it is asked.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [entry.strip() for entry in given.split(",") if entry.strip() and entry.strip() != "-1"]
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    if nvml.nvmlInit_v2():
        return []
    count = ctypes.c_uint()
    status = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlShutdown()
    return [] if status else [str(index) for index in range(count.value)]


def share(gpus: list[str], worker: str | None) -> str | None:
    """The GPU of one of xdist's test processes (``gw3``), dealt out in turn; the first one without xdist."""
    if not gpus:
        return None
    digits = "".join(character for character in worker or "" if character.isdigit())
    return gpus[int(digits or 0) % len(gpus)]
