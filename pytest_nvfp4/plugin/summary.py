"""The end of a run: what the terminal says, and the HTML, Markdown and GitHub reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.plugin.recognise import overlooked
from pytest_nvfp4.plugin.record import CheckRecord
from pytest_nvfp4.plugin.state import Run
from pytest_nvfp4.plugin.writing import write_whole

if TYPE_CHECKING:
    from pytest_nvfp4.layout.change import ListingDiff
    from pytest_nvfp4.layout.launch_facts import FactChange
    from pytest_nvfp4.report.model import CheckReport, Report

_SHOWN = 30
_OUTCOMES = ("passed", "failed", "skipped")


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of an item, with what became of the item."""

    nodeid: str
    outcome: str
    record: CheckRecord


def differences(record: CheckRecord) -> tuple[ListingDiff | None, list[FactChange]]:
    """What is between the two texts of a record; nothing where one of them is damaged, which the check itself says."""
    if not record.kind or record.old is None or record.new is None:
        return None, []
    from pytest_nvfp4.layout.errors import LayoutError
    from pytest_nvfp4.toolchain.sheet import Sheet, SheetError

    try:
        if record.kind == "layouts":
            from pytest_nvfp4.layout.diff import diff_listings
            from pytest_nvfp4.layout.listing import Listing

            old, new = Listing.parse(record.old), Listing.parse(record.new)
            return diff_listings(old, new, protected=record.protected), []
        from pytest_nvfp4.layout.launch_facts import diff_facts

        before, after = (Sheet.parse(text, kind=record.kind).facts for text in (record.old, record.new))
        if record.kind == "cost":
            from pytest_nvfp4.bench.cost import cost_changes

            return None, [found.change for found in cost_changes(before, after)]
        return None, diff_facts(before, after)
    except (LayoutError, SheetError):
        return None, []


def check_report(entry: Entry) -> CheckReport:
    """What a report says of an entry."""
    from pytest_nvfp4.report.model import CheckReport

    record = entry.record
    diff, facts = differences(record)
    message = record.message
    if diff is not None or facts:
        verdict, _, rest = message.partition("\n")  # the table between is drawn from the diff
        message = "\n".join(dict.fromkeys((verdict, rest.rpartition("\n")[2] or verdict)))
    return CheckReport(
        kernel=record.kernel,
        check=record.check,
        outcome=entry.outcome if entry.outcome in _OUTCOMES else "error",  # type: ignore[arg-type]
        message=message,
        file=record.file,
        line=record.line,
        diff=diff,
        facts=facts,
    )


