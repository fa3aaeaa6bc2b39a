"""A table of device times: what a kernel takes, what that is worth, and how it stands against its baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_nvfp4.bench.provenance import Provenance
from pytest_nvfp4.bench.regression import GEOMEAN, ShapeVerdict, State
from pytest_nvfp4.bench.roofline import Columns, NoRoofline, columns, roofline
from pytest_nvfp4.device.result import DeviceInfo, Measurement
from pytest_nvfp4.problem import Problem

TABLE_WIDTH = 100
"""Columns of a terminal below which plain lines are easier to read."""

_STYLES: dict[State, str] = {"slower": "bold red", "faster": "green", "same": "", "ambiguous": "yellow"}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured problem of one kernel.

    Attributes:
        kernel: Name of the kernel, such as its path.
        problem: The problem.
        measurement: Its times.
        device: The device.
        verdict: The verdict against the baseline; None where there is no baseline.
        note: What stands in the verdict's place where there is none, such as why a comparison was refused.
    """

    kernel: str
    problem: Problem
    measurement: Measurement
    device: DeviceInfo
    verdict: ShapeVerdict | None = None
    note: str = ""


def render(
    rows: Sequence[Row],
    *,
    geomeans: Mapping[str, ShapeVerdict] | None = None,
    width: int = 80,
    color: bool = False,
    ascii_only: bool = False,
) -> str:
    """The table as text.

    Args:
        rows: The measurements, in the order they are shown; those of one kernel next to each other.
        geomeans: The verdict on each kernel's geometric mean, where there is one.
        width: Columns of the terminal.
        color: It understands ANSI colours. Without colour, or below ``TABLE_WIDTH`` columns, there are plain lines,
            which are never cut.
        ascii_only: Draw lines in ASCII.

    Raises:
        ValueError: a measurement has no rounds.
    """
    if not rows:
        return ""
    lines = _Lines(rows, geomeans or {})
    if not color or width < TABLE_WIDTH:
        return "\n".join(lines.plain()) + "\n"
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=True,
        color_system="standard",
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(lines.table(box.ASCII2 if ascii_only else box.SIMPLE_HEAD))
    for line in lines.notes():
        console.print(Text(line, style="dim"), soft_wrap=True)
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class _Cells:
    """A row as text."""

    kernel: str
    problem: str
    device: str
    spread: str
    host: str
    tflops: str
    gbps: str
    percent: str
    verdict: str
    state: State | None


