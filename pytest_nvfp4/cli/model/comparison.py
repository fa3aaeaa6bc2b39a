"""``nvfp4 model OLD NEW``: the modelled times of two calls beside each other, and what changed on the critical path."""

from __future__ import annotations

from typing import Any

from pytest_nvfp4.bench.modelled_facts import ORIGIN, TIME, path_changes, without_path
from pytest_nvfp4.cli import call_sides
from pytest_nvfp4.cli.call_sides import CallFacts
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.model.page import NO_MEASUREMENT
from pytest_nvfp4.cli.options import RunOptions
from pytest_nvfp4.layout.launch_facts import FactChange, diff_facts
from pytest_nvfp4.report.document import Block, Column, Document, Items, Section, Styled, Table

_COLUMNS = (
    Column("problem", key="problem"),
    Column("old", "us", right=True, key="old_us"),
    Column("new", "us", right=True, key="new_us"),
    Column("difference", right=True, key="difference"),
)
_PARTS_SHOWN = 8


def compare(old: str, new: str, how: RunOptions, simulate: call_sides.Simulate) -> Document:
    """Return the modelled times of both sides.

    Raises:
        InputError: The sides cannot be read, or their times follow from different tables, models or conditions.
    """
    before, after = call_sides.both(old, new, how, simulate, kind="model")
    tolerance = after.settings.model_tolerance
    rows: list[list[str | Styled | None]] = []
    sections: list[Block] = []
    problems: list[dict[str, Any]] = []
    for name, left, right in call_sides.pairs(before, after):
        _require_comparable(old, left, new, right)
        first, second = _time(left), _time(right)
        share = None if first is None or second is None else second / first - 1
        slower = share is not None and share > tolerance
        shown = None if share is None else Styled(f"{100 * share:+.1f} %", "bad" if slower else "good")
        rows.append([name, left.facts.get(TIME), right.facts.get(TIME), shown])
        changes = [] if share is None else diff_facts(without_path(left.facts), without_path(right.facts))
        parts = [] if share is None else path_changes(left.facts, right.facts)
        sections.append(_section(name, left, right, changes, [text for _, text in parts]))
        problems.append(
            {
                "problem": name,
                "ok": share is not None and not slower,
                "is_a_measurement": False,
                "old_us": first,
                "new_us": second,
                "share": share,
                "failures": {"old": left.failure or None, "new": right.failure or None},
                "facts": [change.to_json() for change in changes],
                "path": [{"part": text, "us": us} for us, text in parts],
            }
        )
    ok = all(problem["ok"] for problem in problems)
    data = {"old": before.as_data(), "new": after.as_data(), "ok": ok, "note": NO_MEASUREMENT, "problems": problems}
    blocks = [Table(_COLUMNS, rows), *sections, Styled(NO_MEASUREMENT, "muted")]
    return Document(f"Modelled times of {old} against {new}", blocks, data, ok)


def _require_comparable(old: str, left: CallFacts, new: str, right: CallFacts) -> None:
    if left.failure or right.failure:
        return
    if other := [key for key in ORIGIN if left.header.get(key) != right.header.get(key)]:
        which = "; ".join(f"{key} {left.header.get(key, '-')} and {right.header.get(key, '-')}" for key in other)
        raise InputError(
            f"the times of {old} and {new} are of another {' and '.join(other)} ({which}): model both here, as kernels "
            "or REV:path"
        )


def _time(call: CallFacts) -> float | None:
    try:
        us = float(call.facts.get(TIME, ""))
    except ValueError:
        return None
    return us if us > 0 else None


def _section(name: str, left: CallFacts, right: CallFacts, changes: list[FactChange], parts: list[str]) -> Section:
    both = (("old", left), ("new", right))
    blocks: list[Block] = [Styled(f"{side} has no time: {call.failure}", "bad") for side, call in both if call.failure]
    if changes:
        blocks.append(Items([change.text() for change in changes]))
    if parts:
        blocks.append(Section("what changed most on the modelled critical path", [Items(parts[:_PARTS_SHOWN])]))
    return Section(f"on {name}", blocks or ["no difference"])
