"""Session hooks: they record outcomes during a run, and settle unused snapshots and reports at its end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.plugin import ownership
from pytest_nvfp4.plugin.accepted import ACCEPTANCE, PROPERTY, WARNED, unmatched
from pytest_nvfp4.plugin.causes import CAUSES, causes_of
from pytest_nvfp4.plugin.checks.base import CheckItem
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
from pytest_nvfp4.plugin.checks.registry import CheckRegistry, check_items
from pytest_nvfp4.plugin.devices import DEVICES, NOT_RUN
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.ownership import Ledger
from pytest_nvfp4.plugin.recognise import named_without_kernel, overlooked
from pytest_nvfp4.plugin.record import ESTABLISHED, EVIDENCE, RECORDS, USED, VALUES, CheckRecord
from pytest_nvfp4.plugin.state import CASE, RUN, is_xdist_worker
from pytest_nvfp4.plugin.summary import Entry, Summary
from pytest_nvfp4.temporary import remove_abandoned
from pytest_nvfp4.text import plural
from pytest_nvfp4.toolchain.sealed_files import RefusedEntry

if TYPE_CHECKING:
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.settings import AcceptedFinding

_OUTPUT = "nvfp4"
"""Key of the ledger in the output of a test process of xdist, and name of the records of a report."""
_FINDINGS = 100
"""Findings of one failure that a report lists."""
_CUT_SHORT = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR)


class SessionHooks:
    """A pytest plugin with the state of one run."""

    def __init__(self, config: pytest.Config, registry: CheckRegistry) -> None:
        self._config = config
        self._registry = registry
        self._run = config.stash[RUN]
        self._ledger = Ledger()
        self._entries: list[Entry] = []
        self._positions: dict[str, int] = {}
        self._workers_lost = False
        self._unrun = 0
        self._causes = config.stash[CAUSES]
        self._summary = Summary(self._run, registry)
        known = [check.name for check in registry]
        if unknown := [name for name in self._run.options.checks if name not in known]:
            raise pytest.UsageError(f"--nvfp4-check {unknown[0]!r}: known are {', '.join(known)}")

    def pytest_sessionstart(self) -> None:
        """Read the counters of earlier runs for a page, before this run stores its own."""
        if self._run.options.html is not None and not is_xdist_worker(self._config):
            from pytest_nvfp4.plugin.recorded_runs import recorded_runs

            self._summary.recorded = recorded_runs(self._config)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Record deselected items."""
        self._ledger.deselected(items)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what ``--nvfp4-check`` does not name, and order the rest by it."""
        names = self._run.options.checks
        if not names:
            return
        ranked = [
            (names.index(item.check.name) if isinstance(item, CheckItem) and item.check.name in names else -1, item)
            for item in items
        ]
        items[:] = [item for rank, item in sorted(ranked, key=lambda pair: pair[0]) if rank >= 0]
        if left_out := [item for rank, item in ranked if rank < 0]:
            config.hook.pytest_deselected(items=left_out)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a collected module; one that could not be collected has unknown items."""
        path, _, within = report.nodeid.partition("::")
        if path.endswith(".py") and not (within and report.passed):
            self._ledger.collected(self._config.rootpath / path, whole=report.passed)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the selected items, and remove what killed runs left."""
        self._ledger.selected(session.items)
        if check_items(session.items):
            remove_abandoned()
        if self._config.getoption("lf", default=False):
            # --lf drops the passed tests of a module during collection, without calling pytest_deselected
            self._ledger.partial.update(self._ledger.modules)
        if self._run.options.problems or self._run.options.entry:
            self._ledger.deselected(check_items(session.items))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Attach the records of the item to the report, which reaches the process that writes the reports."""
        report: Any = yield
        case = item.stash.get(CASE, None)
        records = item.stash.get(RECORDS, [])
        if records or case is not None:
            used: set[str] = item.stash.get(USED, set())
            self._ledger.used |= used
            if not records and case is not None:
                records = [CheckRecord(self._run.relative(case.path), item.name, file=str(case.path))]
            if report.when == "call" or not report.passed:
                records[-1].values = item.stash.get(VALUES, {})
                records[-1].evidence = item.stash.get(EVIDENCE, {})
                if report.passed:  # a failed check may have established a part
                    established = item.stash.get(ESTABLISHED, [])
                    records[-1].established = established
                self._note_accepted(item, records[-1])
                setattr(report, _OUTPUT, self._records(item, records, report, call))
            if case is not None and report.skipped and isinstance(report.longrepr, tuple):
                report.longrepr = (
                    str(case.path),
                    1,
                    report.longrepr[2],
                )  # instead of the line of this package that skipped it
            failure = call.excinfo.value if call.excinfo is not None else None
            # Other tests show their own lines above the text, so they are not shortened.
            causes = causes_of(failure, self._run) if case is not None and isinstance(failure, CheckFailure) else []
            self._causes.attach(report, item, causes)
        return report

    @staticmethod
    def _note_accepted(item: pytest.Item, record: CheckRecord) -> None:
        """Add the accepted findings and the warnings of an item to its record, and its properties for JUnit."""
        record.warnings = item.stash.get(WARNED, [])[:_FINDINGS]
        if (acceptance := item.stash.get(ACCEPTANCE, None)) is not None:
            record.accepted = acceptance.records
            item.user_properties += [(PROPERTY, each["shown"]) for each in record.accepted]

    @staticmethod
    def _described(item: pytest.Item, findings: Sequence[Finding]) -> list[dict[str, Any]]:
        if isinstance(item, CheckItem):
            return [KernelUnderTest(item).acceptance.described(finding) for finding in findings]
        return [finding.to_dict() for finding in findings]

    def _records(
        self, item: pytest.Item, records: list[CheckRecord], report: Any, call: pytest.CallInfo[None]
    ) -> list[dict[str, Any]]:
        """Return the records as plain values; the last one gets the failure of the item."""
        failure = call.excinfo.value if call.excinfo is not None else None
        if failure is not None:
            last = records[-1]
            if isinstance(failure, CheckFailure):
                last.message, last.file, last.line = str(failure), failure.file, failure.line
                last.findings = self._described(item, failure.findings[:_FINDINGS])
            elif report.skipped and isinstance(report.longrepr, tuple):
                last.message = str(report.longrepr[2]).removeprefix("Skipped: ")  # the outcome says so
            else:
                last.message = str(report.longreprtext)
        return [asdict(record) for record in records]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome and the records of an item; group failures before other plugins show them."""
        self._causes.note_outcome(report)
        cause = "" if is_xdist_worker(self._config) else self._causes.settle(report)
        if report.when == "call" and report.passed:
            self._ledger.passed.add(report.nodeid)
        elif not report.passed:
            self._ledger.not_passed.add(report.nodeid)
            if report.failed:
                self._ledger.failed.add(report.nodeid)
        for record in getattr(report, _OUTPUT, ()):
            self._entries.append(Entry(report.nodeid, report.outcome, CheckRecord(**record), report.duration))
        if cause:
            self._entries[-1].record.message, self._entries[-1].record.cause = str(report.longrepr), cause

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Record the order of the items, in which their reports do not arrive."""
        self._positions = {nodeid: position for position, nodeid in enumerate(ids)}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Merge the ledger of a test process of xdist that ended."""
        data = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if data is None or error:
            self._workers_lost = True
        else:
            self._ledger.merge(data["ledger"])
            known = self._run.uncollected
            known += [Path(path) for path in data["uncollected"] if Path(path) not in known]
            self._summary.refused += [RefusedEntry(**entry) for entry in data["refused"]]

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Send the ledger to the controller; in the controller, settle the run after all test processes have ended.

        As the innermost wrapper it runs before and after the hooks of all plugins that are no wrappers (syrupy and
        xdist's controller), and ends before the terminal summary, which a wrapper writes.
        """
        if is_xdist_worker(self._config):
            self._config.workeroutput[_OUTPUT] = {  # type: ignore[attr-defined]
                "ledger": asdict(self._ledger),
                "uncollected": [] if self._ledger.items else [str(path) for path in overlooked(self._run.uncollected)],
                "refused": [asdict(entry) for entry in self._run.refused_entries],
            }
        elif (self._entries or self._ledger.used) and self._run.options.find_unused:
            option = self._config.option
            option.no_cleanup = bool(self._ledger.failed) or self._stopped(session) or not self._run.options.cleanup
            # Syrupy must not delete snapshots after a failed or stopped run.
            option.disable_unused_snapshots = self._stopped(session)
        if not is_xdist_worker(self._config) and not self._stopped(session):
            self._fail_unsettled(session)
        checks = check_items(getattr(session, "items", ()))
        self._unrun = sum(self._causes.outcome(item.nodeid) is None for item in checks)
        result = yield
        if not is_xdist_worker(self._config) and not self._config.option.collectonly:
            self._finish(session)
        return result

    def _fail_unsettled(self, session: pytest.Session) -> None:
        """Let the items fail that were skipped because of another one that did not fail."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        for skipped, reason in self._causes.unsettled():
            mine = [entry for entry in self._entries if entry.nodeid == skipped.nodeid]
            self._entries = [entry for entry in self._entries if entry.nodeid != skipped.nodeid]
            if terminal is not None and skipped in terminal.stats.get("skipped", []):
                terminal.stats["skipped"].remove(skipped)
            failed = pytest.TestReport(
                skipped.nodeid, skipped.location, skipped.keywords, outcome="failed", longrepr=reason, when="call"
            )
            for entry in mine:
                entry.record.message = reason
            setattr(failed, _OUTPUT, [asdict(entry.record) for entry in mine])
            self._config.hook.pytest_runtest_logreport(report=failed)
        if session.testsfailed:
            _fail(session)

    def _stopped(self, session: pytest.Session) -> bool:
        return bool(session.shouldstop or session.shouldfail or session.exitstatus in _CUT_SHORT)

    def _finish(self, session: pytest.Session) -> None:
        """Write the reports and settle unused snapshots."""
        if self._run.options.find_unused:
            # The value set above has had its effect, and syrupy's summary would show it as the user's option.
            self._config.option.disable_unused_snapshots = False
        added = self._causes.finish()
        self._entries.sort(key=lambda entry: self._positions.get(entry.nodeid, 0))
        for entry in self._entries:
            if entry.outcome == "failed" and entry.nodeid in added:
                entry.record.message += f"\n{added[entry.nodeid]}"
        remote = self._config.stash[DEVICES].remote
        used = None if remote is None else remote.used()
        if not self._summary.write_reports(self._entries, environ=os.environ, remote=used):
            _fail(session)
        if not self._stopped(session) and not self._workers_lost:
            self._settle_unused(session)
            self._summary.unmatched = self._unmatched()

    def _unmatched(self) -> list[AcceptedFinding]:
        """Return the entries of accepted findings that are about nothing: all items of their check ran to their end."""
        if not self._run.options.accepted:
            return []
        root = self._run.options.root
        ran: dict[tuple[Path, str], bool] = {}
        for entry in self._entries:
            key = (root / entry.record.kernel).resolve(), entry.record.check.partition("[")[0]
            whole = entry.outcome in ("passed", "failed") and f"{key[0]}::{key[1]}" not in self._ledger.left_out
            ran[key] = ran.get(key, True) and whole
        about = [each for (path, check), whole in ran.items() if whole for each in self._run.accepted(path, check)]
        return unmatched(about, [each for entry in self._entries for each in entry.record.accepted])

    def _settle_unused(self, session: pytest.Session) -> None:
        options = self._run.options
        if not options.find_unused:
            return
        found = ownership.unused(options, self._ledger, self._config.args, not_made=self._registry.not_made)
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

    def _summarise_checks(self, terminal: Any) -> None:
        reports = [report for outcome in ("passed", "failed", "skipped") for report in terminal.stats.get(outcome, [])]
        for check in self._registry:
            notes = [
                f"{report.nodeid}: {value}"
                for report in reports
                for name, value in getattr(report, "user_properties", ())
                if name == check.note_name and report.when == "call"
            ]
            check.summarise(terminal, notes)
        self._causes.summarise(terminal)
        reasons: Counter[str] = Counter()
        for report in terminal.stats.get("skipped", []):
            text = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
            if NOT_RUN in text:
                reasons[text.partition(NOT_RUN)[2]] += 1
        for reason, count in sorted(reasons.items()):
            checks = "1 check was" if count == 1 else f"{count} checks were"
            terminal.write_line(
                f"nvfp4: {checks} not run: {reason} (--nvfp4-require-device makes that a failure, "
                "--nvfp4-device=none leaves them out)"
            )

    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        """Write the sections of the checks, and of changes, unused snapshots and reports."""
        self._summarise_checks(terminalreporter)
        if exitstatus == pytest.ExitCode.INTERRUPTED and (self._entries or self._unrun):
            left = plural(self._unrun, "check") if self._unrun else "the checks without a result"
            terminalreporter.write_line(
                f"nvfp4: stopped: {left} did not run; their snapshots and baselines are unchanged, and nothing of them "
                "still runs"
            )
        if not is_xdist_worker(self._config):
            nothing_ran = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
            self._summary.refused += self._run.refused_entries
            self._summary.no_kernels = named_without_kernel(self._config) if nothing_ran else []
            self._summary.show(self._entries, terminalreporter, nothing_ran=nothing_ran)


def _fail(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
