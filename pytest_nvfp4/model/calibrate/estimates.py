"""Robust estimates of one benchmark: the slope of cycles or time over the number of operations, and its spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, isfinite

import numpy as np

from pytest_nvfp4.model.calibrate.readings import Reading

LARGEST_SPREAD = 0.25
"""Largest relative spread of an estimate that is used."""
_LONGEST_STEP_NS = 32_000
"""A clock in GHz is read off launches of at least this time: ``%globaltimer`` may advance in steps of a microsecond."""


class NotMeasuredError(Exception):
    """A value does not follow from the readings; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its relative spread: half of the distance between the quartiles of the repeats, over the value.

    Attributes:
        benchmarks: What it was measured with.
    """

    value: float
    spread: float
    benchmarks: tuple[str, ...]

    @property
    def absolute(self) -> float:
        """The spread in the unit of the value."""
        return abs(self.value) * self.spread

    def _made(self, value: float, absolute: float, other: Estimate | None = None) -> Estimate:
        names = dict.fromkeys((*self.benchmarks, *(other.benchmarks if other else ())))
        return Estimate(value, absolute / abs(value) if value else 0.0, tuple(names))

    def __add__(self, other: Estimate) -> Estimate:
        return self._made(self.value + other.value, hypot(self.absolute, other.absolute), other)

    def __sub__(self, other: Estimate) -> Estimate:
        return self._made(self.value - other.value, hypot(self.absolute, other.absolute), other)

    def scaled(self, factor: float) -> Estimate:
        """Return a multiple."""
        return self._made(self.value * factor, self.absolute * abs(factor))

    def over(self, numerator: float) -> Estimate:
        """Return a rate: ``numerator`` divided by this value."""
        return Estimate(numerator / self.value, self.spread, self.benchmarks)

    def ratio(self, other: Estimate) -> Estimate:
        """Return this value over another one."""
        value = self.value / other.value
        return self._made(value, value * hypot(self.spread, other.spread), other)

    def at_least(self, least: float) -> Estimate:
        """Return this value, or ``least`` with the same absolute spread."""
        return self if self.value >= least else self._made(least, self.absolute)

    def checked(self, what: str, *, may_be_zero: bool = False) -> Estimate:
        """Return this estimate. Raises NotMeasuredError if it is not positive or too uncertain."""
        names = ", ".join(self.benchmarks)
        if not isfinite(self.value) or self.value < 0 or (self.value == 0 and not may_be_zero):
            raise NotMeasuredError(f"{what} would be {self.value:.4g} by {names}")
        if self.spread > LARGEST_SPREAD and not may_be_zero:
            raise NotMeasuredError(f"{what} varies by {self.spread:.0%} over the repeats of {names}")
        return self


def robust(values: Sequence[float], benchmark: str) -> Estimate:
    """Return the median of values, with half of the distance between their quartiles as its spread."""
    low, middle, high = (float(value) for value in np.quantile(np.asarray(values, float), (0.25, 0.5, 0.75)))
    return Estimate(middle, (high - low) / 2 / abs(middle) if middle else 0.0, (benchmark,))


class Measurements:
    """Estimates by the name of a benchmark.

    Args:
        readings: By benchmark and point.
        operations: By benchmark, the number of operations of each point: the abscissae of slopes.
    """

    def __init__(self, readings: Mapping[str, Mapping[int, Reading]], operations: Mapping[str, Sequence[int]]) -> None:
        self._readings = readings
        self._operations = operations

    def _point(self, name: str, point: int) -> Reading:
        found = self._readings.get(name, {}).get(point)
        if found is None:
            raise NotMeasuredError(f"benchmark {name} has no reading")
        return found

    def _slope(self, name: str, field: str) -> Estimate:
        counts = self._operations.get(name, ())
        if len(counts) < 2:
            raise NotMeasuredError(f"benchmark {name} has no two sizes")
        low, high = (robust(getattr(self._point(name, point), field), name) for point in (0, len(counts) - 1))
        return (high - low).scaled(1 / (counts[-1] - counts[0]))

    def cycles(self, name: str) -> Estimate:
        """Return the SM cycles of one operation. Raises NotMeasuredError."""
        return self._slope(name, "cycles")

    def ns(self, name: str) -> Estimate:
        """Return the nanoseconds of one operation. Raises NotMeasuredError."""
        return self._slope(name, "ns")

    def ghz(self, name: str) -> Estimate:
        """Return the SM clock during the largest launches of a benchmark. Raises NotMeasuredError."""
        count = max(self._readings.get(name, {0: None}))
        reading = self._point(name, count)
        if min(reading.ns) < _LONGEST_STEP_NS:
            raise NotMeasuredError(f"benchmark {name} is too short to read a clock")
        pairs = zip(reading.cycles, reading.ns, strict=True)
        return robust([cycles / ns for cycles, ns in pairs], name)

    def samples(self, name: str) -> list[float]:
        """Return the samples of a benchmark. Raises NotMeasuredError."""
        values = list(self._point(name, 0).samples)
        if not values:
            raise NotMeasuredError(f"benchmark {name} has no samples")
        return values


def two_levels(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the medians of the two groups of values that leave the least variance, or None if there is one group.

    There are two if both hold at least a tenth of the values, and the variance within them is less than a quarter of
    the whole.
    """
    ordered = np.sort(np.asarray(values, float))
    count = len(ordered)
    least = max(1, count // 10)
    if count < 2 * least + 1:
        return None
    sums, squares = np.cumsum(ordered), np.cumsum(ordered**2)
    cut = np.arange(least, count - least + 1)
    low = squares[cut - 1] - sums[cut - 1] ** 2 / cut
    high = squares[-1] - squares[cut - 1] - (sums[-1] - sums[cut - 1]) ** 2 / (count - cut)
    best = int(np.argmin(low + high))
    whole = squares[-1] - sums[-1] ** 2 / count
    if whole <= 0 or (low + high)[best] > whole / 4:
        return None
    at = int(cut[best])
    return float(np.median(ordered[:at])), float(np.median(ordered[at:]))
