"""The NVIDIA GPUs of this machine, through NVML, which creates no CUDA context. Source: NVML API, "Device Queries"."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_VERSION_BYTES = 96
_NAME_BYTES = 96
_CLOCK_SM = 1
_THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}
"""``nvmlClocksEventReason...`` that make a measurement worthless. A power limit under load belongs to the GPU."""


@contextmanager
def _nvml() -> Iterator[ctypes.CDLL | None]:
    """Initialise NVML for a ``with`` block; None if there is no NVIDIA driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        yield None
        return
    if nvml.nvmlInit_v2():
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _count(nvml: ctypes.CDLL) -> int:
    count = ctypes.c_uint()
    return 0 if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) else count.value


def visible_gpus() -> list[str]:
    """Return the values of ``CUDA_VISIBLE_DEVICES`` that select one GPU each that this process may use.

    A ``CUDA_VISIBLE_DEVICES`` that is already set is respected. A listed GPU need not work; running a job on it shows
    that.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [entry.strip() for entry in given.split(",") if entry.strip() and entry.strip() != "-1"]
    with _nvml() as nvml:
        return [] if nvml is None else [str(index) for index in range(_count(nvml))]


class _Gpu(NamedTuple):
    name: str
    arch: str


def gpu_names() -> list[str]:
    """Return the name of each GPU, such as ``NVIDIA H200``."""
    return [gpu.name for gpu in _gpus()]


def describe_gpus() -> list[str]:
    """Return the name, architecture and driver of each GPU, such as ``NVIDIA H200, sm_90, driver 580.159``."""
    driver = driver_version() or ""
    return [f"{gpu.name}, {gpu.arch}, driver {driver}" for gpu in _gpus()]


def driver_version() -> str | None:
    """Return the driver's version as nvidia-smi prints it; None without a driver."""
    with _nvml() as nvml:
        buffer = ctypes.create_string_buffer(_VERSION_BYTES)
        if nvml is None or nvml.nvmlSystemGetDriverVersion(buffer, ctypes.c_uint(_VERSION_BYTES)):
            return None
        return buffer.value.decode()


def _gpus() -> list[_Gpu]:
    gpus = []
    with _nvml() as nvml:
        for index in range(_count(nvml) if nvml is not None else 0):
            assert nvml is not None
            device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
            major, minor = ctypes.c_int(), ctypes.c_int()
            if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)):
                continue
            nvml.nvmlDeviceGetName(device, name, ctypes.c_uint(_NAME_BYTES))
            nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
            gpus.append(_Gpu(name.value.decode(), f"sm_{major.value}{minor.value}"))
    return gpus


class GpuState(NamedTuple):
    """What else happens on a GPU; None for what NVML does not say.

    Attributes:
        processes: Processes that use it.
        utilisation: Per cent of the last sample period in which a kernel ran.
        throttled: Reasons why its clocks are low, but for idleness and the power limit.
        sm_mhz: SM clock, and its maximum.
    """

    processes: int | None = None
    utilisation: int | None = None
    throttled: tuple[str, ...] = ()
    sm_mhz: tuple[int, int] | None = None


def gpu_state(visible: str) -> GpuState:
    """Return the state of the GPU that an entry of ``CUDA_VISIBLE_DEVICES`` names: an index or a UUID."""
    with _nvml() as nvml:
        device = ctypes.c_void_p()
        if nvml is None:
            return GpuState()
        if visible.isdigit():
            status = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(visible)), ctypes.byref(device))
        else:
            status = nvml.nvmlDeviceGetHandleByUUID(visible.encode(), ctypes.byref(device))
        if status:
            return GpuState()
        count, reasons = ctypes.c_uint(0), ctypes.c_ulonglong()
        # Without room for the processes, NVML reports their number and NVML_ERROR_INSUFFICIENT_SIZE (7), or success.
        known = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), None) in (0, 7)
        rates = (ctypes.c_uint * 2)()
        used = None if nvml.nvmlDeviceGetUtilizationRates(device, rates) else min(100, rates[0])
        failed = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device, ctypes.byref(reasons))
        throttled = () if failed else tuple(text for bit, text in _THROTTLES.items() if reasons.value & bit)
        now, most = ctypes.c_uint(), ctypes.c_uint()
        clock = None
        if not nvml.nvmlDeviceGetClockInfo(
            device, ctypes.c_int(_CLOCK_SM), ctypes.byref(now)
        ) and not nvml.nvmlDeviceGetMaxClockInfo(device, ctypes.c_int(_CLOCK_SM), ctypes.byref(most)):
            clock = (int(now.value), int(most.value))
        return GpuState(count.value if known else None, used, throttled, clock)


def share(gpus: list[str], worker: str | None) -> str | None:
    """Return the GPU of one of xdist's workers (``gw3``), assigned in turn; the first one without xdist."""
    if not gpus:
        return None
    digits = "".join(character for character in worker or "" if character.isdigit())
    return gpus[int(digits or 0) % len(gpus)]


class SmClock:
    """The SM clock of one GPU. NVML stays initialised, because a benchmark reads the clock between its rounds.

    The GPU is that of a UUID, or the first one if NVML does not know it.
    """

    def __init__(self, uuid: str | None) -> None:
        self._device = ctypes.c_void_p()
        self._session = _nvml()
        self._nvml = self._session.__enter__()
        if self._nvml is None:
            return
        name = (uuid if uuid.startswith("GPU-") else f"GPU-{uuid}").encode() if uuid else None
        found = name is not None and not self._nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._device))
        if not found and self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(0), ctypes.byref(self._device)):
            self._nvml = None

    def mhz(self) -> int | None:
        """Return the clock now, in MHz; None if it cannot be read."""
        if self._nvml is None:
            return None
        value = ctypes.c_uint()
        status = self._nvml.nvmlDeviceGetClockInfo(self._device, ctypes.c_int(_CLOCK_SM), ctypes.byref(value))
        return None if status else int(value.value)
