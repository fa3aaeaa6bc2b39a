"""Regions as tables: one row a region, and the times of two sources beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_nvfp4.profiler.spans import Statistics, Timeline
from pytest_nvfp4.report.document import Block, Cell, Column, Document, Styled, Table

_STEPS = "steps of the simulator are no time: they count, and say nothing of a device"


def document(title: str, timelines: Sequence[Timeline], wrong: Sequence[str] = ()) -> Document:
    """Return the page of one timeline, or of several beside each other.

    Args:
        title: The kernel or file.
        timelines: The first is shown in detail.
        wrong: What is wrong with the kernel's outputs.
    """
    blocks: list[Block] = [Styled(f"wrong result: {line}", "bad") for line in wrong]
    first = timelines[0]
    if first.spans:
        blocks += [Styled(f"{title}: {first.source}, {_time(first.extent, first)}", "strong"), _table(first)]
    else:
        blocks.append(f"{title}: {first.source}: no region was recorded: is one entered, and compiled in this session?")
    for other in timelines[1:]:
        blocks += [Styled(f"{other.source}, {_time(other.extent, other)}", "strong"), _beside(first, other)]
    blocks += [f"{timeline.source}: {problem}" for timeline in timelines for problem in timeline.problems]
    if any(timeline.unit == "steps" for timeline in timelines):
        blocks.append(Styled(_STEPS, "muted"))
    data = {"kernel": title, "wrong": list(wrong), "timelines": [as_data(timeline) for timeline in timelines]}
    return Document(f"Regions of {title}", blocks, data, not wrong and bool(first.spans))


def as_data(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as JSON-ready values."""
    return {
        "source": timeline.source,
        "unit": timeline.unit,
        "extent": timeline.extent,
        "problems": list(timeline.problems),
        "regions": [
            {
                "name": each.name,
                "count": each.count,
                "warps": each.warps,
                "total": each.total,
                "mean": each.mean,
                "min": each.least,
                "median": each.median,
                "p90": each.p90,
                "max": each.most,
            }
            for each in timeline.statistics()
        ],
    }


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f}" if unit == "steps" or value >= 1000 else f"{value:.1f}"


def _time(value: float, timeline: Timeline) -> str:
    return f"{_number(value, timeline.unit)} {timeline.unit} from the first begin to the last end"


def _table(timeline: Timeline) -> Table:
    unit = timeline.unit
    names = ("mean", "min", "median", "p90", "max", "total")
    columns = [Column("region", key="region"), Column("times", right=True), Column("warps", right=True)]
    columns += [Column(name, unit=unit, right=True, key=name) for name in names]

    def cells(each: Statistics) -> list[str]:
        values = (each.mean, each.least, each.median, each.p90, each.most, each.total)
        return [_number(value, unit) for value in values]

    rows: list[list[Cell]] = [[each.name, each.count, each.warps, *cells(each)] for each in timeline.statistics()]
    return Table(columns, rows)


def _beside(first: Timeline, other: Timeline) -> Table:
    """Return means of both; a difference only where both have the same unit."""
    own = {each.name: each for each in first.statistics()}
    theirs = {each.name: each for each in other.statistics()}
    columns = [
        Column("region", key="region"),
        Column("times", right=True),
        Column("mean", unit=other.unit, right=True, key="mean"),
        Column("total", unit=other.unit, right=True, key="total"),
        Column("difference of the mean", right=True, key="difference"),
    ]
    rows: list[list[Cell]] = []
    for name in dict.fromkeys([*own, *theirs]):
        here, there = own.get(name), theirs.get(name)
        if there is None:
            rows.append([name, 0, None, None, None])
            continue
        comparable = here is not None and first.unit == other.unit and here.mean > 0
        difference = f"{100 * (there.mean / here.mean - 1):+.0f} %" if comparable and here is not None else None
        rows.append([name, there.count, _number(there.mean, other.unit), _number(there.total, other.unit), difference])
    return Table(columns, rows)
