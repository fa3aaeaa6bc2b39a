"""Counters of a call against their snapshot, with their course over recorded runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from pytest_nvfp4.bench.cost import as_number
from pytest_nvfp4.report.chart import Chart
from pytest_nvfp4.report.trend import Points, change_text, number_text, values_of

_WIDTH, _HEIGHT = 132.0, 26.0
_NOW = "this run"


@dataclass(frozen=True, slots=True)
class CounterRow:
    """A counter: its name, its value in the snapshot and now, the change in words, and its course or nothing."""

    name: str
    before: str
    now: str
    change: str
    course: Markup | None


def counter_rows(before: Mapping[str, str], now: Mapping[str, str], history: Points) -> list[CounterRow]:
    """Return the counters of a call, those that differ from the snapshot first.

    Args:
        before: Those of the snapshot; empty without one.
        now: Those of this run.
        history: Those of earlier runs, the oldest first.
    """
    numbers = {name: value for name, text in now.items() if (value := _number(text)) is not None}
    points = [*history, (_NOW, numbers)]
    rows = [
        CounterRow(name, old, new, _change(old, new), _course(points, name))
        for name in dict.fromkeys([*now, *before])
        for old, new in [(before.get(name, ""), now.get(name, ""))]
    ]
    return sorted(rows, key=lambda row: not row.change)


def _course(points: Points, name: str) -> Markup | None:
    """Return the course of a counter as a small drawing; None with fewer than two values."""
    found = zip(points, values_of(points, name), strict=True)
    known = [(label, value) for (label, _), value in found if value is not None]
    if len(known) < 2:
        return None
    values = [value for _, value in known]
    low, span = min(values), max(values) - min(values)
    title = ", ".join(f"{label}: {number_text(value)}" for label, value in known)
    chart = Chart(width=_WIDTH, height=_HEIGHT, title=title)
    step = (_WIDTH - 8) / (len(values) - 1)
    places = [
        (4 + at * step, _HEIGHT - 5 - ((value - low) / span if span else 0.5) * (_HEIGHT - 10))
        for at, value in enumerate(values)
    ]
    chart.polyline(places)
    chart.dot(*places[-1], "k0", radius=3, title=title)
    return chart.svg()


def _number(text: str) -> float | None:
    value = as_number(text)
    if not isinstance(value, str):
        return float(value)
    try:
        return float(value)
    except ValueError:
        return None


def _change(old: str, new: str) -> str:
    if old == new or not old or not new:
        return "" if old == new else "new" if not old else "gone"
    return change_text([_number(old), _number(new)]) or "changed"
