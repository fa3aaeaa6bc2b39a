"""Describe the CUDA device of this process from the driver, and make sure that it runs something."""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
from typing import Any

_NVML_DRIVER_VERSION = 96


def _driver_version() -> str | None:
    """The driver's version as nvidia-smi prints it; None where NVML is not to be had."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2():
        return None
    buffer = ctypes.create_string_buffer(_NVML_DRIVER_VERSION)
    status = nvml.nvmlSystemGetDriverVersion(buffer, ctypes.c_uint(_NVML_DRIVER_VERSION))
    nvml.nvmlShutdown()
    return None if status else buffer.value.decode()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def unavailable(torch: Any) -> str | None:
    """Why no CUDA device can be used here, or None when one ran a small piece of work.

    ``torch.cuda.is_available()`` may be true with no device, and a device may be there that this torch has no code
    for, so a few numbers are really computed on it.
    """
    try:
        if not torch.cuda.is_available():
            built = torch.version.cuda
            return "torch finds no CUDA device" + ("" if built else " (this torch was built without CUDA)")
        if torch.cuda.device_count() == 0:
            return "torch says CUDA is available, but there is no device"
        answer = int((torch.arange(8, device="cuda") * 3).sum().item())
    except Exception as error:
        return f"a first small launch failed: {type(error).__name__}: {error}"
    return None if answer == 84 else f"a first small launch computed {answer} for 84"


def describe(torch: Any, *, simulated: bool) -> dict[str, Any]:
    """The device as a DeviceInfo."""
    properties = torch.cuda.get_device_properties(0)
    uuid = getattr(properties, "uuid", None)
    return {
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "driver": None if simulated else _driver_version(),
        "simulated": simulated,
        "sms": properties.multi_processor_count,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "memory_bytes": properties.total_memory,
        "uuid": str(uuid) if uuid is not None else None,
        "torch": torch.__version__,
        "dsl": _version("nvidia-cutlass-dsl"),
        "python": platform.python_version(),
    }
