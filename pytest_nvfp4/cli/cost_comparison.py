"""``nvfp4 cost OLD NEW``: the counters of two calls beside each other."""

from __future__ import annotations

from typing import Any

from pytest_nvfp4.bench.cost import CostChange, cost_changes
from pytest_nvfp4.cli import call_sides
from pytest_nvfp4.cli.call_sides import CallFacts, CallSide
from pytest_nvfp4.cli.options import RunOptions
from pytest_nvfp4.report.document import Block, Cell, Column, Document, Section, Styled, Table

NO_TIME = "counts of what one call does, simulated; none is a time"
_COLUMNS = (
    Column("counter", code=True),
    Column("old", right=True),
    Column("new", right=True),
    Column("change", right=True),
    Column("verdict"),
)


def compare(old: str, new: str, how: RunOptions, simulate: call_sides.Simulate) -> Document:
    """Return the counters that differ. Raises InputError if the sides cannot be read or compared."""
    before, after = call_sides.both(old, new, how, simulate, kind="cost")
    blocks: list[Block] = []
    problems: list[dict[str, Any]] = []
    for name, left, right in call_sides.pairs(before, after):
        changes = _changes(left, right, after)
        blocks.append(_section(f"{old} -> {new} on {name}", left, right, changes))
        problems.append(
            {
                "problem": name,
                "ok": not (left.failure or right.failure or any(change.gates for change in changes)),
                "failures": {"old": left.failure or None, "new": right.failure or None},
                "facts": [change.change.to_json() | {"gates": change.gates} for change in changes],
            }
        )
    ok = all(problem["ok"] for problem in problems)
    data = {"old": before.as_data(), "new": after.as_data(), "ok": ok, "note": NO_TIME, "problems": problems}
    return Document(f"Costs of {old} against {new}", [*blocks, Styled(NO_TIME, "muted")], data, ok)


def _changes(left: CallFacts, right: CallFacts, new: CallSide) -> list[CostChange]:
    if left.failure or right.failure:
        return []
    return cost_changes(
        left.facts,
        right.facts,
        tolerance=new.settings.cost_tolerance,
        same_dsl=left.header.get("dsl") == right.header.get("dsl"),
        same_counts=left.header.get("counts") == right.header.get("counts"),
    )


def _section(title: str, left: CallFacts, right: CallFacts, changes: list[CostChange]) -> Section:
    both = (("old", left), ("new", right))
    if failed := [f"{side} has no counters: {call.failure}" for side, call in both if call.failure]:
        return Section(Styled(title, "bad"), [Styled(text, "bad") for text in failed])
    equal = len(right.facts) - sum(change.change.new is not None for change in changes)
    worst_first = sorted(changes, key=lambda change: not change.gates)
    table = [Table(_COLUMNS, [_row(each) for each in worst_first])] if changes else []
    bad = any(change.gates for change in changes)
    return Section(Styled(title, "bad" if bad else "good"), [*table, f"{equal} facts are equal"])


def _row(each: CostChange) -> list[Cell]:
    change = each.change
    share = "" if change.change is None else "from zero" if change.percent is None else f"{change.percent:+.1f} %"
    verdict = Styled("worse", "bad") if each.gates else "less" if (change.change or 0) < 0 else "tolerated"
    return [change.name, change.old, change.new, share, verdict]
