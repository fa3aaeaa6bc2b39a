"""Reports as GitHub-flavoured Markdown, for a comment on a pull request.

A table has one row for each check; below it are one fold for each failure, and for each other check that has more to
tell. A comment holds at most 65,536 characters: rows and folds are added worst first until the limit, and the report
counts what it leaves out. All text that a kernel chose is in code spans, where GitHub expands no mention, link or HTML.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_nvfp4.layout.change import Change, Severity
from pytest_nvfp4.report.model import CheckReport, Outcome, Report
from pytest_nvfp4.text import clip, plural, visible

MARKER = "<!-- pytest-nvfp4 report -->"
"""First line of every comment, by which a bot finds the comment to update. It must never change."""
COMMENT_LIMIT = 65_536
"""Number of characters that GitHub accepts in one comment."""

_RAW_LIMIT = 4_000
_MESSAGE_LIMIT = 6_000
_STATEMENT_RESERVE = 300
_ROW_LIMIT = 400
_TABLE_SHARE = 0.4
"""Share of the limit that the table may take: the folds need the rest."""
_SIGNS: dict[Outcome, str] = {"passed": "✅", "failed": "❌", "error": "❌", "skipped": "⏭️"}


def render_markdown(report: Report, *, limit: int = COMMENT_LIMIT, marker: str | None = MARKER) -> str:
    """Return the report as one Markdown document of at most ``limit`` characters.

    Args:
        report: The report.
        limit: Limit in UTF-16 code units, of which a text never has fewer than GitHub counts.
        marker: First line; None for none.

    Returns:
        The document, or ``""`` if not even the headline fits.
    """
    page = _Page(limit=limit - _STATEMENT_RESERVE)
    if not page.add(_head(report, marker)):
        return ""
    _add_table(page, report)
    for check in report.worst_first():
        _add_fold(page, check, report)
    if page.missing:
        page.lines.append(_statement(page, limit))
    return "\n".join(page.lines).rstrip() + "\n"


@dataclass
class _Page:
    """Blocks of lines up to a limit, with a count of what did not fit."""

    limit: int
    lines: list[str] = field(default_factory=list)
    used: int = 0
    missing: dict[str, int] = field(default_factory=dict)

    def room(self, lines: Iterable[str]) -> int:
        return self.limit - self.used - _size(lines)

    def add(self, lines: list[str], *, keep_free: int = 0) -> bool:
        if self.room(lines) < keep_free:
            return False
        self.lines += lines
        self.used += _size(lines)
        return True

    def miss(self, noun: str, count: int = 1) -> None:
        if count:
            self.missing[noun] = self.missing.get(noun, 0) + count


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode("utf-16-le", "surrogatepass")) // 2 + 1 for line in lines)


def _statement(page: _Page, limit: int) -> str:
    left = ", ".join(plural(count, noun) for noun, count in page.missing.items())
    return f"\n**Left out to stay within {limit:,} characters: {left}.** The HTML and JSON reports hold everything."


def _head(report: Report, marker: str | None) -> list[str]:
    sign = "❌" if not report.ok else "✅" if report.outcomes["passed"] else "⏭️"
    lines = [marker] if marker else []
    lines += [f"## {sign} NVFP4 kernels: {report.headline}", ""]
    counted = [(severity, count) for severity, count in report.severities.items() if count]
    if counted:
        lines.append("Layouts: " + ", ".join(f"{count} {severity.label}" for severity, count in reversed(counted)))
        lines.append(f"(the gate is *{report.threshold.label}* and worse).")
        lines.append("")
    if report.generated_with:
        made = ", ".join(
            f"{code(clip(key, 60))} {code(clip(value, 200))}" for key, value in report.generated_with.items()
        )
        lines += [f"Made with {made}.", ""]
    return lines


def _add_table(page: _Page, report: Report) -> None:
    """Add one row for each check, as HTML: a cell of Markdown cannot show every text as it is."""
    if not report.checks:
        return
    opening = ["<table>", "<tr><th></th><th>kernel</th><th>check</th><th>result</th><th>seconds</th></tr>"]
    closing = ["</table>", ""]
    if not page.add(opening, keep_free=_size(closing)):
        page.miss("row", len(report.checks))
        return
    folds = round((1 - _TABLE_SHARE) * page.limit) if any(map(_is_folded, report.checks)) else 0
    checks = report.worst_first()
    for at, check in enumerate(checks):
        if not page.add([_row(check, report)], keep_free=max(folds, _size(closing))):
            page.miss("row", len(checks) - at)
            break
    page.add(closing)


def _row(check: CheckReport, report: Report) -> str:
    outline = clip(check.outline(report.threshold), _ROW_LIMIT)
    seconds = "" if check.seconds is None else f"{check.seconds:.1f}"
    cells = [
        _SIGNS[check.outcome],
        _html_code(clip(check.kernel, 200)),
        _html_code(clip(check.check, 200)),
        f"{check.outcome}{': ' + _html_code(outline) if outline else ''}",
        seconds,
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _is_folded(check: CheckReport) -> bool:
    """Return whether a check has more to tell than its row."""
    several = "\n" in check.message.strip() or len(check.message) > _ROW_LIMIT
    differs = check.diff is not None and bool(check.diff.changes or check.diff.headers)
    return check.bad or several or differs or bool(check.facts) or bool(check.accepted)


def _add_fold(page: _Page, check: CheckReport, report: Report) -> None:
    if not _is_folded(check):
        return
    worst = f", worst layout change: {check.worst.label}" if check.worst > Severity.IDENTICAL else ""
    title = f"{_SIGNS[check.outcome]} {_html_code(clip(check.kernel, 200))} {_html_code(clip(check.check, 200))}"
    changes = [] if check.diff is None else list(check.diff.changes)
    opening = [f"<details><summary>{title}: {check.outcome}{worst}</summary>", ""]
    closing = ["</details>", ""]
    if not page.add(opening, keep_free=_size(closing)):
        page.miss("check")
        page.miss("layout change", len(changes))
        return
    for block in _message(check) + _accepted(check) + _facts(check) + _header(check):
        if not page.add(block, keep_free=_size(closing)):
            page.miss("message or fact")
    for at, change in enumerate(changes):
        if not page.add(_change(change, report), keep_free=_size(closing)):
            page.miss("layout change", len(changes) - at)
            break
    page.add(closing)


def _message(check: CheckReport) -> list[list[str]]:
    text = check.message.strip()
    if not text:
        return []
    block = [f"At {code(clip(check.where, 400))}:", ""] if check.where else []
    return [[*block, *fenced(clip(visible(text, multiline=True), _MESSAGE_LIMIT), "text"), ""]]


def _accepted(check: CheckReport) -> list[list[str]]:
    return [[f"- **accepted:** {prose(clip(str(each['shown']), 600))}", ""] for each in check.accepted]


def _facts(check: CheckReport) -> list[list[str]]:
    return [
        [f"- {code(clip(fact.text(), 400))}{' **costs more**' if fact.costs else ''}", ""]
        for fact in check.changed_facts
    ]


def _header(check: CheckReport) -> list[list[str]]:
    if check.diff is None:
        return []
    lines = [
        f"- header {code(clip(item.key, 100))}: {code(clip(item.old or 'absent', 200))} → "
        f"{code(clip(item.new or 'absent', 200))}"
        for item in check.diff.headers
    ]
    return [[*lines, ""]] if lines else []


def _change(change: Change, report: Report) -> list[str]:
    note = f" ({', '.join(change.flags)})" if change.flags else ""
    role = f" · {html.escape(change.role)}" if change.role else ""
    old_name = f" (was {_html_code(clip(change.old_name, 200))})" if change.old_name else ""
    strong = "b" if report.gates(change) else "i"
    what = "" if change.kind == "changed" else f" {change.kind}"
    lines = [
        f"<details><summary><{strong}>{change.severity.label}</{strong}> {_html_code(clip(change.name, 200))}"
        f"{what}{old_name}{role}{note}</summary>",
        "",
    ]
    if change.error:
        lines.append(f"- **error:** {prose(clip(change.error, 1000))}")
    lines += [f"- {prose(clip(reason, 600))}" for reason in change.reasons]
    lines += [f"- {code(clip(mode.text(), 600))}" for mode in change.modes]
    if change.first is not None:
        lines.append(f"- first difference {code(clip(change.first.text(), 600))}")
    lines += [f"- {code(delta.text())}{': ' + prose(delta.note) if delta.note else ''}" for delta in change.deltas]
    lines += ["", *_raw_diff(change), "", "</details>", ""]
    return lines


def _raw_diff(change: Change) -> list[str]:
    text = []
    if change.old_raw is not None and change.old_raw != change.new_raw:
        text.append("- " + clip(visible(change.old_raw), _RAW_LIMIT))
    if change.new_raw is not None:
        text.append(("+ " if change.old_raw != change.new_raw else "  ") + clip(visible(change.new_raw), _RAW_LIMIT))
    return fenced("\n".join(text), "diff")


def code(text: str) -> str:
    """Return a code span that shows ``text`` exactly, including backticks, pipes and control characters."""
    shown = visible(text)
    ticks = "`" * (_longest_run(shown) + 1)
    pad = " " if not shown or shown[0] in "` " or shown[-1] in "` " else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}"


def prose(text: str) -> str:
    """Return Markdown that shows a sentence literally: no emphasis, link, HTML, mention or issue reference."""
    escaped = re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", visible(text))
    # GitHub finds mentions and references in the rendered text, so that a backslash does not prevent them. An HTML
    # comment after the sign does.
    return re.sub(r"([@#])(?=\w)", r"\1<!-- -->", escaped)


def fenced(text: str, language: str) -> list[str]:
    """Return a fenced block whose fence is longer than any in ``text``."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return [f"{fence}{language}", *text.split("\n"), fence]


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def _html_code(text: str) -> str:
    return f"<code>{html.escape(visible(text))}</code>"
