"""Background work: traces and simulations are prepared on all cores while the first checks run.

When the items are known, threads trace their kernels and run their simulations, each in a worker process. A check waits
for the tasks that it needs, and then runs as it would alone: it requests the trace or the result, and the cache has it.
So only the order of the work changes, and nothing is run that no item of this run needs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.plugin.checks.base import CheckItem
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
from pytest_nvfp4.plugin.checks.registry import check_items
from pytest_nvfp4.plugin.devices import DEVICES, Devices
from pytest_nvfp4.plugin.state import RUN, KernelCase, Run, is_xdist_worker
from pytest_nvfp4.plugin.tasks import Task, Workers, default_workers


class Background:
    """A pytest plugin that does the background work of one run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._workers: Workers | None = None
        self._needs: dict[pytest.Item, list[Task]] = {}

    @property
    def queued(self) -> int:
        """Number of tasks that have not begun."""
        return 0 if self._workers is None else self._workers.queued

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Begin before the first item, and end after the last one or when the run stops."""
        if self._begins(session):
            self._begin(session.items)
        try:
            return (yield)
        finally:
            if self._workers is not None:
                self._workers.stop()

    def _begins(self, session: pytest.Session) -> bool:
        option = self._config.option
        if option.collectonly or getattr(option, "setuponly", False) or getattr(option, "setupplan", False):
            return False
        # xdist runs as many test processes at once as the user requests; its controlling process runs no items.
        if is_xdist_worker(self._config) or self._config.pluginmanager.hasplugin("dsession"):
            return False
        if not check_items(session.items):
            return False
        return not session.testsfailed or bool(option.continue_on_collection_errors)

    def _begin(self, items: Sequence[pytest.Item]) -> None:
        devices = self._config.stash[DEVICES]
        local = devices.options.jobs or default_workers()
        # What a remote simulates or compiles occupies no core here, and its session bounds what is sent at once.
        threads = local + 2 * (devices.simulations_at_once or devices.traces_at_once or 0)
        if threads < 2:
            return
        plan = BackgroundPlan(items, self._config.stash[RUN], devices)
        if len(plan.ordered) > 1:
            self._needs = plan.needs
            self._workers = Workers(plan.ordered, threads=threads, local=local)
            self._workers.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Wait for the tasks that the item needs."""
        if self._workers is not None:
            for task in self._needs.get(item, ()):
                self._workers.wait(task)


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
        self._local = devices.simulations_at_once is None
        self._traces_locally = devices.traces_at_once is None
        self._traces: dict[Hashable, tuple[int, Task]] = {}
        self._work: dict[Hashable, tuple[int, Task]] = {}
        self._raced: dict[Hashable, dict[KernelCase, list[Task]]] = {}
        self.needs: dict[pytest.Item, list[Task]] = {}
        checked = [item for item in check_items(items) if not item.may_be_skipped]
        # A GPU of this machine may time kernels, so the machine must do nothing else.
        if not (any(item.check.uses_device for item in checked) and devices.local_hardware):
            for item in checked:
                self.needs[item] = self._tasks(item)
        self._order_simulations(checked)
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
            work.append((_simulations(item), partial(KernelUnderTest(item).simulated, needs.simulations[0])))
        tasks = []
        for key, function in work:
            if key not in self._work:
                task = Task(item.nodeid, function, after=traces, local=self._local)
                self._work[key] = _size(item.case.path), task
            tasks.append(self._work[key][1])
        for case in needs.raced:
            self._raced.setdefault(_simulations(item), {})[case] = tasks
        return [*traces, *tasks]

    def _order_simulations(self, items: Sequence[CheckItem]) -> None:
        """Let simulations begin after the searches for races that show the same, so that no thread waits for one."""
        for item in items:
            key = _simulations(item)
            for case in item.check.needs(item).simulations if key in self._work else ():
                task = self._work[key][1]
                task.after = [*task.after, *self._raced.get(key, {}).get(case, ())]

    def _trace(self, case: KernelCase) -> Task:
        key = (case.path, case.settings.name, case.problem)
        if key not in self._traces:
            task = Task(f"trace of {case.path.name}", lambda: self._run.trace(case), local=self._traces_locally)
            self._traces[key] = (_size(case.path), task)
        return self._traces[key][1]


def _simulations(item: CheckItem) -> Hashable:
    """Return the key of the simulations of a configuration."""
    return "simulations", item.case.path, item.case.settings.name


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