@dataclass
class Summary:
    """What is said at the end of a run.

    Attributes:
        run: The run.
        unused: Snapshot files that nothing uses.
        removed: Those that were removed.
        not_removed: Those that could not be, and why.
        no_kernels: Files that were named, though there is nothing of a kernel in them, where nothing else ran.
        lines: What writing the reports has to say: the text, and whether it is bad news.
        commands: Workflow commands for GitHub.
    """

    run: Run
    unused: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    not_removed: dict[Path, OSError] = field(default_factory=dict)
    no_kernels: list[Path] = field(default_factory=list)
    lines: list[tuple[str, bool]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    # the reports

    def write_reports(self, entries: Sequence[Entry], *, environ: Mapping[str, str]) -> bool:
        """Write every report that was asked for; False when one could not be written."""
        options = self.run.options
        step, actions = environ.get("GITHUB_STEP_SUMMARY"), environ.get("GITHUB_ACTIONS") == "true"
        wanted = options.html or options.markdown or (entries and (step or actions))
        if not wanted:
            return True
        try:
            absolute = self._report(entries)
            report = self._portable(absolute)
        except Exception as error:
            return self._broken("the reports", error)
        written = []
        if options.html:
            from pytest_nvfp4.report.html import render_html

            written.append(self._write(options.html, lambda: render_html(report), "HTML report"))
        if options.markdown:
            from pytest_nvfp4.report.markdown import render_markdown

            written.append(self._write(options.markdown, lambda: render_markdown(report), "Markdown report"))
        if entries and step:
            written.append(self._write_step(report, environ))
        if entries and actions:
            written.append(self._annotate(absolute, environ))
        return all(written)

    def _report(self, entries: Sequence[Entry]) -> Report:
        from pytest_nvfp4 import __version__
        from pytest_nvfp4.layout.change import Severity
        from pytest_nvfp4.report.model import Report
        from pytest_nvfp4.toolchain.request import installed_dsl_version

        return Report(
            [check_report(entry) for entry in entries],
            generated_with={
                "pytest-nvfp4": __version__,
                "nvidia-cutlass-dsl": installed_dsl_version() or "not installed",
                "pytest": pytest.__version__,
            },
            threshold=Severity.parse(self.run.options.fail_on),
        )

    def _portable(self, report: Report) -> Report:
        """The report with files as the user names them: it is read on other machines, where this root is nothing."""
        checks = [
            check if check.file is None else replace(check, file=self.run.relative(Path(check.file)))
            for check in report.checks
        ]
        return replace(report, checks=checks)

    def _write(self, path: Path, render: Callable[[], str], what: str) -> bool:
        try:
            text = render()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except Exception as error:
            return self._broken(f"the {what} {path}", error)
        self.lines.append((f"{what}: {path}", False))
        return True

    def _write_step(self, report: Report, environ: Mapping[str, str]) -> bool:
        from pytest_nvfp4.report.github import write_step_summary

        try:
            if not write_step_summary(report, environ=environ):
                self.lines.append(("the step summary has no room for the report; --nvfp4-html FILE writes it", True))
        except Exception as error:
            return self._broken("the step summary", error)
        return True

    def _annotate(self, report: Report, environ: Mapping[str, str]) -> bool:
        from pytest_nvfp4.report.github import annotate

        try:
            root = self.run.options.root.resolve()
            workspace = Path(environ.get("GITHUB_WORKSPACE") or root).resolve()
            self.commands = annotate(report, root=workspace if root.is_relative_to(workspace) else root)
        except Exception as error:
            return self._broken("the annotations", error)
        return True

    def _broken(self, what: str, error: Exception) -> bool:
        """A report that cannot be had is said, never raised: the checks have their verdicts. The run fails, though."""
        said = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        self.lines.append((f"{what} could not be written: {said}", True))
        return False

    # the terminal

    def show(self, entries: Sequence[Entry], terminal: Any, *, nothing_ran: bool) -> None:
        """Write the terminal's part."""
        self._show_changes([entry for entry in entries if entry.outcome == "passed" and entry.record.changed], terminal)
        self._show_unused(terminal)
        self._show_other_cache(terminal)
        if nothing_ran:
            self._show_overlooked(terminal)
        for text, bad in self.lines:
            terminal.write_line(f"nvfp4: {text}", red=bad)
        if self.commands:
            terminal.ensure_newline()
            for command in self.commands:
                terminal.write_line(command)

    def _show_changes(self, entries: Sequence[Entry], terminal: Any) -> None:
        """Changes that do not fail: those below the gate, or those that were just accepted."""
        if not entries:
            return
        from pytest_nvfp4.layout.change import Severity
        from pytest_nvfp4.plugin.difftext import overview

        threshold = Severity.parse(self.run.options.fail_on)
        written = self.run.options.update
        title = "changes written to the snapshots" if written else "changes below the gate (they do not fail)"
        terminal.write_sep("-", f"nvfp4: {title}")
        for entry in entries[:_SHOWN]:
            diff, facts = differences(entry.record)
            changes = diff.changes if diff else ()
            lines = overview(diff, only=changes, threshold=threshold) if diff else [change.text() for change in facts]
            terminal.write_line(entry.nodeid)
            for line in lines[:_SHOWN]:
                terminal.write_line(f"  {line}")
            if len(lines) > _SHOWN:
                terminal.write_line(f"  ... and {len(lines) - _SHOWN} lines more; --nvfp4-html FILE writes all of them")
        if len(entries) > _SHOWN:
            terminal.write_line(f"... and {len(entries) - _SHOWN} items more; --nvfp4-html FILE writes all of them")
        terminal.write_line(
            "look at them before you commit the snapshots"
            if written
            else "bring the snapshots up to date with --snapshot-update"
        )

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
        """The folder that the user chose cannot be written, and another was used."""
        chosen = self.run.options.cache
        if chosen is not None and chosen != (used := self.run.cache.root):
            terminal.write_line(
                f"nvfp4: --nvfp4-cache-dir {chosen} cannot be written; what was found is kept in {used}", yellow=True
            )

    def _show_overlooked(self, terminal: Any) -> None:
        """Nothing was collected: say what was named and is no kernel, or what kernels nobody was asked to check."""
        for file in self.no_kernels:
            terminal.write_line(
                f"nvfp4: {self.run.relative(file)} defines no custom_kernel(data) and imports no cutlass, so there is "
                "no kernel to check; where a function of yours compiles one with it: --nvfp4-entry FILE::FUNCTION",
                yellow=True,
            )
        if self.no_kernels:
            return
        kernels = overlooked(self.run.passed_over)
        if not kernels:
            return
        example = self.run.relative(kernels[0])
        terminal.write_line(
            f"nvfp4: {len(kernels)} file(s) define custom_kernel(data), such as {example}, and none was to be checked: "
            "name one on the command line, or cover them with ini nvfp4_kernels",
            yellow=True,
        )
