"""Select the device on which kernels run."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from pytest_nvfp4.device.base import Device, DeviceUnavailableError
from pytest_nvfp4.device.gpus import share, visible_gpus
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.sim import SimDevice

ENTRY_POINTS = "pytest_nvfp4.devices"
"""Entry point group of further devices: callables that take ``probe_folder`` and return a Device."""

BUILT_IN = ("auto", "local", "sim", "none")


def _third_party(name: str) -> Callable[..., Device] | None:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name):
        factory: Callable[..., Device] = entry.load()
        return factory
    return None


def known_names() -> list[str]:
    """Return every name that ``--nvfp4-device`` accepts."""
    return [*BUILT_IN, *sorted({entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)})]


def select(name: str, *, folder: Path, worker: str | None = None) -> Device:
    """Return the device of a name.

    Args:
        name: ``local`` (a GPU of this machine), ``sim`` (the simulator), ``auto`` (``local`` if this machine has a GPU,
            else ``sim``), ``none``, or the name of a device that another package registers.
        folder: Folder for its files.
        worker: Name of the xdist worker, which determines the GPU on a machine with several.

    Raises:
        DeviceUnavailableError: The device does not exist here; the message names the reason and the remedy.
    """
    if name == "none":
        raise DeviceUnavailableError("no device is selected (--nvfp4-device=none)")
    if name == "sim":
        return SimDevice()
    if name in ("auto", "local"):
        gpus = visible_gpus()
        if not gpus and name == "auto":
            return SimDevice()
        if not gpus:
            raise DeviceUnavailableError(
                "this machine has no NVIDIA GPU that this process may use; select --nvfp4-device=sim to simulate"
            )
        return LocalDevice(visible=share(gpus, worker), probe_folder=folder)
    factory = _third_party(name)
    if factory is None:
        raise DeviceUnavailableError(f"unknown device {name!r}; choose one of {', '.join(known_names())}")
    return factory(probe_folder=folder)
