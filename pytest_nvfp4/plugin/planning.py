"""What the checks of a run will ask for, as tasks: which traces, and which simulations after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_nvfp4.plugin.checks import BENCHMARK, RACES, SIMULATED, VERIFY
from pytest_nvfp4.plugin.collector import CheckItem
from pytest_nvfp4.plugin.devices import Devices
from pytest_nvfp4.plugin.racing import KernelRaces, RaceCase
from pytest_nvfp4.plugin.running import DeviceCase, KernelOnDevice
from pytest_nvfp4.plugin.simulating import KernelInSimulator, SimulatedCase
from pytest_nvfp4.plugin.state import Case, Run
from pytest_nvfp4.plugin.tasks import Task


class Plan:
    """The tasks of some items.

    Attributes:
        ordered: Traces, since nothing else of their kernel can begin before, then what is simulated; of both those of
            large files first, so that no long one is left for the end. (What a check waits for goes before, whatever
            its place is.)
        needs: By item, what it waits for.
    """

    def __init__(self, items: Sequence[pytest.Item], run: Run, devices: Devices) -> None:
        self._run = run
        self._devices = devices
        self._traces: dict[object, tuple[int, Task]] = {}
        self._runs: dict[object, tuple[int, Task]] = {}
        self.needs: dict[pytest.Item, list[Task]] = {}
        mine = [item for item in items if isinstance(item, CheckItem) and not item.may_be_skipped]
        if not self._measures(mine):
            for item in mine:
                self.needs[item] = self._of(item)
        if self._runs:
            _ = devices.folder, devices.simulator  # made here, not by several threads at once
        groups = (self._traces.values(), self._runs.values())
        self.ordered = [task for group in groups for _, task in sorted(group, key=lambda one: -one[0])]

    def _measures(self, items: Sequence[CheckItem]) -> bool:
        """Whether a device of this machine does the work: what is timed on it must have the machine to itself."""
        if self._devices.remote is not None or not any(item.check in (VERIFY, BENCHMARK) for item in items):
            return False
        device = self._devices.device
        return not isinstance(device, str) and device is not self._devices.simulator

    def _of(self, item: CheckItem) -> list[Task]:
        case = item.case
        if case.trouble is not None or (item.check is BENCHMARK and self._devices.remote is None):
            return []  # there is nothing to trace, or nothing to time
        needed = [self._trace(self._traced(case))]
        key: object = (item.check.name, case.path, case.settings.name, case.label)
        find: Callable[[], object]
        if item.check is VERIFY and isinstance(case, DeviceCase) and self._devices.remote is None:
            key, find = (VERIFY.name, case.path, case.settings.name), KernelOnDevice(item, self._run, case).find_out
        elif item.check in SIMULATED and isinstance(case, SimulatedCase):
            key, find = (SIMULATED, case.path, case.settings.name), KernelInSimulator(item, self._run, case).find_out
        elif item.check is RACES and isinstance(case, RaceCase):
            find = KernelRaces(item, self._run, case).find_out
        else:
            return needed
        if key not in self._runs:
            self._runs[key] = _size(case.path), Task(item.nodeid, find, after=needed)
        return [*needed, self._runs[key][1]]

    def _traced(self, case: Case) -> Case:
        """The case whose trace a check of this one asks for."""
        if isinstance(case, DeviceCase):
            cases = self._run.cases(case.path, named=False)
            return next((one for one in cases if one.settings == case.settings), case)
        return (case.traced if isinstance(case, SimulatedCase | RaceCase) else None) or case

    def _trace(self, case: Case) -> Task:
        key = (case.path, case.settings.name, case.problem)
        if key not in self._traces:
            task = Task(f"trace of {case.path.name}", lambda: self._run.trace(case))
            self._traces[key] = (_size(case.path), task)
        return self._traces[key][1]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
