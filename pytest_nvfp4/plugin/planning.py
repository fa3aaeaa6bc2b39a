"""Plan of the work that is done in the background: the traces, simulations and preparations that items need."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import pytest

from pytest_nvfp4.plugin.checks.base import CheckItem
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
from pytest_nvfp4.plugin.checks.registry import check_items
from pytest_nvfp4.plugin.devices import Devices
from pytest_nvfp4.plugin.state import KernelCase, Run
from pytest_nvfp4.plugin.tasks import Task


class BackgroundPlan:
    """The tasks of some items.

    Attributes:
        ordered: Traces first, because nothing else of their kernels can begin before, then the other work. Within both
            groups, large files come first, so that no long task is left for the end. A task that an item waits for
            overtakes this order.
        needs: The tasks that each item waits for.
    """

    def __init__(self, items: Sequence[pytest.Item], run: Run, devices: Devices) -> None:
        self._run = run
        self._traces: dict[Hashable, tuple[int, Task]] = {}
        self._work: dict[Hashable, tuple[int, Task]] = {}
        self.needs: dict[pytest.Item, list[Task]] = {}
        checked = [item for item in check_items(items) if not item.may_be_skipped]
        # A GPU of this machine may time kernels, so the machine must do nothing else.
        if not (any(item.check.uses_device for item in checked) and devices.local_hardware):
            for item in checked:
                self.needs[item] = self._tasks(item)
        if self._work:
            _ = devices.folder, devices.simulator  # made here, because cached properties are not safe for threads
        groups = (self._traces.values(), self._work.values())
        self.ordered = [task for group in groups for _, task in sorted(group, key=lambda sized: -sized[0])]

    def _tasks(self, item: CheckItem) -> list[Task]:
        if item.case.error is not None:
            return []
        needs = item.check.needs(item)
        traces = [self._trace(case) for case in needs.traces]
        work: list[tuple[Hashable, Callable[[], object]]] = [
            (preparation.key, preparation.work) for preparation in needs.preparations
        ]
        if needs.simulations:
            # One job simulates all cases of a configuration, so the first item's task does the work of all.
            shared = ("simulations", item.case.path, item.case.settings.name)
            work.append((shared, KernelUnderTest(item).simulated))
        tasks = []
        for key, function in work:
            if key not in self._work:
                self._work[key] = _size(item.case.path), Task(item.nodeid, function, after=traces)
            tasks.append(self._work[key][1])
        return [*traces, *tasks]

    def _trace(self, case: KernelCase) -> Task:
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
