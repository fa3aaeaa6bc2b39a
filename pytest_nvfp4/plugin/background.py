"""Compile and simulate what the run's checks will ask for, on all cores, while the first of them run.

Once the items are known, threads trace their kernels and run their simulations, each in its worker process. A check
waits for what is being found out for it, and then does as it does alone: it asks for the trace or the result, and finds
it at hand. So nothing but the order of work changes, and nothing is run that no item of this run needs.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.plugin.devices import DEVICES
from pytest_nvfp4.plugin.state import RUN, Case

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.tasks import Task, Workers


class Background:
    """A pytest plugin for one run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._workers: Workers | None = None
        self._needs: dict[pytest.Item, list[Task]] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Begin with the first item, and end with the last, or where the run is cut short."""
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
        # The test processes of xdist are as many as the user wants at once; its controlling process runs no items.
        if hasattr(self._config, "workerinput") or self._config.pluginmanager.hasplugin("dsession"):
            return False
        if not any(isinstance(getattr(item, "case", None), Case) for item in session.items):
            return False
        return not session.testsfailed or bool(option.continue_on_collection_errors)

    def _begin(self, items: Sequence[pytest.Item]) -> None:
        from pytest_nvfp4.plugin.planning import Plan
        from pytest_nvfp4.plugin.tasks import Workers, fitting

        devices = self._config.stash[DEVICES]
        threads = devices.options.jobs or fitting()
        if threads < 2:
            return
        plan = Plan(items, self._config.stash[RUN], devices)
        if len(plan.ordered) > 1:
            self._needs = plan.needs
            self._workers = Workers(plan.ordered, threads=threads)
            self._workers.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Wait for what the item needs."""
        if self._workers is not None:
            for task in self._needs.get(item, ()):
                self._workers.wait(task)
