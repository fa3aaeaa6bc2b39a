"""Reports as text: a table for a wide terminal with colour, else plain lines.

Plain lines are never wrapped or cut, so that logs, pipes and narrow windows hold complete layouts; the table folds long
cells. Changes that are left out are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_nvfp4.layout.change import Change, ListingDiff, Severity
from pytest_nvfp4.report.console import PLAIN, Terminal
from pytest_nvfp4.report.model import Outcome, Report
from pytest_nvfp4.text import plural, visible

MAX_CHANGES = 200
"""Number of changes shown for one check; the rest is counted."""

_OUTCOME_STYLES: dict[Outcome, str] = {
    "passed": "green",
    "failed": "bold red",
    "error": "bold red",
    "skipped": "yellow",
}
_STYLES = {
    Severity.IDENTICAL: "dim",
    Severity.COSMETIC: "dim",
    Severity.RENESTED: "cyan",
    Severity.SAME_FUNCTION: "cyan",
    Severity.PERMUTED: "yellow",
    Severity.DIFFERENT: "red",
}


def render_terminal(report: Report, terminal: Terminal = PLAIN) -> str:
    """Return the report as text for a terminal: plain lines unless it is wide and coloured."""
    parts = _parts(report, terminal)
    if not terminal.wide:
        return "".join(f"{part}\n" for part in parts)

    def draw(console: Console) -> None:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))

    return terminal.render(draw)


def _parts(report: Report, terminal: Terminal) -> Iterator[Text | Table]:
    """Yield the report's lines, and if the terminal is wide, tables of changes."""
    for check in report.worst_first():
        where = f"  ({visible(check.where)})" if check.where else ""
        title = f"{check.outcome.upper()} {visible(check.kernel)} {visible(check.check)}{where}"
        yield Text(title, _OUTCOME_STYLES[check.outcome])
        if message := check.message.strip():
            yield from _indented(visible(message, multiline=True).split("\n"))
        if check.diff is not None:
            yield from _indented(_summary(check.diff, report))
            yield from _table_parts(check.diff, report, terminal) if terminal.wide else _plain(check.diff, report)
            if (rest := len(check.diff.changes) - MAX_CHANGES) > 0:
                worst = check.diff.changes[MAX_CHANGES].severity.label
                yield Text(f"  {plural(rest, 'further change')} not shown here (all at most {worst})")
        for fact in check.facts:
            text = f"  {visible(fact.text())}{'  costs more' if fact.costs else ''}"
            yield Text(text, "yellow" if fact.costs else "")
    if report.generated_with:
        versions = (f"{visible(key)} {visible(value)}" for key, value in report.generated_with.items())
        yield Text(f"with {', '.join(versions)}")
    yield Text(f"nvfp4: {report.headline}", "bold")


def _indented(lines: Iterable[str], by: int = 2) -> Iterator[Text]:
    yield from (Text(" " * by + line) for line in lines)


def _summary(diff: ListingDiff, report: Report) -> Iterator[str]:
    for item in diff.headers:
        yield f"{visible(item.key)} {visible(item.old or 'absent')} -> {visible(item.new or 'absent')}"
    changed = ", ".join(
        f"{count} {severity.label}"
        for severity, count in reversed(diff.counts.items())
        if count and severity > Severity.IDENTICAL
    )
    same = f"{diff.identical} identical"
    gate = f"the gate is {report.threshold.label} and worse"
    yield f"layouts: {changed}; {same}; {gate}" if changed else f"layouts: {same}"


def _plain(diff: ListingDiff, report: Report) -> Iterator[Text]:
    for change in diff.changes[:MAX_CHANGES]:
        flags = "".join(f"  [{flag}]" for flag in (*(["gates"] if report.gates(change) else []), *change.flags))
        kind = "" if change.kind == "changed" else f"  {change.kind}"
        yield Text(f"  {change.severity.label.upper():<13} {_name(change)}{kind}{flags}")
        yield from _indented((*_explain(change), *_raws(change)), by=4)


def _name(change: Change) -> str:
    return visible(change.name) + (f" (was {visible(change.old_name)})" if change.old_name else "")


def _explain(change: Change) -> Iterator[str]:
    if change.error:
        yield f"error: {visible(change.error)}"
    yield from (visible(reason) for reason in change.reasons)
    if change.roles:
        yield f"modes: ({', '.join(change.roles)})"
    yield from (visible(mode.text()) for mode in change.modes)
    if change.first is not None:
        yield f"first difference {visible(change.first.text())}"
    for delta in change.deltas:
        yield visible(delta.text()) + (f": {visible(delta.note)}" if delta.note else "")


def _raws(change: Change) -> Iterator[str]:
    if change.old_raw is not None and change.old_raw != change.new_raw:
        yield f"- {visible(change.old_raw)}"
    if change.new_raw is not None:
        yield f"{'+' if change.old_raw != change.new_raw else ' '} {visible(change.new_raw)}"


def _table_parts(diff: ListingDiff, report: Report, terminal: Terminal) -> Iterator[Text | Table]:
    """Yield the table of changes, and the types of those that gate; for others, the table's modes suffice."""
    shown = diff.changes[:MAX_CHANGES]
    if shown:
        yield _table(shown, report, terminal.table())
    gated = [change for change in shown if report.gates(change)]
    for change in gated:
        yield Text(f"  {visible(change.name)}", "bold")
        for line in _raws(change):
            yield Text(f"  {line}", {"-": "red", "+": "green"}.get(line[0], ""))
    if rest := len(shown) - len(gated):
        yield Text(f"  types of {plural(rest, 'change')} below the gate not shown", "dim")


def _table(changes: Iterable[Change], report: Report, table: Table) -> Table:
    table.add_column("severity", no_wrap=True)
    for title, ratio in (("layout", 3), ("what changed", 6), ("first difference", 4)):
        table.add_column(title, ratio=ratio, overflow="fold")
    for change in changes:
        notes = [*([] if change.kind == "changed" else [change.kind]), *change.flags]
        what = [visible(mode.text()) for mode in change.modes] + [visible(delta.text()) for delta in change.deltas]
        if change.error:
            what.insert(0, "error: " + visible(change.error))
        table.add_row(
            Text(change.severity.label, style=_STYLES[change.severity] + (" bold" if report.gates(change) else "")),
            Text("\n".join([_name(change), *(f"[{note}]" for note in notes)])),
            Text("\n".join(what or [visible(reason) for reason in change.reasons])),
            Text("" if change.first is None else visible(change.first.text())),
        )
    return table
