"""Describe the CUDA device of this process, and check that it can run something."""

from __future__ import annotations

import platform
from typing import Any

from pytest_nvfp4.device.gpus import driver_version
from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.toolchain.surroundings import installed_version


def unavailable(torch: Any) -> str | None:
    """Return why no CUDA device can be used here, or None if one ran a small computation.

    ``torch.cuda.is_available()`` may be true without a device, and this torch may have no code for the device, so a few
    numbers are computed on it.
    """
    try:
        if not torch.cuda.is_available():
            return "torch finds no CUDA device" + ("" if torch.version.cuda else " (this torch was built without CUDA)")
        if torch.cuda.device_count() == 0:
            return "torch reports that CUDA is available, but there is no device"
        answer = int((torch.arange(8, device="cuda") * 3).sum().item())
    except Exception as error:
        return f"a small test launch failed: {type(error).__name__}: {error}"
    return None if answer == 84 else f"a small test launch computed {answer} instead of 84"


def describe_model(torch: Any, model: DeviceModel) -> dict[str, Any]:
    """Return the fields of a ``DeviceInfo`` for a simulated device."""
    return {
        "name": model.name,
        "capability": list(model.capability),
        "driver": None,
        "simulated": True,
        "sms": model.sm_count,
        "l2_bytes": model.l2_bytes,
        "memory_bytes": model.memory_bytes,
        "uuid": None,
        **_versions(torch),
    }


def describe(torch: Any, *, simulated: bool) -> dict[str, Any]:
    """Return the fields of a ``DeviceInfo``."""
    properties = torch.cuda.get_device_properties(0)
    uuid = getattr(properties, "uuid", None)
    return {
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "driver": None if simulated else driver_version(),
        "simulated": simulated,
        "sms": properties.multi_processor_count,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "memory_bytes": properties.total_memory,
        "uuid": str(uuid) if uuid is not None else None,
        **_versions(torch),
    }


def _versions(torch: Any) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "dsl": installed_version("nvidia-cutlass-dsl"),
        "python": platform.python_version(),
    }
