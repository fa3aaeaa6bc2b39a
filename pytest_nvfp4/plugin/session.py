"""The plugin's part in the life of a run: what is noted while it goes, and what is settled at its end."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.plugin import ownership
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.ownership import Ledger
from pytest_nvfp4.plugin.recognise import named_without_kernel, overlooked
from pytest_nvfp4.plugin.record import RECORDS, CheckRecord
from pytest_nvfp4.plugin.state import RUN, Case
from pytest_nvfp4.plugin.summary import Entry, Summary

_OUTPUT = "nvfp4"
"""Under which name a test process of xdist sends its ledger, and a report carries its records."""
_CUT_SHORT = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR)


def is_worker(config: pytest.Config) -> bool:
    """Whether this is one of xdist's test processes."""
    return hasattr(config, "workerinput")


def _case(item: pytest.Item) -> Case | None:
    case = getattr(item, "case", None)
    return case if isinstance(case, Case) else None


class SessionHooks:
    """Registered as a plugin of its own, with the state of one run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._run = config.stash[RUN]
        self._ledger = Ledger()
        self._entries: list[Entry] = []
        self._workers_lost = False
        self._summary = Summary(self._run)

    # what is noted

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """An item was left out: its module is not whole."""
        self._ledger.left_out(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module was collected; one that could not be has items that nobody knows."""
        path, _, within = report.nodeid.partition("::")
        if path.endswith(".py") and not (within and report.passed):
            self._ledger.collected(self._config.rootpath / path, whole=report.passed)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """These items are to run."""
        self._ledger.to_run(session.items)
        if self._config.getoption("lf", default=False):
            # --lf drops the passed tests of a module while it is collected, and does not call them deselected
            self._ledger.partial.update(self._ledger.modules)
        if self._run.options.problems or self._run.options.entry:
            self._ledger.left_out(item for item in session.items if _case(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Attach what the checks of the item found, so that it reaches the process that reports."""
        report: Any = yield
        case = _case(item)
        records = item.stash.get(RECORDS, [])
        if records or case is not None:
            self._note_used(item)
            if report.when == "call" or not report.passed:
                setattr(report, _OUTPUT, self._records(item, case, records, report, call))
            if case is not None and report.skipped and isinstance(report.longrepr, tuple):
                report.longrepr = (str(case.path), 1, report.longrepr[2])  # not this package's line that skipped it
        return report

    def _note_used(self, item: pytest.Item) -> None:
        from pytest_nvfp4.plugin.snapshots import USED

        used: set[str] = item.stash.get(USED, set())
        self._ledger.used |= used

    def _records(
        self, item: pytest.Item, case: Case | None, records: list[CheckRecord], report: Any, call: pytest.CallInfo[None]
    ) -> list[dict[str, Any]]:
        """The item's records as plain values, the last with what was raised."""
        if not records and case is not None:
            records = [CheckRecord(self._run.relative(case.path), item.name, file=str(case.path))]
        failure = call.excinfo.value if call.excinfo is not None else None
        if failure is not None:
            last = records[-1]
            if isinstance(failure, CheckFailure):
                last.message, last.file, last.line = str(failure), failure.file, failure.line
            elif report.skipped and isinstance(report.longrepr, tuple):
                last.message = str(report.longrepr[2])
            else:
                last.message = str(report.longreprtext)
        return [record.to_dict() for record in records]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome, and what the checks found."""
        if report.when == "call" and report.passed:
            self._ledger.ok.add(report.nodeid)
        elif not report.passed:
            self._ledger.bad.add(report.nodeid)
            if report.failed:
                self._ledger.failed.add(report.nodeid)
        for record in getattr(report, _OUTPUT, ()):
            self._entries.append(Entry(report.nodeid, report.outcome, CheckRecord.from_dict(record)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A test process of xdist ended: take over what it noted."""
        data = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if data is None or error:
            self._workers_lost = True
        else:
            self._ledger.merge(data["ledger"])
            self._run.passed_over += [
                Path(path) for path in data["passed_over"] if Path(path) not in self._run.passed_over
            ]

    # what is settled

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Keep syrupy from deleting what a failed or stopped run did not get to; hand the ledger to the controller."""
        if is_worker(self._config):
            self._config.workeroutput[_OUTPUT] = {  # type: ignore[attr-defined]
                "ledger": self._ledger.to_dict(),
                "passed_over": [] if self._ledger.items else [str(path) for path in overlooked(self._run.passed_over)],
            }
        elif (self._entries or self._ledger.used) and self._run.options.find_unused:
            option = self._config.option
            option.no_cleanup = bool(self._ledger.failed) or self._stopped(session) or not self._run.options.cleanup
            option.disable_unused_snapshots = self._stopped(session)
        return (yield)

    def _stopped(self, session: pytest.Session) -> bool:
        return bool(session.shouldstop or session.shouldfail or session.exitstatus in _CUT_SHORT)

    def finish(self, session: pytest.Session) -> None:
        """Settle what is unused and write the reports, once every test process has reported."""
        if is_worker(self._config) or self._config.option.collectonly:
            return
        if self._run.options.find_unused:
            # what was set above has had its effect; syrupy's summary would now say that the user asked for it
            self._config.option.disable_unused_snapshots = False
        if not self._summary.write_reports(self._entries, environ=os.environ):
            _fail(session)
        if not self._stopped(session) and not self._workers_lost:
            self._settle_unused(session)

    def _settle_unused(self, session: pytest.Session) -> None:
        options = self._run.options
        if not options.find_unused:
            return
        found = ownership.unused(options, self._ledger, self._config.args)
        if found and options.update and options.cleanup:
            left = ownership.remove(found, options)
            self._summary.removed = [file for file in found if file not in left]
            self._summary.not_removed = left
            if left:
                _fail(session)
        else:
            self._summary.unused = found
            if found and not options.update and not options.warn_unused:
                _fail(session)

    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        """Say what changed without failing, what is unused, and what was written."""
        if not is_worker(self._config):
            nothing_ran = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
            self._summary.no_kernels = named_without_kernel(self._config) if nothing_ran else []
            self._summary.show(self._entries, terminalreporter, nothing_ran=nothing_ran)


def _fail(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


class FinishHook:
    """Runs after every other plugin has finished its session and before the terminal's summary."""

    def __init__(self, hooks: SessionHooks) -> None:
        self._hooks = hooks

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Settle the run."""
        self._hooks.finish(session)
