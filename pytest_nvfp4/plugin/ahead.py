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
from pytest_nvfp4.text import clip, printed

_MOST_CHARACTERS = 300
_NO_JOB = "it sends no job: its kernel cannot be compiled, its result is known, or its problem is not"


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
            without: list[str] = []
            batches = [batch for file in files for batch in self._batches(file, items, without)]
            self._estimate = self._remote.estimate((batch.jobs, batch.blocks) for batch in batches).lines()
            self._estimate += [f"not counted: {printed(why)}" for why in without]
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

    def _batches(
        self, file: object, items: Sequence[CheckItem], without: list[str] | None = None
    ) -> Iterator[RemoteBatch]:
        """Yield the jobs of the items of a file; those of a check end with an exception, which its items report.

        Args:
            file: The file.
            items: The items of the run.
            without: Receives the first item of each check that has no jobs or ends with an exception, and why.
        """
        for check in self._registry:
            of_check = [item for item in items if item.parent is file and item.check is check]
            if not of_check:
                continue
            batches, sends, why = iter(check.remote_batches(of_check)), False, _NO_JOB
            while True:
                try:
                    batch = next(batches)
                except KeyboardInterrupt:
                    raise
                except StopIteration:
                    break
                except BaseException as error:  # pytest.skip raises no subclass of Exception
                    sends, why = False, clip(str(error).partition("\n")[0], _MOST_CHARACTERS) or type(error).__name__
                    break
                sends = True
                yield batch
            if without is not None and not sends:
                without.append(f"{of_check[0].nodeid}: {why}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the estimate of a dry run."""
        if self._estimate:
            terminalreporter.write_sep("-", f"nvfp4: {self._remote.request.spec}: nothing was sent")
            for line in self._estimate:
                terminalreporter.write_line(line)
