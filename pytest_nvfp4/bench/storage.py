"""pytest-benchmark's storage and machine information, for times that a GPU measured.

pytest-benchmark keeps one folder for each operating system and Python version, and describes the machine that pytest
runs on. Neither says which GPU measured, so there is one storage for each kind of GPU, and the devices that measured
are added to the machine's description.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.bench.mark import EXTRA_KEY

if TYPE_CHECKING:
    from pytest_nvfp4.device.result import DeviceInfo

_PROC = Path("/proc/driver/nvidia/gpus")
_FILE = "file://"


def gpu_slug(device_name: str) -> str:
    """A GPU's name as a folder's: ``NVIDIA H200`` is ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-") or "unnamed"


def gpu_storage(uri: str, device_name: str) -> str:
    """The storage of one kind of GPU below a storage; one that is not a folder (Elasticsearch) stays as it is."""
    if "://" in uri and not uri.startswith(_FILE):
        return uri
    path = uri.removeprefix(_FILE).rstrip("/") or "."
    slug = gpu_slug(device_name)
    return f"{_FILE}{path}" if path.rpartition("/")[2] == slug else f"{_FILE}{path}/{slug}"


def use_gpu_storage(config: pytest.Config, device_name: str) -> None:
    """Let pytest-benchmark store and compare below the folder of a kind of GPU.

    Call it from ``pytest_configure``: pytest-benchmark opens its storage in its own, which runs last. Without
    pytest-benchmark it does nothing.
    """
    uri = getattr(config.option, "benchmark_storage", None)
    if isinstance(uri, str):
        config.option.benchmark_storage = gpu_storage(uri, device_name)


def installed_gpu_kinds(folder: Path = _PROC) -> tuple[str, ...]:
    """The names of this machine's NVIDIA GPUs, from the driver's files, without starting any; empty for none.

    The names are those that CUDA gives.
    """
    found: set[str] = set()
    try:
        for information in folder.glob("*/information"):
            for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
                key, _, value = line.partition(":")
                if key.strip() == "Model" and value.strip():
                    found.add(value.strip())
    except OSError:
        return ()
    return tuple(sorted(found))


def describe_devices(devices: Iterable[DeviceInfo]) -> list[dict[str, Any]]:
    """The devices that measured something, each once, as JSON-compatible data."""
    unique = {device.model_dump_json(): device for device in devices}
    return [unique[key].model_dump(mode="json") for key in sorted(unique)]


class BenchmarkHooks:
    """pytest-benchmark's hooks, to be registered as a plugin by ``pytest_configure``.

    It never starts a device: it tells of those that ``note`` was called with.
    """

    def __init__(self) -> None:
        self._devices: list[DeviceInfo] = []

    def note(self, device: DeviceInfo) -> None:
        """A device measured something, or was probed."""
        self._devices.append(device)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Add the devices that are known by now to the machine that is described."""
        if self._devices:
            machine_info[EXTRA_KEY] = {"devices": describe_devices(self._devices)}

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_benchmark_compare_machine_info(
        self, machine_info: dict[str, Any], compared_benchmark: dict[str, Any]
    ) -> Generator[None, Any, Any]:
        """Keep the warning about different machines quiet on devices.

        It compares at the start, when no device has measured yet, so it would always warn. Every benchmark names its
        own device, and ``baseline.against`` refuses another.
        """
        stored = compared_benchmark.get("machine_info")
        if not isinstance(stored, dict) or EXTRA_KEY not in stored:
            return (yield)
        rest = {key: value for key, value in stored.items() if key != EXTRA_KEY}
        if EXTRA_KEY in machine_info:
            rest[EXTRA_KEY] = machine_info[EXTRA_KEY]
        compared_benchmark["machine_info"] = rest
        try:
            return (yield)
        finally:
            compared_benchmark["machine_info"] = stored

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, benchmarks: list[Any], output_json: dict[str, Any]) -> None:
        """Store the rounds of device times always, without ``--benchmark-save-data``: a verdict needs them."""
        rounds = {one.fullname: one.stats.data for one in benchmarks if one and EXTRA_KEY in (one.extra_info or {})}
        for stored in output_json.get("benchmarks", []):
            if stored.get("fullname") in rounds:
                stored["stats"].setdefault("data", list(rounds[stored["fullname"]]))
