"""pytest-benchmark's storage and machine information, for times that a GPU measured.

pytest-benchmark has one folder for each operating system and Python version, and describes the machine that pytest runs
on. Neither names the GPU, so each kind of GPU has its own storage, and the devices that measured are added to the
description of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.bench.mark import EXTRA_KEY

if TYPE_CHECKING:
    from pytest_nvfp4.device.result import DeviceInfo

_FILE = "file://"
_STORING = ("benchmark_json", "benchmark_save", "benchmark_autosave")


def gpu_slug(device_name: str) -> str:
    """Return a GPU's name as that of a folder: ``nvidia-h200`` for ``NVIDIA H200``."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-") or "unnamed"


def gpu_storage(uri: str, device_name: str) -> str:
    """Return the storage of one kind of GPU below a storage, which is unchanged if it is no folder (Elasticsearch)."""
    if "://" in uri and not uri.startswith(_FILE):
        return uri
    path = uri.removeprefix(_FILE).rstrip("/") or "."
    slug = gpu_slug(device_name)
    return f"{_FILE}{path}" if path.rpartition("/")[2] == slug else f"{_FILE}{path}/{slug}"


def use_gpu_storage(config: pytest.Config, device_name: str) -> None:
    """Make pytest-benchmark store and compare below the folder of a kind of GPU.

    It must be called from ``pytest_configure``: that of pytest-benchmark opens the storage and runs last. Without
    pytest-benchmark it does nothing.
    """
    uri = getattr(config.option, "benchmark_storage", None)
    if isinstance(uri, str):
        config.option.benchmark_storage = gpu_storage(uri, device_name)


def stores(config: pytest.Config, *, compares: bool = True) -> bool:
    """Return whether an option asks pytest-benchmark to store or, with ``compares``, to compare in this process."""
    active = config.pluginmanager.hasplugin("benchmark") and not hasattr(config, "workerinput")
    names = (*_STORING, "benchmark_compare") if compares else _STORING
    return active and any(config.getoption(name, default=None) for name in names)


def use_machine(session: Any, name: str) -> None:
    """Make pytest-benchmark's session store and load below the folder of a machine that is none of its own."""
    from pytest_benchmark.utils import load_storage

    session.machine_id = name
    session.storage = load_storage(  # type: ignore[no-untyped-call]
        session.config.getoption("benchmark_storage"),
        logger=session.logger,
        default_machine_id=name,
        netrc=session.config.getoption("benchmark_netrc"),
    )


class BenchmarkHooks:
    """Hooks of pytest-benchmark, to be registered as a plugin by ``pytest_configure``; they never start a device."""

    def __init__(self) -> None:
        self._devices: dict[str, dict[str, Any]] = {}

    def note(self, device: DeviceInfo) -> None:
        """Record a device that measured something, or was probed."""
        self._devices[device.model_dump_json()] = device.model_dump(mode="json")

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Add the recorded devices to the description of the machine."""
        if self._devices:
            machine_info[EXTRA_KEY] = {"devices": [self._devices[key] for key in sorted(self._devices)]}

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_benchmark_compare_machine_info(
        self, machine_info: dict[str, Any], compared_benchmark: dict[str, Any]
    ) -> Generator[None, Any, Any]:
        """Suppress differences of devices in the warning about different machines.

        pytest-benchmark compares at the start, when no device has measured yet, so it would always warn. Every
        benchmark names its own device, and ``baseline.against`` refuses another.
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
        """Store the rounds of device times even without ``--benchmark-save-data``: a verdict needs them."""
        rounds = {
            benchmark.fullname: benchmark.stats.data
            for benchmark in benchmarks
            if benchmark and EXTRA_KEY in (benchmark.extra_info or {})
        }
        for stored in output_json.get("benchmarks", []):
            if stored.get("fullname") in rounds:
                stored["stats"].setdefault("data", list(rounds[stored["fullname"]]))
