"""Counters of a call against their snapshot, with their course over recorded runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pytest_nvfp4.report.chart import Chart
from pytest_nvfp4.report.evidence import History

_WIDTH, _HEIGHT = 132.0, 26.0


@dataclass(frozen=True, slots=True)
class CounterRow:
    """A counter: its name, its value in the snapshot and now, the change in words, and its course or nothing."""

    name: str
    before: str
    now: str
    change: str
    course: Markup | None


def counter_rows(before: Mapping[str, str], now: Mapping[str, str], history: History) -> list[CounterRow]:
    """Return the counters of a call, those that differ from the snapshot first.

    Args:
        before: Those of the snapshot; empty without one.
        now: Those of this run.
        history: Those of earlier runs, the oldest first.
    """
    rows = []
    for name in dict.fromkeys([*now, *before]):
        old, new = before.get(name, ""), now.get(name, "")
        points = [(label, counters[name]) for label, counters in history if name in counters] + [("this run", new)]
        rows.append(CounterRow(name, old, new, _change(old, new), trend(points)))
    return sorted(rows, key=lambda row: not row.change)


def trend(points: Sequence[tuple[str, str]]) -> Markup | None:
    """Return the course of a number over named points; None with fewer than two numbers."""
    numbers = [(label, number) for label, text in points if (number := _number(text)) is not None]
    if len(numbers) < 2:
        return None
    values = [number for _, number in numbers]
    low, high = min(values), max(values)
    title = ", ".join(f"{label}: {number:g}" for label, number in numbers)
    chart = Chart(width=_WIDTH, height=_HEIGHT, title=title)
    places = [
        (
            4 + at * (_WIDTH - 8) / (len(values) - 1),
            _HEIGHT - 5 - ((value - low) / (high - low) if high > low else 0.5) * (_HEIGHT - 10),
        )
        for at, value in enumerate(values)
    ]
    chart.polyline(places)
    chart.dot(*places[-1], "k0", radius=3, title=title)
    return chart.svg()


def _number(text: str) -> float | None:
    try:
        return float(text.removesuffix(" %"))
    except ValueError:
        return None


def _change(old: str, new: str) -> str:
    if old == new or not old or not new:
        return "" if old == new else "new" if not old else "gone"
    before, after = _number(old), _number(new)
    if before is None or after is None:
        return "changed"
    share = f" ({100 * (after - before) / before:+.1f} %)" if before else ""
    return f"{after - before:+g}{share}"
