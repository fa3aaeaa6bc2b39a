"""Read clocks from NVML; a run says at which clocks it was measured. Source: NVML API, "Device Queries"."""

from __future__ import annotations

import ctypes

_CLOCK_SM = 1


class Nvml:
    """NVML for one device; every reading is None where NVML is not to be had."""

    def __init__(self, uuid: str | None) -> None:
        self._nvml: ctypes.CDLL | None = None
        self._device = ctypes.c_void_p()
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if nvml.nvmlInit_v2():
            return
        name = (uuid if uuid and uuid.startswith("GPU-") else f"GPU-{uuid}").encode() if uuid else None
        found = name is not None and not nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._device))
        if found or not nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(0), ctypes.byref(self._device)):
            self._nvml = nvml

    def sm_clock_mhz(self) -> int | None:
        """The SM clock now, in MHz."""
        if self._nvml is None:
            return None
        value = ctypes.c_uint()
        status = self._nvml.nvmlDeviceGetClockInfo(self._device, ctypes.c_int(_CLOCK_SM), ctypes.byref(value))
        return None if status else int(value.value)
