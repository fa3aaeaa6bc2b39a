"""Terminal summary of a run, and its HTML, Markdown, JSON and GitHub reports."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4 import __version__
from pytest_nvfp4.plugin.checks.registry import CheckRegistry
from pytest_nvfp4.plugin.recognise import overlooked
from pytest_nvfp4.plugin.record import CheckRecord
from pytest_nvfp4.plugin.state import Run
from pytest_nvfp4.text import json_text, plural, printed
from pytest_nvfp4.toolchain.sealed_files import RefusedEntry, refused_lines
from pytest_nvfp4.writing import write_whole

if TYPE_CHECKING:
    from pytest_nvfp4.report.evidence import Evidence
    from pytest_nvfp4.report.model import CheckReport, Report
    from pytest_nvfp4.report.trend import Points
    from pytest_nvfp4.settings import AcceptedFinding

_SHOWN = 30
_OUTCOMES = ("passed", "failed", "skipped")
_COUNTING = ("cost", "model")
"""Kinds of snapshots whose facts are numbers with a course."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of an item, with the item's outcome and the seconds that its call took."""

    nodeid: str
    outcome: str
    record: CheckRecord
    seconds: float


def check_report(entry: Entry, registry: CheckRegistry, *, drawn: bool = False, recorded: Points = ()) -> CheckReport:
    """Return the part of a report about an entry, with what a page draws of it if it is drawn.

    ``recorded`` are its counters of earlier runs.
    """
    from pytest_nvfp4.report.model import CheckReport

    record = entry.record
    changed = registry.differences(record)
    message = record.message
    if changed.layouts is not None or changed.facts:
        verdict, _, rest = message.partition("\n")  # reports draw the table between them from the differences
        message = "\n".join(dict.fromkeys((verdict, rest.rpartition("\n")[2] or verdict)))
    return CheckReport(
        kernel=record.kernel,
        check=record.check,
        outcome=entry.outcome if entry.outcome in _OUTCOMES else "error",  # type: ignore[arg-type]
        message=message,
        file=record.file,
        line=record.line,
        cause=record.cause,
        diff=changed.layouts,
        facts=changed.facts,
        findings=record.findings,
        values=record.values,
        established=tuple(record.established),
        seconds=entry.seconds,
        evidence=_evidence(record) if drawn else None,
        counters=_counters(record, recorded) if drawn else None,
        accepted=record.accepted,
        warnings=record.warnings,
    )


def _evidence(record: CheckRecord) -> Evidence | None:
    from pydantic import ValidationError

    from pytest_nvfp4.report.evidence import Evidence

    try:
        return Evidence.model_validate(record.evidence) if record.evidence else None
    except ValidationError:  # the path of a kernel may be no text; its checks are in the report all the same
        return None


