"""Reports in GitHub Actions: the step summary, and annotations of changed lines.

Limits, from GitHub's "Workflow commands" and "Annotations" reference: a step's summary holds at most 1 MiB
and is dropped entirely beyond that; a step shows at most 10 error and 10 warning annotations.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Literal

from pytest_nvfp4.report.markdown import render_markdown
from pytest_nvfp4.report.model import CheckReport, Report
from pytest_nvfp4.text import clip, plural, visible

Level = Literal["error", "warning", "notice"]

SUMMARY_LIMIT = 1024 * 1024
"""Limit on the bytes of one step's summary."""
ANNOTATIONS_PER_LEVEL = 10
"""Number of annotations of one level that GitHub shows for one step."""
_MESSAGE_LIMIT = 4_000
_TITLE_LIMIT = 200
_FACTS_SHOWN = 20


def annotation(
    level: Level, message: str, *, file: str | None = None, line: int | None = None, title: str | None = None
) -> str:
    """Return one workflow command, ``::error file=a.py,line=3,title=t::message``, without a line end.

    The message escapes ``%``, CR and LF; a property also ``:`` and ``,``, which would end it (rules of the runner), so
    that no text can start a second command or property.
    """
    properties = {"file": file, "line": None if line is None else str(line), "title": title}
    shown = ",".join(f"{key}={_property(value)}" for key, value in properties.items() if value is not None)
    return f"::{level}{' ' + shown if shown else ''}::{_data(message)}"


def _data(text: str) -> str:
    safe = visible(text, multiline=True)
    return safe.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(visible(text)).replace(":", "%3A").replace(",", "%2C")


def annotate(report: Report, *, root: Path | None = None) -> list[str]:
    """Return the workflow commands of a report: an error for each cause, a warning for changes below the gate.

    There are at most ten of each level, since GitHub silently drops further ones; the tenth then counts the rest.

    Args:
        report: The report.
        root: Folder of the repository, to which GitHub needs files to be relative.
    """
    errors = [_error(check, report, root) for check in report.worst_first() if check.bad and not check.cause]
    warnings = [line for check in report.worst_first() if not check.bad and (line := _warning(check, root)) is not None]
    return _capped(errors, "error", "failed check") + _capped(warnings, "warning", "check with layout changes")


def _error(check: CheckReport, report: Report, root: Path | None) -> str:
    verdict, _, rest = (check.message.strip() or f"{check.check} {check.outcome}").partition("\n")
    facts = [fact.text() for fact in check.changed_facts]
    lines = [verdict, *facts[:_FACTS_SHOWN]]
    if len(facts) > _FACTS_SHOWN:
        lines.append(f"and {plural(len(facts) - _FACTS_SHOWN, 'fact')} more")
    lines += [rest] if rest else []
    if check.diff is not None:
        gated = check.diff.gate(report.threshold)
        lines += [f"{change.name}: {change.severity.label}: {'; '.join(change.why)}" for change in gated]
    return _checked("error", check, "\n".join(lines), root)


def _warning(check: CheckReport, root: Path | None) -> str | None:
    if check.outcome != "passed" or check.diff is None or not check.diff.changes:
        return None
    changes = check.diff.changes
    lines = [f"{plural(len(changes), 'layout')} changed below the gate; the worst is {check.diff.worst.label}."]
    lines += [f"{change.name}: {change.severity.label}" for change in changes]
    return _checked("warning", check, "\n".join(lines), root)


def _checked(level: Level, check: CheckReport, message: str, root: Path | None) -> str:
    title = clip(f"{check.kernel} {check.check}: {check.outcome}", _TITLE_LIMIT)
    return annotation(
        level, clip(message, _MESSAGE_LIMIT), file=_relative(check.file, root), line=check.line, title=title
    )


def _relative(file: str | None, root: Path | None) -> str | None:
    if file is None or root is None:
        return file
    path = PurePath(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else file


def _capped(lines: list[str], level: Level, noun: str) -> list[str]:
    if len(lines) <= ANNOTATIONS_PER_LEVEL:
        return lines
    shown = ANNOTATIONS_PER_LEVEL - 1
    rest = len(lines) - shown
    more = annotation(level, f"{plural(rest, noun)} more; GitHub shows ten annotations a step. See the step summary.")
    return [*lines[:shown], more]


def write_step_summary(report: Report, *, environ: Mapping[str, str] | None = None) -> int:
    """Append the report to the file that ``GITHUB_STEP_SUMMARY`` names.

    The whole step shares the file, so text of other tools stays and counts. The report is shortened to what is left of
    :data:`SUMMARY_LIMIT`, and counts what it leaves out.

    Args:
        report: The report.
        environ: Environment variables; by default those of this process.

    Returns:
        Number of bytes written; 0 outside GitHub Actions, or if the file is full.

    Raises:
        OSError: The file cannot be written.
    """
    target = (os.environ if environ is None else environ).get("GITHUB_STEP_SUMMARY")
    if not target:
        return 0
    path = Path(target)
    used = path.stat().st_size if path.exists() else 0
    glue = b"\n" if used else b""
    room = SUMMARY_LIMIT - used - len(glue)
    body = fit_bytes(report, room)
    if not body:
        return 0
    with path.open("ab") as file:
        return file.write(glue + body)


def fit_bytes(report: Report, room: int) -> bytes:
    """Return the report as UTF-8 Markdown of at most ``room`` bytes; empty if not even the headline fits."""
    limit = room
    while limit > 0:
        text = render_markdown(report, limit=limit, marker=None)
        body = text.encode("utf-8")
        if len(body) <= room:
            return body
        # render_markdown limits characters, and a non-ASCII character has several bytes: lower the limit in proportion.
        limit = min(limit - 1, limit * room // len(body))
    return b""
