"""The plugin's part in the life of a run: what is noted while it goes, and what is written at its end."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.plugin import ownership
from pytest_nvfp4.plugin.failure import CheckFailure, CheckRecord
from pytest_nvfp4.plugin.fixtures import RECORDS
from pytest_nvfp4.plugin.ownership import Ledger
from pytest_nvfp4.plugin.snapshots import USED
from pytest_nvfp4.plugin.state import RUN

_OUTPUT = "nvfp4_ledger"
_ATTRIBUTE = "nvfp4"


def is_worker(config: pytest.Config) -> bool:
    """Whether this is one of xdist's test processes."""
    return hasattr(config, "workerinput")


class FinishHook:
    """Settles unused snapshots after every test process has reported and before the terminal's summary."""

    def __init__(self, hooks: SessionHooks) -> None:
        self._hooks = hooks

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Settle them."""
        self._hooks.settle_unused(session)


class SessionHooks:
    """Registered as a plugin of its own, with the state of one run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ledger = Ledger()
        self._reports: list[tuple[str, str, dict[str, Any]]] = []
        self._unused: list[Path] = []
        self._removed: list[Path] = []
        self._stopped = False
        self._workers_lost = False

    # what is noted

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """An item was left out: its module is not whole."""
        self._ledger.deselected.update(str(item.path) for item in items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that could not be collected has items that nobody knows."""
        if report.failed:
            path = report.nodeid.split("::")[0]
            self._ledger.incomplete.add(str((self._config.rootpath / path).resolve()))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """These items are to run."""
        self._ledger.add_items(session.items)
        lf = self._config.pluginmanager.get_plugin("lfplugin")
        if self._config.getoption("lf", default=False) and lf is not None:
            # --lf drops passed tests of a module while it is collected, without deselecting them.
            self._ledger.deselected.update(self._ledger.collected)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Attach what the checks of the item found, so that it reaches the process that reports."""
        report: Any = yield
        if USED in item.stash:
            self._ledger.used.update(item.stash[USED])
        records = item.stash.get(RECORDS, [])
        failure = call.excinfo.value if call.excinfo is not None else None
        is_check = item.get_closest_marker("nvfp4") is not None
        if report.when == "call" or (is_check and not report.passed):
            found = [record.to_dict() for record in records]
            if not found and is_check:
                run = self._config.stash[RUN]
                found = [CheckRecord(run.relative(item.path), item.name).to_dict()]
            if found and failure is not None:
                found[-1]["message"] = str(failure) if isinstance(failure, CheckFailure) else report.longreprtext
                if report.skipped and isinstance(report.longrepr, tuple):
                    found[-1]["message"] = str(report.longrepr[2])
                if isinstance(failure, CheckFailure):
                    found[-1]["file"], found[-1]["line"] = failure.file, failure.line
            if found:
                setattr(report, _ATTRIBUTE, found)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome, and what the checks found."""
        if report.when == "call" and report.passed:
            self._ledger.ok.add(report.nodeid)
        elif not report.passed:
            self._ledger.bad.add(report.nodeid)
        for record in getattr(report, _ATTRIBUTE, ()):
            self._reports.append((report.nodeid, report.outcome, record))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A test process of xdist ended: take over what it noted."""
        data = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if data is None or error:
            self._workers_lost = True
        else:
            self._ledger.merge(data)

    # what is written

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, Any, Any]:
        """Protect snapshots of what did not run, and settle which are unused."""
        self._stopped = bool(
            session.shouldstop
            or session.shouldfail
            or exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR)
        )
        option = session.config.option
        if self._ledger.bad or self._stopped:
            # syrupy would delete what a failed test did not get to compare, and call it unused after -x
            option.no_cleanup = True
            if self._stopped:
                option.disable_unused_snapshots = True
        if is_worker(session.config):
            session.config.workeroutput[_OUTPUT] = self._ledger.to_dict()  # type: ignore[attr-defined]
        return (yield)

    def settle_unused(self, session: pytest.Session) -> None:
        """Find the unused snapshots; remove them with ``--snapshot-update``, else fail the run as syrupy does."""
        config = session.config
        option = config.option
        if is_worker(config) or option.collectonly or getattr(option, "disable_unused_snapshots", False):
            return
        arguments = [str(argument) for argument in config.args]
        self._unused = ownership.unused(
            config.stash[RUN].options,
            self._ledger,
            arguments,
            base=config.invocation_params.dir,
            complete=not self._stopped and not self._workers_lost,
        )
        if self._unused and option.update_snapshots and not option.no_cleanup:
            left = ownership.remove(self._unused, config.stash[RUN].options)
            self._removed = [file for file in self._unused if file not in left]
            self._unused = left
        elif self._unused and not option.warn_unused_snapshots and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what changed without failing, what is unused, and write the reports that were asked for."""
        if is_worker(self._config):
            return
        from pytest_nvfp4.plugin import summary

        run = self._config.stash[RUN]
        for title, files, colour in (
            ("unused snapshots (remove them with --snapshot-update)", self._unused, "yellow"),
            ("unused snapshots removed", self._removed, "green"),
        ):
            if files:
                terminalreporter.write_sep("-", f"nvfp4: {len(files)} {title}")
                for file in files:
                    terminalreporter.write_line(run.relative(file), **{colour: True})
        summary.write(self._config, self._reports, terminalreporter, environ=os.environ)
