"""The end of a run: milder changes in the terminal, and the HTML, Markdown and GitHub reports."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.plugin.state import RUN, Run

if TYPE_CHECKING:
    from pytest_nvfp4.report.model import CheckReport, Report

Entry = tuple[str, str, Mapping[str, Any]]
"""Node id, pytest's outcome, and a CheckRecord as plain values."""


def _check_report(entry: Entry) -> CheckReport:
    from pytest_nvfp4.layout.diff import diff_listings
    from pytest_nvfp4.layout.errors import LayoutError
    from pytest_nvfp4.layout.launch_facts import diff_facts
    from pytest_nvfp4.layout.listing import Listing
    from pytest_nvfp4.report.model import CheckReport
    from pytest_nvfp4.toolchain.sheet import Sheet, SheetError

    _nodeid, outcome, record = entry
    diff, facts = None, []
    try:
        if record["kind"] == "layouts" and record["old"] and record["new"]:
            diff = diff_listings(
                Listing.parse(record["old"]), Listing.parse(record["new"]), protected=record["protected"]
            )
        elif record["kind"] and record["old"] and record["new"]:
            old, new = (Sheet.parse(record[key], kind=record["kind"]) for key in ("old", "new"))
            facts = diff_facts(old.facts, new.facts)
    except (LayoutError, SheetError, ValueError):
        diff, facts = None, []  # the check itself has said that the snapshot is damaged
    message = str(record["message"])
    if diff is not None and message:
        message = message.splitlines()[0]  # the table that follows in the text is drawn from the diff
    return CheckReport(
        kernel=str(record["kernel"]),
        check=str(record["check"]),
        outcome=outcome if outcome in ("passed", "failed", "skipped") else "error",  # type: ignore[arg-type]
        message=message,
        file=record["file"],
        line=record["line"],
        diff=diff,
        facts=facts,
    )


def _versions() -> dict[str, str]:
    from pytest_nvfp4 import __version__
    from pytest_nvfp4.toolchain.request import installed_dsl_version

    return {
        "pytest-nvfp4": __version__,
        "nvidia-cutlass-dsl": installed_dsl_version() or "not installed",
        "pytest": pytest.__version__,
    }


def build(entries: Sequence[Entry], run: Run) -> Report:
    """The report of a run."""
    from pytest_nvfp4.layout.change import Severity
    from pytest_nvfp4.report.model import Report

    return Report(
        [_check_report(entry) for entry in entries],
        generated_with=_versions(),
        threshold=Severity.parse(run.options.fail_on),
    )


def _changed(entry: Entry) -> bool:
    record = entry[2]
    return bool(record["kind"]) and record["old"] is not None and record["old"] != record["new"]


def write(config: pytest.Config, entries: Sequence[Entry], terminal: Any, *, environ: Mapping[str, str]) -> None:
    """Write everything that was asked for; nothing is loaded when there is nothing to say."""
    run = config.stash[RUN]
    options = run.options
    summary, actions = environ.get("GITHUB_STEP_SUMMARY"), environ.get("GITHUB_ACTIONS") == "true"
    mild = [entry for entry in entries if entry[1] == "passed" and _changed(entry)]
    if not config.option.update_snapshots and mild:
        _write_mild(mild, run, terminal)
    if not entries or not (options.html or options.markdown or summary or actions):
        return
    report = build(entries, run)
    if options.html:
        from pytest_nvfp4.report.html import render_html

        _write_file(options.html, render_html(report), "HTML report", terminal)
    if options.markdown:
        from pytest_nvfp4.report.markdown import render_markdown

        _write_file(options.markdown, render_markdown(report), "Markdown report", terminal)
    if summary:
        from pytest_nvfp4.report.github import write_step_summary

        try:
            write_step_summary(report, environ=environ)
        except OSError as error:
            terminal.write_line(f"nvfp4: the step summary could not be written: {error}", red=True)
    if actions:
        from pytest_nvfp4.report.github import annotate

        root = Path(environ.get("GITHUB_WORKSPACE", options.root))
        terminal.ensure_newline()
        for line in annotate(report, root=root):
            terminal.write_line(line)


def _write_mild(entries: Sequence[Entry], run: Run, terminal: Any) -> None:
    from pytest_nvfp4.report.terminal import render_terminal

    report = build(entries, run)
    shown = [check for check in report.checks if check.diff or check.facts]
    if not shown:
        return
    terminal.write_sep("-", "nvfp4: changes below the gate (they do not fail)")
    text = render_terminal(type(report)(shown, threshold=report.threshold), width=max(terminal._tw.fullwidth, 80))
    terminal.write_line(text.strip("\n"))
    terminal.write_line("refresh the snapshots with --snapshot-update")


def _write_file(path: Path, text: str, what: str, terminal: Any) -> None:
    """Write beside and rename; a failure is said, never raised: the checks have their verdicts."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            file.write(text)
        os.chmod(file.name, 0o644)  # noqa: PTH101 - a file of mkstemp is private
        Path(file.name).replace(path)
    except OSError as error:
        terminal.write_line(f"nvfp4: the {what} {path} could not be written: {error}", red=True)
    else:
        terminal.write_line(f"nvfp4: {what}: {path}")
