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


def gpu_names() -> list[str]:
    """The name of each GPU that NVML knows, such as ``NVIDIA H200``."""
    return [name for name, _ in _listed()]


def describe_gpus() -> list[str]:
    """Name, architecture and driver of each GPU that NVML knows, such as ``NVIDIA H200, sm_90, driver 580.159``."""
    return [f"{name}, {rest}" for name, rest in _listed()]


def _listed() -> list[tuple[str, str]]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    if nvml.nvmlInit_v2():
        return []
    try:
        driver = ctypes.create_string_buffer(96)
        nvml.nvmlSystemGetDriverVersion(driver, ctypes.c_uint(len(driver)))
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        found = []
        for index in range(count.value):
            device, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            major, minor = ctypes.c_int(), ctypes.c_int()
            if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)):
                continue
            nvml.nvmlDeviceGetName(device, name, ctypes.c_uint(len(name)))
            nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
            found.append((name.value.decode(), f"sm_{major.value}{minor.value}, driver {driver.value.decode()}"))
        return found
    finally:
        nvml.nvmlShutdown()


def share(gpus: list[str], worker: str | None) -> str | None:
    """The GPU of one of xdist's test processes (``gw3``), dealt out in turn; the first one without xdist."""
    if not gpus:
        return None
    digits = "".join(character for character in worker or "" if character.isdigit())
    return gpus[int(digits or 0) % len(gpus)]
