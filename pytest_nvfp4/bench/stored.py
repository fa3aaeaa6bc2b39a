"""Files of pytest-benchmark with device times that were measured outside pytest, for ``--benchmark-compare``."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_nvfp4.bench.mark import EXTRA_KEY, TIMER_NAME
from pytest_nvfp4.bench.storage import gpu_storage
from pytest_nvfp4.device.result import DeviceInfo

DEFAULT_STORAGE = "file://./.benchmarks"
"""pytest-benchmark's own default."""


@dataclass(frozen=True, slots=True)
class StoredTimes:
    """Rounds of one benchmark.

    Attributes:
        nodeid: Its name, that of the item which measures the same: ``k.py::benchmark[gpumode-bench-0]``.
        rounds_us: Device time of each round, in microseconds.
        extra: What is stored beside them.
    """

    nodeid: str
    rounds_us: Sequence[float]
    extra: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return the entry, as pytest-benchmark writes one."""
        stats: Any = import_module("pytest_benchmark.stats").Stats()
        for time in self.rounds_us:
            stats.update(time / 1e6)
        return {
            "group": None,
            "name": self.nodeid.rpartition("::")[2],
            "fullname": self.nodeid,
            "params": None,
            "param": None,
            "extra_info": {EXTRA_KEY: dict(self.extra)},
            "options": {"disable_gc": False, "timer": TIMER_NAME, "warmup": False},
            "stats": stats.as_dict() | {"data": list(stats.data), "iterations": 1},
        }


class _Log:
    """The logger that pytest-benchmark's storage writes to; it keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, **_: Any) -> None:
        """Keep a line."""
        self.lines.append(text)

    warning = info


def store(times: Sequence[StoredTimes], *, device: DeviceInfo, name: str, uri: str = DEFAULT_STORAGE) -> str:
    """Save times below the folder of a GPU, as the ``benchmark`` check does, and return what was written where.

    Args:
        times: The benchmarks.
        device: The device that measured them.
        name: Name of the file, after its number.
        uri: Storage of pytest-benchmark.

    Raises:
        OSError: The file cannot be written.
    """
    # They have no annotations.
    plugin: Any = import_module("pytest_benchmark.plugin")
    utils: Any = import_module("pytest_benchmark.utils")
    log = _Log()
    with contextlib.redirect_stderr(io.StringIO()):  # git and CPU information
        storage = utils.load_storage(
            gpu_storage(uri, device.name), logger=log, default_machine_id=utils.get_machine_id(), netrc=None
        )
        machine = plugin.pytest_benchmark_generate_machine_info() | {
            EXTRA_KEY: {"devices": [device.model_dump(mode="json")]}
        }
        commit = utils.get_commit_info(Path.cwd().name)
    storage.save(
        {
            "machine_info": machine,
            "commit_info": commit,
            "benchmarks": [one.as_dict() for one in times],
            "datetime": datetime.now(UTC).isoformat(),
            "version": plugin.__version__,
        },
        name,
    )
    return log.lines[-1] if log.lines else str(storage)
