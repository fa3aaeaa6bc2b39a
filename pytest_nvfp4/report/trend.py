"""Trends of counters over runs or revisions: small line plots as inline SVG, and lines of text.

A trend is fed by a plain sequence of (label, counters), the oldest first; a counter that a point has not leaves a gap.
Each counter has a plot of its own, with its least and largest value as its range, because counters have no common unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2s
from typing import TypeAlias
from xml.sax.saxutils import escape

from pytest_nvfp4.text import clip, visible

Points: TypeAlias = Sequence[tuple[str, Mapping[str, float]]]
"""Label and counters by name of each point, the oldest first."""

_BARS = "▁▂▃▄▅▆▇█"
_GAP = "·"
_WIDTH, _ROW, _PLOT = 640, 46, 26
"""Width of the picture, and heights of a row and of the plot in it, in pixels."""
_NAME, _VALUE = 230, 120
"""Widths of the texts beside a plot."""
_MOST_NAME = 34
_STYLE = (
    ".nvt text{font:12px ui-monospace,monospace;fill:#24292f}"
    ".nvt polyline{fill:none;stroke:#0969da;stroke-width:1.5}.nvt circle{fill:#0969da}"
    ".nvt .up{fill:#cf222e}.nvt .down{fill:#1a7f37}.nvt .base{stroke:#d0d7de}"
    "@media(prefers-color-scheme:dark){.nvt text{fill:#e6edf3}.nvt polyline{stroke:#58a6ff}.nvt circle{fill:#58a6ff}"
    ".nvt .up{fill:#ff7b72}.nvt .down{fill:#56d364}.nvt .base{stroke:#30363d}}"
)


def names_of(points: Points) -> list[str]:
    """Return the names of all counters, in the order of the newest point, then of older ones."""
    return list(dict.fromkeys(name for _, counters in reversed(points) for name in counters))


def values_of(points: Points, name: str) -> list[float | None]:
    """Return the values of a counter, None where a point has none or one that is not finite."""
    values = (counters.get(name) for _, counters in points)
    return [value if value is not None and math.isfinite(value) else None for value in values]


def change_text(values: Sequence[float | None]) -> str:
    """Return the change from the first to the last known value, such as ``+12.5 %``; empty if there is none."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or known[0] == known[-1]:
        return ""
    return f"{100 * (known[-1] / known[0] - 1):+.1f} %" if known[0] else f"from zero to {known[-1]:g}"


def sparkline(values: Sequence[float | None]) -> str:
    """Return one character a value: a bar from the least to the largest one, a dot where there is none."""
    known = [value for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    span = high - low
    top = len(_BARS) - 1
    return "".join(
        _GAP if value is None else _BARS[round((value - low) / span * top) if span else 0] for value in values
    )


def trend_svg(points: Points, names: Sequence[str] | None = None, *, title: str = "Trend") -> str:
    """Return the trends as one SVG element: a row for each counter with its plot, last value and change.

    It is valid XML with a title, follows the light or dark colour scheme, and shows label and value of each point as a
    tooltip. Names and labels are untrusted text.

    Args:
        points: The points, the oldest first.
        names: Counters to draw; by default all.
        title: Title of the picture.
    """
    rows = list(names_of(points) if names is None else names)
    body = [piece for at, name in enumerate(rows) for piece in _row(points, name, top=at * _ROW)]
    height = max(len(rows), 1) * _ROW + 20
    if points:
        ends = ((_NAME, "start", points[0][0]), (_WIDTH - _VALUE - 10, "end", points[-1][0]))
        for x, anchor, label in ends if len(points) > 1 else ends[:1]:
            body.append(f'<text x="{x}" y="{height - 6}" text-anchor="{anchor}">{_xml(clip(label, 24))}</text>')
    name = "nvt" + blake2s("".join([title, *body]).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="nvt" role="img" aria-labelledby="{name}" '
        f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
    )
    return "".join([head, f'<title id="{name}">{_xml(title)}</title><style>{_STYLE}</style>', *body, "</svg>"])


def _row(points: Points, name: str, *, top: int) -> Iterator[str]:
    values = values_of(points, name)
    known = [value for value in values if value is not None]
    middle = top + _ROW / 2 + 4
    yield f'<text x="0" y="{middle:g}">{_xml(clip(name, _MOST_NAME))}</text>'
    if not known:
        return
    low, span = min(known), max(known) - min(known)
    left, right, bottom = _NAME, _WIDTH - _VALUE - 10, top + _ROW - (_ROW - _PLOT) / 2
    step = (right - left) / max(len(values) - 1, 1)

    def place(at: int, value: float) -> tuple[float, float]:
        return round(left + at * step, 1), round(bottom - ((value - low) / span if span else 0.5) * _PLOT, 1)

    yield f'<line class="base" x1="{left}" y1="{bottom:g}" x2="{right}" y2="{bottom:g}"/>'
    for part in _parts(values):
        yield f'<polyline points="{" ".join("{:g},{:g}".format(*place(at, value)) for at, value in part)}"/>'
    for at, value in enumerate(values):
        if value is not None:
            x, y = place(at, value)
            tip = _xml(f"{points[at][0]}: {name} {number_text(value)}")
            yield f'<circle cx="{x:g}" cy="{y:g}" r="2.5"><title>{tip}</title></circle>'
    yield f'<text x="{_WIDTH}" y="{middle - 7:g}" text-anchor="end">{_xml(number_text(known[-1]))}</text>'
    if change := change_text(values):
        kind = "up" if known[-1] > known[0] else "down"
        yield f'<text class="{kind}" x="{_WIDTH}" y="{middle + 8:g}" text-anchor="end">{_xml(change)}</text>'


def _parts(values: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """Yield the runs of neighbouring known values, each with its index."""
    part: list[tuple[int, float]] = []
    for at, value in enumerate(values):
        if value is not None:
            part.append((at, value))
        elif part:
            yield part
            part = []
    if part:
        yield part


def number_text(value: float) -> str:
    """Return a counter or a time: whole numbers with separators, others with three decimals."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"


def _xml(text: str) -> str:
    return escape(visible(text), {'"': "&quot;"})