class _Lines:
    """The content of a table, whatever it is drawn with."""

    def __init__(self, rows: Sequence[Row], geomeans: Mapping[str, ShapeVerdict]) -> None:
        self._methods: list[str] = []
        self._floors: list[str] = []
        self._remarks: list[str] = []
        self._clocks: list[float] = []
        self._cells: list[_Cells] = []
        kernels = list(dict.fromkeys(row.kernel for row in rows))
        numbered = len({self._method(row) for row in rows}) > 1
        for kernel in kernels:
            own = [row for row in rows if row.kernel == kernel]
            derived = [columns(row.measurement, row.problem, row.device) for row in own]
            for row, column in zip(own, derived, strict=True):
                self._cells.append(self._row(row, column, numbered=numbered))
            if len(own) > 1:
                self._cells.append(_geomean_row(kernel, own, derived, geomeans.get(kernel)))
                self._remark(geomeans.get(kernel))

    def _remark(self, verdict: ShapeVerdict | None) -> None:
        if verdict is not None:
            texts = [f"{verdict.name}: {note}" for note in verdict.notes]
            if verdict.baseline_outdated:
                texts.append(
                    f"{verdict.name}: until a new baseline is saved, it hides a slowdown by as much as was gained"
                )
            self._remarks += [text for text in texts if text not in self._remarks]

    @staticmethod
    def _method(row: Row) -> str:
        """How a row was measured; without clocks, which differ a little from row to row."""
        how = Provenance.of(row.measurement, device=row.device, problem=row.problem)
        rounds = len(row.measurement.device_us)
        return f"{how.model_copy(update={'clocks_mhz': ()}).describe()}, {rounds} rounds"

    def _row(self, row: Row, column: Columns, *, numbered: bool) -> _Cells:
        method = self._method(row)
        if method not in self._methods:
            self._methods.append(method)
        mark = f" [{self._methods.index(method) + 1}]" if numbered else ""
        floor = roofline(row.problem, row.device, l2=row.measurement.l2)
        if isinstance(floor, NoRoofline) and str(floor) not in self._floors:
            self._floors.append(str(floor))
        clock = Provenance.of(row.measurement, device=row.device, problem=row.problem).clock_mhz
        if clock is not None:
            self._clocks.append(clock)
        self._remark(row.verdict)
        late = row.measurement.late_rounds
        verdict = str(row.verdict) if row.verdict else row.note or "no baseline"
        return _Cells(
            kernel=_visible(row.kernel),
            problem=_visible(row.problem.name) + mark,
            device=_us(column.us) + (f" ({late} late)" if late else ""),
            spread=f"{_us(column.p10_us)}-{_us(column.p90_us)}",
            host="-" if column.host_us is None else _us(column.host_us),
            tflops=_number(column.tflops),
            gbps=_number(column.gbps),
            percent="-" if column.percent is None else f"{column.percent:.1f}",
            verdict=_visible(verdict),
            state=row.verdict.state if row.verdict else None,
        )

    def notes(self) -> Iterator[str]:
        """How it was measured, and what is missing."""
        for number, method in enumerate(self._methods, 1):
            yield f"[{number}] {_visible(method)}" if len(self._methods) > 1 else f"measured on {_visible(method)}"
        if self._clocks:
            low, high = min(self._clocks), max(self._clocks)
            yield f"SM clock under load {low:.0f}" + (f" to {high:.0f} MHz" if high > low else " MHz")
        yield from (_visible(text) for text in (*self._floors, *self._remarks))

    def plain(self) -> Iterator[str]:
        """One line a row, with every number named."""
        for cells in self._cells:
            parts = [f"{cells.device} us" + (f" (p10-p90 {cells.spread})" if cells.spread else "")]
            if cells.host != "-":
                parts.append(f"host {cells.host} us")
            if cells.tflops != "-":
                parts.append(f"{cells.tflops} TFLOP/s")
                parts.append(f"{cells.gbps} GB/s")
            if cells.percent != "-":
                parts.append(f"{cells.percent} % of the roofline")
            parts.append(cells.verdict)
            yield f"{cells.kernel} {cells.problem}: {', '.join(parts)}"
        yield from self.notes()

    def table(self, lines: box.Box) -> Table:
        """A table for a wide terminal."""
        table = Table(box=lines, expand=True, show_edge=False, pad_edge=False)
        table.add_column("kernel", ratio=3, overflow="fold")
        table.add_column("problem", ratio=3, overflow="fold")
        for title in ("device us", "p10-p90", "host us", "TFLOP/s", "GB/s", "roofline %"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("against the baseline", ratio=5, overflow="fold")
        previous = None
        for cells in self._cells:
            bold = "bold" if cells.problem == GEOMEAN else ""
            texts = [
                "" if cells.kernel == previous else cells.kernel,
                cells.problem,
                cells.device,
                cells.spread,
                cells.host,
                cells.tflops,
                cells.gbps,
                cells.percent,
            ]
            verdict = Text(cells.verdict, style=_STYLES[cells.state] if cells.state else "dim")
            table.add_row(*(Text(text, style=bold) for text in texts), verdict)
            previous = cells.kernel
        return table


def _geomean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def _geomean_row(kernel: str, rows: Sequence[Row], derived: Sequence[Columns], verdict: ShapeVerdict | None) -> _Cells:
    """Geometric means of the columns; those that not every row has are left out."""
    hosts = [column.host_us for column in derived if column.host_us is not None]
    percents = [column.percent for column in derived if column.percent]
    whole = len(rows)
    working = [column for column in derived if column.tflops > 0]
    return _Cells(
        kernel=_visible(kernel),
        problem=GEOMEAN,
        device=_us(_geomean([column.us for column in derived])),
        spread="",
        host=_us(_geomean(hosts)) if len(hosts) == whole else "-",
        tflops=_number(_geomean([column.tflops for column in working])) if len(working) == whole else "-",
        gbps=_number(_geomean([column.gbps for column in working])) if len(working) == whole else "-",
        percent=f"{_geomean(percents):.1f}" if len(percents) == whole else "-",
        verdict=str(verdict) if verdict else "no common baseline",
        state=verdict.state if verdict else None,
    )


def _us(value: float) -> str:
    """Microseconds with three or four digits that mean something."""
    return f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _visible(text: str) -> str:
    """Text that cannot move the cursor, whatever a file is called."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
