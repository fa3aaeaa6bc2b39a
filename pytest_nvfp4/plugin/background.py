"""Background work: traces and simulations are prepared on all cores while the first checks run.

When the items are known, threads trace their kernels and run their simulations, each in a worker process. A check waits
for the tasks that it needs, and then runs as it would alone: it requests the trace or the result, and the cache has it.
So only the order of the work changes, and nothing is run that no item of this run needs.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.plugin.checks.registry import check_items
from pytest_nvfp4.plugin.devices import DEVICES
from pytest_nvfp4.plugin.state import RUN, is_xdist_worker

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.tasks import Task, Workers


class Background:
    """A pytest plugin that does the background work of one run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._workers: Workers | None = None
        self._needs: dict[pytest.Item, list[Task]] = {}

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
        from pytest_nvfp4.plugin.planning import BackgroundPlan
        from pytest_nvfp4.plugin.tasks import Workers, default_workers

        devices = self._config.stash[DEVICES]
        threads = devices.options.jobs or default_workers()
        if threads < 2:
            return
        plan = BackgroundPlan(items, self._config.stash[RUN], devices)
        if len(plan.ordered) > 1:
            self._needs = plan.needs
            self._workers = Workers(plan.ordered, threads=threads)
            self._workers.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Wait for the tasks that the item needs."""
        if self._workers is not None:
            for task in self._needs.get(item, ()):
                self._workers.wait(task)
