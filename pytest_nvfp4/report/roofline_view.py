"""A roofline: how many operations a second a problem reaches, against what the published peaks of its device allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pytest_nvfp4.bench.peaks import Peaks
from pytest_nvfp4.report.chart import Chart

_WIDTH, _HEIGHT = 760.0, 320.0
_LEFT, _TOP, _BOTTOM = 64.0, 16.0, 44.0


@dataclass(frozen=True, slots=True)
class TimedPoint:
    """A time of one call, in microseconds, of a problem with this work; ``how`` is *modelled* or *measured*."""

    how: str
    problem: str
    us: float
    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.flops / self.us * 1e6


def roofline_chart(points: Sequence[TimedPoint], floors: Sequence[TimedPoint], peaks: Peaks) -> Markup:
    """Return the roofline of a device with the points of several problems.

    Args:
        points: Times of problems.
        floors: Problems without a time, at the least time that the peaks allow.
        peaks: Published peaks of the device.
    """
    ridge = peaks.math.per_second / peaks.memory.per_second
    every = [*points, *floors]
    low = math.floor(math.log10(min(ridge, *(each.intensity for each in every)) / 2))
    high = math.ceil(math.log10(max(ridge, *(each.intensity for each in every)) * 2))
    top = math.ceil(math.log10(peaks.math.per_second * 1.2) * 2) / 2
    roof = min(peaks.math.per_second, 10.0**low * peaks.memory.per_second)
    bottom = math.floor(math.log10(min([roof, *(each.rate for each in every)])))
    chart = Chart(width=_WIDTH, height=_HEIGHT, title=f"Roofline of {peaks.gpu}")

    def x(intensity: float) -> float:
        return _LEFT + (math.log10(intensity) - low) / (high - low) * (_WIDTH - _LEFT - 16)

    def y(rate: float) -> float:
        return _TOP + (top - math.log10(rate)) / (top - bottom) * (_HEIGHT - _TOP - _BOTTOM)

    for power in range(low, high + 1):
        chart.line(x(10.0**power), _TOP, x(10.0**power), _HEIGHT - _BOTTOM, "grid")
        chart.text(x(10.0**power), _HEIGHT - _BOTTOM + 16, f"{10.0**power:g}", "muted", anchor="middle")
    for power in range(bottom, math.floor(top) + 1):
        chart.line(_LEFT, y(10.0**power), _WIDTH - 16, y(10.0**power), "grid")
        chart.text(_LEFT - 6, y(10.0**power) + 4, f"{10.0 ** (power - 12):g}", "muted", anchor="end")
    chart.text(_WIDTH - 16, _HEIGHT - 8, "FLOP for each byte of inputs and outputs", "muted", anchor="end")
    chart.text(4, _TOP - 3, "TFLOP/s", "muted")
    start, math_rate = 10.0**low, peaks.math.per_second
    chart.polyline(
        [(x(start), y(start * peaks.memory.per_second)), (x(ridge), y(math_rate)), (x(10.0**high), y(math_rate))],
        "roof",
    )
    chart.text(x(10.0**high), y(math_rate) - 6, f"{math_rate / 1e12:g} TFLOP/s {peaks.math_unit}", anchor="end")
    middle = math.sqrt(start * ridge)
    slope = f"{peaks.memory.per_second / 1e12:g} TB/s"
    chart.text(x(middle) - 6, y(middle * peaks.memory.per_second) - 6, slope, anchor="end")
    for each in every:
        kind = "k4 floor" if each in floors else "k1 modelled" if each.how == "modelled" else "k2"
        place, rate = x(each.intensity), each.rate
        chart.line(place, y(min(math_rate, each.intensity * peaks.memory.per_second)), place, y(rate), "drop")
        told = f"{each.problem}: {each.how} {each.us:.3g} us, {rate / 1e12:.3g} TFLOP/s"
        chart.dot(place, y(rate), kind, title=told)
        right = place < _WIDTH * 0.6
        label = f"{each.how} {each.us:.3g} us"
        chart.text(place + (9 if right else -9), y(rate) + 4, label, "strong", anchor="start" if right else "end")
    return chart.svg()
