"""Device times as lines of text: times, rates derived from them, and verdicts against baselines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_nvfp4.bench.provenance import Provenance
from pytest_nvfp4.bench.regression import GEOMEAN, ShapeVerdict
from pytest_nvfp4.bench.roofline import Columns, NoRoofline, columns, roofline
from pytest_nvfp4.device.result import DeviceInfo, Measurement
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.text import visible


@dataclass(frozen=True, slots=True)
class TimesRow:
    """One measured problem of one kernel.

    Attributes:
        kernel: Name of the kernel, such as its path. Untrusted text.
        problem: The problem.
        measurement: Its times.
        device: The device.
        verdict: Verdict against the baseline; None without a baseline.
        note: Text in place of a missing verdict, such as why a comparison was refused.
    """

    kernel: str
    problem: Problem
    measurement: Measurement
    device: DeviceInfo
    verdict: ShapeVerdict | None = None
    note: str = ""


def render(rows: Sequence[TimesRow], *, geomeans: Mapping[str, ShapeVerdict] | None = None) -> str:
    """Return one line a row with every number named, then notes; lines are never cut.

    Args:
        rows: Measurements in the order they are shown; those of one kernel are consecutive.
        geomeans: Verdicts on the geometric means of kernels by name.

    Raises:
        ValueError: A measurement has no rounds.
    """
    return "".join(f"{visible(line)}\n" for line in _Lines(rows, geomeans or {}).lines) if rows else ""


class _Lines:
    """The lines of a table, and the notes that its rows need, each once."""

    def __init__(self, rows: Sequence[TimesRow], geomeans: Mapping[str, ShapeVerdict]) -> None:
        self.lines: list[str] = []
        self._methods = list(dict.fromkeys(map(_method, rows)))
        self._remarks: list[str] = []
        for kernel in dict.fromkeys(row.kernel for row in rows):
            own = [row for row in rows if row.kernel == kernel]
            derived = [columns(row.measurement, row.problem, row.device) for row in own]
            self.lines += [self._row(row, column) for row, column in zip(own, derived, strict=True)]
            if len(own) > 1:
                self.lines.append(f"{kernel} {GEOMEAN}: {_geomeans(derived, geomeans.get(kernel))}")
                self._remark(geomeans.get(kernel))
        self.lines += self._notes(rows)

    def _remark(self, verdict: ShapeVerdict | None) -> None:
        if verdict is not None:
            self._remarks += [f"{verdict.name}: {note}" for note in verdict.notes]
            if verdict.baseline_outdated:
                self._remarks.append(
                    f"{verdict.name}: until a new baseline is saved, it hides a slowdown of the size of this gain"
                )

    def _row(self, row: TimesRow, column: Columns) -> str:
        self._remark(row.verdict)
        late = row.measurement.late_rounds
        method = f" [{self._methods.index(_method(row)) + 1}]" if len(self._methods) > 1 else ""
        parts = [
            f"{_us(column.us)}{f' ({late} late)' if late else ''} us "
            f"(p10-p90 {_us(column.p10_us)}-{_us(column.p90_us)})"
        ]
        if column.host_us is not None:
            parts.append(f"host {_us(column.host_us)} us")
        parts.append(f"{_number(column.tflops)} TFLOP/s, {_number(column.gbps)} GB/s")
        if column.percent is not None:
            parts.append(f"{column.percent:.1f} % of the roofline")
        parts.append(str(row.verdict) if row.verdict else row.note or "no baseline")
        return f"{row.kernel} {row.problem.name}{method}: {', '.join(parts)}"

    def _notes(self, rows: Sequence[TimesRow]) -> Iterator[str]:
        for number, method in enumerate(self._methods, 1):
            yield f"[{number}] {method}" if len(self._methods) > 1 else f"measured on {method}"
        clocks = [clock for row in rows if (clock := _provenance(row).clock_mhz) is not None]
        if clocks:
            low, high = min(clocks), max(clocks)
            yield f"SM clock under load {low:.0f}" + (f" to {high:.0f} MHz" if high > low else " MHz")
        floors = (roofline(row.problem, row.device, l2=row.measurement.l2) for row in rows)
        yield from dict.fromkeys([*(str(floor) for floor in floors if isinstance(floor, NoRoofline)), *self._remarks])


def _provenance(row: TimesRow) -> Provenance:
    return Provenance.of(row.measurement, device=row.device, problem=row.problem)


def _method(row: TimesRow) -> str:
    """How a row was measured, without clocks, which differ a little from row to row."""
    how = _provenance(row).model_copy(update={"clocks_mhz": ()})
    return f"{how.describe()}, {len(row.measurement.device_us)} rounds"


def _geomeans(derived: Sequence[Columns], verdict: ShapeVerdict | None) -> str:
    """Return geometric means of the columns; a column that some row lacks is left out."""

    def mean(values: Sequence[float | None]) -> float | None:
        logarithms = [math.log(value) for value in values if value]
        return math.exp(math.fsum(logarithms) / len(values)) if len(logarithms) == len(values) else None

    parts = [f"{_us(mean([column.us for column in derived]) or 0)} us"]
    if (host := mean([column.host_us for column in derived])) is not None:
        parts.append(f"host {_us(host)} us")
    tflops, gbps = (mean([column.tflops for column in derived]), mean([column.gbps for column in derived]))
    if tflops is not None and gbps is not None:
        parts.append(f"{_number(tflops)} TFLOP/s, {_number(gbps)} GB/s")
    if (percent := mean([column.percent for column in derived])) is not None:
        parts.append(f"{percent:.1f} % of the roofline")
    return ", ".join([*parts, str(verdict) if verdict else "no common baseline"])


def _us(value: float) -> str:
    """Microseconds with three or four significant digits."""
    return f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
