"""Reports as text: a table for a wide terminal with colour, else plain lines.

Plain lines are never wrapped or cut, so that logs, pipes and narrow windows hold complete layouts; the table folds long
cells. Changes that are left out are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_nvfp4.layout.change import Change, HeaderChange, ListingDiff, Severity
from pytest_nvfp4.report.console import PLAIN, Terminal
from pytest_nvfp4.report.model import CheckReport, Outcome, Report
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
    if not terminal.wide:
        return "\n".join(_plain(report)) + "\n"
    return terminal.render(lambda console: _rich(report, console, terminal))


def _plain(report: Report) -> Iterator[str]:
    for check in report.worst_first():
        yield _title(check)
        yield from (f"  {line}" for line in _message(check))
        if check.diff is not None:
            yield from (f"  {line}" for line in _diff_lines(check.diff, report))
            for change in check.diff.changes[:MAX_CHANGES]:
                yield f"  {_label(change, report)}"
                yield from (f"    {line}" for line in (*_explain(change), *_raws(change)))
            yield from (f"  {line}" for line in _left_out(check.diff))
        yield from (f"  {visible(fact.text())}{'  costs more' if fact.costs else ''}" for fact in check.facts)
    yield from _closing(report)


def _title(check: CheckReport) -> str:
    where = "" if check.file is None else f"  ({visible(check.file)}{f':{check.line}' if check.line else ''})"
    return f"{check.outcome.upper()} {visible(check.kernel)} {visible(check.check)}{where}"


def _message(check: CheckReport) -> list[str]:
    text = check.message.strip()
    return visible(text, multiline=True).split("\n") if text else []


def _diff_lines(diff: ListingDiff, report: Report) -> Iterator[str]:
    for item in _headers(diff):
        yield f"{visible(item.key)} {visible(item.old or 'absent')} -> {visible(item.new or 'absent')}"
    changed = ", ".join(
        f"{count} {severity.label}"
        for severity, count in reversed(diff.counts.items())
        if count and severity > Severity.IDENTICAL
    )
    same = f"{diff.identical} identical"
    if changed:
        yield f"layouts: {changed}; {same}; the gate is {report.threshold.label} and worse"
    else:
        yield f"layouts: {same}"


def _headers(diff: ListingDiff) -> Iterable[HeaderChange]:
    return (*([diff.dsl_version] if diff.dsl_version else []), *diff.header)


def _label(change: Change, report: Report) -> str:
    flags = "".join(f"  [{flag}]" for flag in _flags(change, report))
    old = f" (was {visible(change.old_name)})" if change.old_name else ""
    kind = "" if change.kind == "changed" else f"  {change.kind}"
    return f"{change.severity.label.upper():<13} {visible(change.name)}{old}{kind}{flags}"


def _flags(change: Change, report: Report) -> Iterator[str]:
    if change.error:
        yield "error"
    if report.gates(change):
        yield "gates"
    if change.protected:
        yield "protected"
    if change.unproven:
        yield "not provable"


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


def _left_out(diff: ListingDiff) -> Iterator[str]:
    rest = len(diff.changes) - MAX_CHANGES
    if rest > 0:
        worst = diff.changes[MAX_CHANGES].severity.label
        yield f"{plural(rest, 'further change')} not shown here (all at most {worst})"


def _closing(report: Report) -> Iterator[str]:
    if report.generated_with:
        yield "with " + ", ".join(f"{visible(key)} {visible(value)}" for key, value in report.generated_with.items())
    yield f"nvfp4: {report.headline}"


def _rich(report: Report, console: Console, terminal: Terminal) -> None:
    for check in report.worst_first():
        console.print(Text(_title(check), style=_OUTCOME_STYLES[check.outcome]))
        for line in _message(check):
            console.print(Text(f"  {line}"))
        if check.diff is not None:
            for line in _diff_lines(check.diff, report):
                console.print(Text(f"  {line}"))
            if check.diff.changes:
                console.print(_table(check.diff, report, terminal.table()))
            _print_raws(check.diff, report, console)
            for line in _left_out(check.diff):
                console.print(Text(f"  {line}"))
        for fact in check.facts:
            style = "yellow" if fact.costs else ""
            console.print(Text(f"  {visible(fact.text())}{'  costs more' if fact.costs else ''}", style=style))
    for line in _closing(report):
        console.print(Text(line, style="bold" if line.startswith("nvfp4:") else ""))


def _table(diff: ListingDiff, report: Report, table: Table) -> Table:
    table.add_column("severity", no_wrap=True)
    for title, ratio in (("layout", 3), ("what changed", 6), ("first difference", 4)):
        table.add_column(title, ratio=ratio, overflow="fold")
    for change in diff.changes[:MAX_CHANGES]:
        name = visible(change.name) + (f" (was {visible(change.old_name)})" if change.old_name else "")
        notes: list[str] = [] if change.kind == "changed" else [change.kind]
        notes += [flag for flag in _flags(change, report) if flag != "gates"]
        what = [visible(mode.text()) for mode in change.modes] + [visible(delta.text()) for delta in change.deltas]
        if change.error:
            what.insert(0, "error: " + visible(change.error))
        table.add_row(
            Text(change.severity.label, style=_STYLES[change.severity] + (" bold" if report.gates(change) else "")),
            Text("\n".join([name, *(f"[{note}]" for note in notes)])),
            Text("\n".join(what or [visible(reason) for reason in change.reasons])),
            Text("" if change.first is None else visible(change.first.text())),
        )
    return table


def _print_raws(diff: ListingDiff, report: Report, console: Console) -> None:
    """Print the types of changes that gate; for changes below the gate, the table's modes suffice."""
    shown = [change for change in diff.changes[:MAX_CHANGES] if report.gates(change)]
    for change in shown:
        console.print(Text(f"  {visible(change.name)}", style="bold"))
        for line in _raws(change):
            style = {"-": "red", "+": "green"}.get(line[0], "")
            console.print(Text(f"  {line}", style=style), soft_wrap=True)
    rest = len(diff.changes[:MAX_CHANGES]) - len(shown)
    if rest:
        console.print(Text(f"  types of {plural(rest, 'change')} below the gate not shown", style="dim"))
