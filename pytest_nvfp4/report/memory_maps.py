"""Maps of the memories of a launch's first CTA: TMEM columns over time, and shared memory by stage."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from pytest_nvfp4.device.detail import LaunchDetail, SharedRange
from pytest_nvfp4.report.chart import GLYPH, Chart, amount, clipped, legend
from pytest_nvfp4.text import plural
from pytest_nvfp4.tmem.columns import COLUMNS

_WIDTH = 1000.0
_LEFT = 56.0
_FILLS = {
    "accumulator": ("k0", "accumulator (MMA)"),
    "load": ("k2", "read by the epilogue"),
    "SFA": ("k1", "SFA"),
    "SFB": ("k3", "SFB"),
    "SFA and SFB": ("k4", "SFA and SFB"),
    "scale factors": ("k5", "scale factors, never read"),
    "other": ("k7", "other"),
}
_MOST_ROWS = 40
_LABEL = 300.0


def tmem_chart(detail: LaunchDetail, *, allocated: int | None) -> Markup:
    """Return the map of TMEM columns: from left to right as the CTA uses them, a column a line from 0 at the top.

    Args:
        detail: The detail of a launch that uses columns.
        allocated: Columns that the kernel allocates; None if unknown.
    """
    high, top, below = 320.0, 22.0, 44.0
    last = max(span.last for span in detail.columns)
    chart = Chart(width=_WIDTH, height=top + high + below, title="TMEM columns of the first CTA over its course")

    def x(use: float) -> float:
        return _LEFT + (use - 1) / last * (_WIDTH - _LEFT - 8)

    def y(column: float) -> float:
        return top + column / COLUMNS * high

    chart.rect(_LEFT, top, _WIDTH - _LEFT - 8, high, "frame")
    if allocated is not None and 0 < allocated < COLUMNS:
        chart.line(_LEFT, y(allocated), _WIDTH - 8, y(allocated), "limit")
        chart.text(_WIDTH - 12, y(allocated) + 12, f"{allocated} columns allocated", "muted", anchor="end")
    for column in range(0, COLUMNS + 1, 64):
        chart.text(_LEFT - 6, y(column) + 4, str(column), "muted", anchor="end")
    chart.text(4, 12, "column", "muted")
    for span in detail.columns:
        kind, name = _FILLS.get(span.what, _FILLS["other"])
        told = f"{name}: columns {span.column} to {span.column + span.columns - 1}, from {span.source or 'unknown'}"
        chart.rect(
            x(span.first), y(span.column), x(span.last + 1) - x(span.first), y(span.columns) - top, kind, title=told
        )
    present = {span.what for span in detail.columns}
    legend(chart, [item for what, item in _FILLS.items() if what in present], x=_LEFT, y=top + high + 34)
    chart.text(
        _WIDTH - 8, top + high + 15, f"{amount(last)} uses of columns, in simulated order", "muted", anchor="end"
    )
    return chart.svg()


def shared_chart(detail: LaunchDetail, *, total: int, names: dict[int, str]) -> Markup:
    """Return the map of shared memory: a row for the buffers of each copy, a rectangle for each stage.

    Args:
        detail: The detail of a launch whose first CTA copies or has barriers.
        total: Bytes of the shared memory of a CTA.
        names: Names of tensors by the bytes of one stage.
    """
    rows = _rows(detail.shared)[:_MOST_ROWS]
    high, top = 22.0, 34.0
    chart = Chart(width=_WIDTH, height=top + high * len(rows) + 30, title="Shared memory of the first CTA")

    def x(offset: float) -> float:
        return _LABEL + offset / max(total, 1) * (_WIDTH - _LABEL - 8)

    for part in range(5):
        offset = total * part // 4
        chart.line(x(offset), top - 8, x(offset), top + high * len(rows), "grid")
        chart.text(x(offset), top - 14, amount(offset), "muted", anchor="end" if part == 4 else "middle")
    for number, row in enumerate(rows):
        first = row[0]
        y = top + number * high
        what = {"load": "filled", "store": "read by stores", "barrier": "mbarrier"}.get(first.what, first.what)
        name = names.get(first.bytes, "") if first.what != "barrier" else ""
        size = f"{len(row)} x {first.bytes:,} B"
        label = " ".join(filter(None, (name, what, size)))
        chart.text(4, y + 15, clipped(label, _LABEL - 8))
        kind = {"load": "k0", "store": "k2", "barrier": "k4"}.get(first.what, "k7")
        for stage, each in enumerate(row):
            wide = x(each.offset + each.bytes) - x(each.offset)
            told = (
                f"bytes {each.offset} to {each.offset + each.bytes - 1}, {each.source or 'unknown'}: {each.times} times"
            )
            chart.rect(
                x(each.offset), y + 3, max(wide - 0.7, 0.8), high - 6, kind if each.times else "faint", title=told
            )
            if wide > 2 * GLYPH:
                chart.text(x(each.offset) + wide / 2, y + 15, str(stage), anchor="middle")
    chart.text(_LABEL, top + high * len(rows) + 20, f"{total:,} B of shared memory a CTA; faint: not used", "muted")
    return chart.svg()


def _rows(ranges: Sequence[SharedRange]) -> list[list[SharedRange]]:
    """Return the ranges of one kind, line and size together, in the order of their first bytes."""
    rows: dict[tuple[str, str, int], list[SharedRange]] = {}
    for each in sorted(ranges, key=lambda each: each.offset):
        rows.setdefault((each.what, each.source, each.bytes), []).append(each)
    return list(rows.values())


def shared_left_out(detail: LaunchDetail) -> str:
    """Return how many rows the map leaves out; empty if none."""
    more = len(_rows(detail.shared)) - _MOST_ROWS
    return f"{plural(more, 'row')} left out" if more > 0 else ""