def _counters(record: CheckRecord, recorded: Points) -> tuple[Mapping[str, str], Mapping[str, str], Points] | None:
    """Return the counters of the snapshot, those of this run, and those of earlier runs; None if it has none."""
    if record.kind not in _COUNTING or record.new is None:
        return None
    from pytest_nvfp4.toolchain.sheet import Sheet, SheetError

    try:
        before = {} if record.old is None else Sheet.parse(record.old, kind=record.kind).facts
    except SheetError:
        before = {}
    return before, Sheet.parse(record.new, kind=record.kind).facts, recorded


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the terminal summary."""

    text: str
    is_error: bool = False


@dataclass
class Summary:
    """The summary of a run.

    Attributes:
        run: Options and settings of the run.
        registry: The checks.
        unused: Snapshot files that no test compares any more.
        removed: Unused files that were removed.
        not_removed: Unused files that could not be removed, with the error.
        refused: Entries of caches that were not used, of every test process.
        unmatched: Entries of accepted findings that are about nothing.
        no_kernels: Files without a kernel that were named on the command line of a run without items.
        lines: Lines about the reports.
        commands: Workflow commands for GitHub.
        recorded: Counters of earlier runs by node id, for a page.
    """

    run: Run
    registry: CheckRegistry
    unused: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    not_removed: dict[Path, OSError] = field(default_factory=dict)
    refused: list[RefusedEntry] = field(default_factory=list)
    unmatched: list[AcceptedFinding] = field(default_factory=list)
    no_kernels: list[Path] = field(default_factory=list)
    lines: list[_Line] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    recorded: Mapping[str, Points] = field(default_factory=dict)

    def write_reports(
        self, entries: Sequence[Entry], *, environ: Mapping[str, str], remote: Mapping[str, object] | None = None
    ) -> bool:
        """Write the requested reports; return False if one could not be written.

        Args:
            entries: The records of the run.
            environ: Variables of the environment, which name GitHub's files.
            remote: What the run used of a remote (`RemoteRun.used`); None without one.
        """
        options = self.run.options
        step, actions = environ.get("GITHUB_STEP_SUMMARY"), environ.get("GITHUB_ACTIONS") == "true"
        if not (options.html or options.markdown or options.json or (entries and (step or actions))):
            return True
        try:
            absolute = self._report(entries)
            report = self._portable(absolute)
        except Exception as error:
            return self._not_written("the reports", error)
        written = []
        if options.html:
            from pytest_nvfp4.report.html import render_html

            written.append(self._write_file(options.html, lambda: render_html(report), "HTML report"))
        if options.markdown:
            from pytest_nvfp4.report.markdown import render_markdown

            written.append(self._write_file(options.markdown, lambda: render_markdown(report), "Markdown report"))
        if options.json:
            data = report.to_json() | {"remote": remote}
            written.append(self._write_file(options.json, lambda: f"{json_text(data)}\n", "JSON report"))
        if entries and step:
            written.append(self._try("the step summary", lambda: self._write_step(report, environ)))
        if entries and actions:
            written.append(self._try("the annotations", lambda: self._annotate(absolute, environ)))
        return all(written)

    def _report(self, entries: Sequence[Entry]) -> Report:
        from pytest_nvfp4.layout.change import Severity
        from pytest_nvfp4.report.model import Report
        from pytest_nvfp4.toolchain.request import installed_dsl_version

        return Report(
            [
                check_report(
                    entry,
                    self.registry,
                    drawn=self.run.options.html is not None,
                    recorded=self.recorded.get(entry.nodeid, ()),
                )
                for entry in entries
            ],
            generated_with={
                "pytest-nvfp4": __version__,
                "nvidia-cutlass-dsl": installed_dsl_version() or "not installed",
                "pytest": pytest.__version__,
            },
            threshold=Severity.parse(self.run.options.fail_on),
        )

    def _portable(self, report: Report) -> Report:
        """Return the report with files relative to the root, because it is read on other machines."""
        checks = [
            check if check.file is None else replace(check, file=self.run.relative(Path(check.file)))
            for check in report.checks
        ]
        return replace(report, checks=checks)

    def _write_file(self, path: Path, render: Callable[[], str], what: str) -> bool:
        def write() -> None:
            text = render()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
            self.lines.append(_Line(f"{what}: {path}"))

        return self._try(f"the {what} {path}", write)

    def _write_step(self, report: Report, environ: Mapping[str, str]) -> None:
        from pytest_nvfp4.report.github import write_step_summary

        if not write_step_summary(report, environ=environ):
            self.lines.append(_Line("the step summary has no room for the report; --nvfp4-html FILE writes it", True))

    def _annotate(self, report: Report, environ: Mapping[str, str]) -> None:
        from pytest_nvfp4.report.github import annotate

        root = self.run.options.root.resolve()
        workspace = Path(environ.get("GITHUB_WORKSPACE") or root).resolve()
        self.commands = annotate(report, root=workspace if root.is_relative_to(workspace) else root)

    def _try(self, what: str, write: Callable[[], None]) -> bool:
        """Write a report; return False, and record why, if it cannot be written.

        The verdicts of the checks remain, but the run fails.
        """
        try:
            write()
        except Exception as error:
            return self._not_written(what, error)
        return True

    def _not_written(self, what: str, error: Exception) -> bool:
        reason = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        self.lines.append(_Line(f"{what} could not be written: {reason}", True))
        return False

    def show(self, entries: Sequence[Entry], terminal: Any, *, nothing_ran: bool) -> None:
        """Write the terminal summary."""
        self._show_changes([entry for entry in entries if entry.outcome == "passed" and entry.record.changed], terminal)
        self._show_accepted(entries, terminal)
        self._show_unused(terminal)
        self._show_other_cache(terminal)
        for text in refused_lines(self.refused):
            terminal.write_line(printed(f"nvfp4: {text}"), yellow=True)
        if nothing_ran:
            self._show_overlooked(terminal)
        for line in self.lines:
            terminal.write_line(printed(f"nvfp4: {line.text}"), red=line.is_error)
        if self.commands:
            terminal.ensure_newline()
            for command in self.commands:
                terminal.write_line(command)

    def _show_changes(self, entries: Sequence[Entry], terminal: Any) -> None:
        """Write the changes that do not fail: those below the gate, or those that were just written."""
        if not entries:
            return
        from pytest_nvfp4.layout.change import Severity
        from pytest_nvfp4.plugin.difftext import overview

        threshold = Severity.parse(self.run.options.fail_on)
        written = self.run.options.update
        title = "changes written to the snapshots" if written else "changes below the gate (they do not fail)"
        terminal.write_sep("-", f"nvfp4: {title}")
        for entry in entries[:_SHOWN]:
            changed = self.registry.differences(entry.record)
            lines = [change.text() for change in changed.facts]
            if changed.layouts:
                lines = overview(changed.layouts, only=changed.layouts.changes, threshold=threshold)
            terminal.write_line(entry.nodeid)
            if changed.layouts and (gone := [each.name for each in changed.layouts.changes if each.kind == "removed"]):
                # Above everything else: a snapshot that lost layouts checks less from now on.
                which = ", ".join(gone[:_SHOWN]) + (f", {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else "")
                terminal.write_line(f"  {plural(len(gone), 'layout')} vanished: {which}", yellow=True)
            for line in lines[:_SHOWN]:
                terminal.write_line(f"  {line}")
            if len(lines) > _SHOWN:
                terminal.write_line(f"  ... and {len(lines) - _SHOWN} lines more; --nvfp4-html FILE writes all of them")
        if len(entries) > _SHOWN:
            terminal.write_line(f"... and {len(entries) - _SHOWN} items more; --nvfp4-html FILE writes all of them")
        terminal.write_line(
            "review them before you commit the snapshots" if written else "update the snapshots with --snapshot-update"
        )

    def _show_accepted(self, entries: Sequence[Entry], terminal: Any) -> None:
        """Write the accepted findings, each with the first item that has it, and entries that are about nothing."""
        lines: dict[str, str] = {}
        for entry in entries:
            for each in entry.record.accepted:
                lines.setdefault(each["shown"], entry.nodeid)
        if lines:
            terminal.write_sep("-", f"nvfp4: {plural(len(lines), 'accepted finding')}, which would fail otherwise")
            for line, nodeid in lines.items():
                terminal.write_line(f"{nodeid}: {line}", yellow=True)
        for unused in self.unmatched:
            why = "accepted, but not found any more: "
            if unused.expired(datetime.datetime.now(datetime.UTC).date()):
                why = f"accepted until {unused.expires}, which has passed: "
            terminal.write_line(printed(f"nvfp4: {why}{unused}; remove the entry from the settings"), yellow=True)

    def _show_unused(self, terminal: Any) -> None:
        for title, files, colour in (
            ("unused snapshots (remove them with --snapshot-update)", self.unused, "yellow"),
            ("unused snapshots removed", self.removed, "green"),
        ):
            if files:
                terminal.write_sep("-", f"nvfp4: {len(files)} {title}")
                for file in files:
                    terminal.write_line(self.run.relative(file), **{colour: True})
        for file, error in self.not_removed.items():
            terminal.write_line(f"nvfp4: {self.run.relative(file)} could not be removed: {error}", red=True)

    def _show_other_cache(self, terminal: Any) -> None:
        """Write that another folder was used because the chosen cache folder cannot be written."""
        chosen = self.run.options.cache
        if chosen is not None and chosen != (used := self.run.cache.root):
            terminal.write_line(
                f"nvfp4: --nvfp4-cache-dir {chosen} cannot be written; the cache is in {used}", yellow=True
            )

    def _show_overlooked(self, terminal: Any) -> None:
        """Write why nothing was collected: the named files contain no kernel, or kernels were not to be checked."""
        for file in self.no_kernels:
            terminal.write_line(
                f"nvfp4: {self.run.relative(file)} defines no custom_kernel(data) and imports no cutlass, so there is "
                "no kernel to check; if another function compiles a kernel with it: --nvfp4-entry FILE::FUNCTION",
                yellow=True,
            )
        if self.no_kernels:
            return
        kernels = overlooked(self.run.uncollected)
        if not kernels:
            return
        example = self.run.relative(kernels[0])
        terminal.write_line(
            f"nvfp4: {len(kernels)} file(s) define custom_kernel(data), such as {example}, and none was selected: "
            "name one on the command line, or match them with ini nvfp4_kernels",
            yellow=True,
        )
