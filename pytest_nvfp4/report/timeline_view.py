"""The modelled timeline of the first SM: warps by role, units, and phases of barriers."""

from __future__ import annotations

from markupsafe import Markup

from pytest_nvfp4.device.modelled import ModelledCall, TimelineSlice
from pytest_nvfp4.report.chart import GLYPH, Chart, legend
from pytest_nvfp4.text import shortened

_WIDTH, _LABEL = 1100.0, 250.0
_ROW, _TOP = 20.0, 26.0
_MOST_TRACKS = 40
_TITLES = 1500
"""Slices up to which each has a text for the pointer."""


def timeline_chart(call: ModelledCall) -> tuple[Markup, int]:
    """Return the timeline of a call that has one, and the number of tracks left out."""
    tracks: dict[str, list[TimelineSlice]] = {}
    for each in call.timeline:
        tracks.setdefault(each.track, []).append(each)
    shown = list(tracks.items())[:_MOST_TRACKS]
    begin = min(each.begin_ns for each in call.timeline)
    end = max(each.end_ns for each in call.timeline)
    height = _TOP + _ROW * len(shown) + 30
    chart = Chart(width=_WIDTH, height=height, title=f"Modelled timeline of the first SM, {call.title}")

    def x(ns: float) -> float:
        return _LABEL + (ns - begin) / max(end - begin, 1e-9) * (_WIDTH - _LABEL - 10)

    step = _step((end - begin) / 8)
    tick = -(-begin // step) * step
    while tick <= end:
        chart.line(x(tick), _TOP - 6, x(tick), height - 28, "grid")
        chart.text(x(tick), _TOP - 10, f"{tick / 1000:g} us", "muted", anchor="middle")
        tick += step
    for number, (track, slices) in enumerate(shown):
        y = _TOP + number * _ROW
        chart.text(4, y + 14, shortened(_without_folder(track), int((_LABEL - 8) / GLYPH)))
        chart.line(_LABEL, y + _ROW - 1, _WIDTH - 10, y + _ROW - 1, "grid")
        for at, each in enumerate(slices):
            told = ""
            if len(call.timeline) <= _TITLES:
                many = f" ({each.merged} together)" if each.merged > 1 else ""
                told = f"{each.name}{many}: {each.end_ns - each.begin_ns:.0f} ns at {each.source or 'unknown'}"
            kind = _fill(each, at)
            chart.rect(x(each.begin_ns), y + 3, x(each.end_ns) - x(each.begin_ns), _ROW - 7, kind, title=told)
    names = [("k0", "warps run"), ("faint", "warps wait"), ("k1", "unit works"), ("k4", "phase of a barrier")]
    legend(chart, names, x=_LABEL, y=height - 8)
    return chart.svg(), max(0, len(tracks) - _MOST_TRACKS)


def _without_folder(track: str) -> str:
    """Return the name of a track, its place without the folder: ``barrier: mma at k.py:12``."""
    what, at, place = track.partition(" at ")
    return f"{what}{at}{place.rpartition('/')[2]}"


def _fill(each: TimelineSlice, at: int) -> str:
    if each.track.startswith("barrier: "):
        return "k4 s2" if at % 2 else "k4"
    if each.track.startswith("warps: "):
        return "faint" if each.name == "wait" else "k0"
    return "k1"


def _step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least as large."""
    power = 10.0 ** (len(str(int(max(least, 1)))) - 1)
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
