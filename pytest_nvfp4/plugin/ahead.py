"""Send to a remote what the run will ask for, while the first checks run here.

At the end of the collection the items are known. A thread traces their kernels (the compile that every other check
needs too), packs the jobs and sends them; an item finds its job sent, or being packed, or packs it itself.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.checks import BENCHMARK, VERIFY
from pytest_nvfp4.plugin.devices import DEVICES
from pytest_nvfp4.plugin.running import DeviceCase, KernelOnDevice
from pytest_nvfp4.plugin.state import RUN

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import JobCase

_MOST_OUTPUT = 192 << 20
"""Bytes of outputs that one job may return, so that no single answer takes long to come back."""
_CALLS = 1.5
"""Calls a case, on average (``device.plan``)."""
_BLOCKS = 4
"""Turns of each kernel, where several configurations of one file are timed on a problem."""


def device_items(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The items that run a kernel on a device."""
    names = (VERIFY.name, BENCHMARK.name)
    return [
        item
        for item in items
        if isinstance(getattr(item, "case", None), DeviceCase) and item.name.partition("[")[0] in names
    ]


def chunk_of(item: pytest.Item, wanted: Sequence[JobCase], *, containers: int) -> list[JobCase]:
    """The cases that run in one job with those of a verify item, in an order that is the same for each of its items.

    One job a kernel costs one start of Python, torch and the DSL; more of them use more containers, and none returns
    too much at once.
    """
    chunks = _chunks(item, containers=containers)
    return next((chunk for chunk in chunks if set(wanted) <= set(chunk)), list(wanted))


def _chunks(item: pytest.Item, *, containers: int) -> list[list[JobCase]]:
    run = item.config.stash[RUN]
    units: list[list[JobCase]] = []
    for other in item.session.items:
        case = getattr(other, "case", None)
        same = other.parent is item.parent and other.name.partition("[")[0] == VERIFY.name
        if same and isinstance(case, DeviceCase) and case.settings == item.case.settings:  # type: ignore[attr-defined]
            units.append(KernelOnDevice(other, run, case).job_cases())
    sizes = [sum(_output_bytes(case) for case in unit) for unit in units]
    least = max(sum(sizes) / max(1, min(containers, len(units))), 1.0)
    chunks: list[list[JobCase]] = []
    held = 0.0
    for unit, size in zip(units, sizes, strict=True):
        fresh = [case for case in unit if not any(case in chunk for chunk in chunks)]
        if not chunks or held + size > min(least * 1.0001, _MOST_OUTPUT):
            chunks.append([])
            held = 0.0
        chunks[-1] += fresh
        held += size
    return [chunk for chunk in chunks if chunk]


def _output_bytes(case: JobCase) -> float:
    return _CALLS * sum(2 * m * n * l for m, n, _, l in case.problem.sizes)  # noqa: E741 - the batch's usual name


class Ahead:
    """A thread that sends the jobs of some items, file by file."""

    def __init__(self, config: pytest.Config, items: Sequence[pytest.Item]) -> None:
        self._config = config
        self._items = items
        self._sent = {item.parent: threading.Event() for item in items}

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="nvfp4-ahead", daemon=True).start()

    def wait(self, item: pytest.Item) -> None:
        """Wait until the jobs of an item's file have been sent: those of a comparison belong into one batch."""
        sent = self._sent.get(item.parent)
        while sent is not None and not sent.wait(0.5):
            pass  # in short turns, so that an interrupt ends it

    def _run(self) -> None:
        try:
            for file, sent in self._sent.items():
                self._send_file([item for item in self._items if item.parent is file])
                sent.set()
        finally:
            for sent in self._sent.values():
                sent.set()

    def _send_file(self, items: list[pytest.Item]) -> None:
        done: set[str] = set()
        for item in items:
            name = item.case.settings.name  # type: ignore[attr-defined]
            if name not in done:
                done.add(name)
                with contextlib.suppress(BaseException):  # the item will meet the same, and say it
                    self._send(item)
        with contextlib.suppress(BaseException):
            self._send_benchmarks([item for item in items if item.name.startswith(BENCHMARK.name)])

    def _send(self, item: pytest.Item) -> None:
        """The verify jobs of an item's kernel and configuration."""
        devices = self._config.stash[DEVICES]
        assert devices.remote is not None
        wanted = [other for other in self._items if other.parent is item.parent and other.name.startswith(VERIFY.name)]
        wanted = [other for other in wanted if other.case.settings == item.case.settings]  # type: ignore[attr-defined]
        device = devices.remote.device
        if not wanted or device.unsupported(item.case.settings.arch) is not None:  # type: ignore[attr-defined]
            return
        spec, _ = KernelOnDevice(wanted[0], self._config.stash[RUN], wanted[0].case).spec()  # type: ignore[attr-defined]
        from pytest_nvfp4.device.verify import verify_job

        for chunk in _chunks(wanted[0], containers=devices.remote.request.options.containers):
            device.send_ahead([verify_job(spec, chunk, deadline_s=devices.options.timeout_s)])

    def _send_benchmarks(self, items: list[pytest.Item]) -> None:
        """The benchmarks of a file in one container, those of a kernel together; several configurations in turn."""
        from pytest_nvfp4.device.job import Job
        from pytest_nvfp4.plugin import timing

        devices = self._config.stash[DEVICES]
        assert devices.remote is not None
        if not items or not timing.taken(self._config):
            return
        device, run, options = devices.remote.device, self._config.stash[RUN], devices.options
        jobs: dict[str, list[Job]] = {}
        row_key = secrets.randbits(32)
        for item in items:
            case: DeviceCase = item.case  # type: ignore[attr-defined]
            if device.unsupported(case.settings.arch) is not None:
                continue
            try:
                spec, _ = KernelOnDevice(item, run, case).spec()
            except BaseException:  # as above: another configuration may do
                continue
            job = timing.job_of(spec, case.problem, rounds=options.rounds, timeout_s=options.timeout_s, row_key=row_key)
            jobs.setdefault(case.settings.name, []).append(job)
        if jobs:
            several = [job for of_one in jobs.values() for job in of_one]
            device.send_ahead(several, blocks=_BLOCKS if len(jobs) > 1 else 1)
