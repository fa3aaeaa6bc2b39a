"""Look-ahead for a remote: the jobs of the run are sent while the first checks run here.

The items are known at the end of the collection. A thread traces their kernels, which every other check needs as well,
packs the jobs and sends them. An item finds its job sent, waits while it is packed, or sends it itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pytest_nvfp4.plugin.checks.base import CheckItem, RemoteBatch
from pytest_nvfp4.plugin.checks.registry import CheckRegistry, check_items
from pytest_nvfp4.plugin.remote import RemoteRun
from pytest_nvfp4.plugin.state import xdist_worker
from pytest_nvfp4.text import printed


class LookAhead:
    """A pytest plugin that sends the remote jobs of a run, file by file."""

    def __init__(self, config: pytest.Config, registry: CheckRegistry, remote: RemoteRun) -> None:
        self._config, self._registry, self._remote = config, registry, remote
        self._estimate: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Begin to send the jobs of the items."""
        if self._config.option.collectonly or xdist_worker(self._config) not in (None, "gw0"):
            return  # one test process is enough, because the broker gives all of them the same results
        if self._config.pluginmanager.hasplugin("dsession"):
            return  # the controlling process of xdist runs no items
        items = [item for item in check_items(session.items) if item.check.uses_device]
        if self._remote.request.dry:
            files = dict.fromkeys(item.parent for item in items)
            batches = [batch for file in files for batch in self._batches(file, items)]
            self._estimate = self._remote.estimate((batch.jobs, batch.blocks) for batch in batches).lines()
            if self._remote.request.options.simulates:
                self._estimate.append("only the jobs of verify are counted, not those that other checks simulate there")
            self._config.option.collectonly = True  # nothing runs, in this plugin and in others
        elif items and self._remote.unusable is not None:
            reporter = self._config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                why = printed(f"{self._remote.request.name}: {self._remote.unusable}")
                reporter.write_line(f"nvfp4: checks on a device fail, and are not sent: {why}")
        elif items:
            self._remote.expect(item.parent for item in items)
            threading.Thread(target=self._run, args=(items,), name="nvfp4-ahead", daemon=True).start()

    def _run(self, items: Sequence[CheckItem]) -> None:
        try:
            for file in dict.fromkeys(item.parent for item in items):
                for batch in self._batches(file, items):
                    with contextlib.suppress(BaseException):  # the item meets the same exception, and reports it
                        self._remote.device.send_ahead(batch.jobs, blocks=batch.blocks)
                self._remote.sent(file)
        finally:
            self._remote.sent()

    def _batches(self, file: object, items: Sequence[CheckItem]) -> Iterator[RemoteBatch]:
        """Yield the jobs of the items of a file; those of a check end with an exception, which its items report."""
        for check in self._registry:
            of_check = [item for item in items if item.parent is file and item.check is check]
            batches = iter(check.remote_batches(of_check) if of_check else ())
            while True:
                try:
                    batch = next(batches)
                except KeyboardInterrupt:
                    raise
                except BaseException:  # the end too; and pytest.skip raises no subclass of Exception
                    break
                yield batch

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the estimate of a dry run."""
        if self._estimate:
            terminalreporter.write_sep("-", f"nvfp4: {self._remote.request.spec}: nothing was sent")
            for line in self._estimate:
                terminalreporter.write_line(line)
