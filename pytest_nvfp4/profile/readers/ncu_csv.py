"""Read what ``ncu --csv`` prints: the pages ``raw`` (a column a metric) and ``details`` (a row a metric or rule).

Messages of ncu (``==PROF==``) and of the program may stand before, between and behind the rows. Source: Nsight Compute
CLI, "Console Output".
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Literal

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.profile.readers.launch_builder import LaunchBuilder, extents
from pytest_nvfp4.profile.result import MOST_LAUNCHES, MOST_METRICS, Metric, ProfiledDevice, ProfiledLaunch, Rule
from pytest_nvfp4.profile.units import has_decimal_comma, number

_IDENTITY: Final = {
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC", "Invocations"),
}
"""Columns of both pages that are no metrics; with NVTX there are two more, whose names describe ranges of a domain."""
_KINDS: Final[dict[str, Literal["optimization", "warning", "message", "error"]]] = {
    "OPT": "optimization", "WRN": "warning", "WARN": "warning", "INF": "message", "ERR": "error",
}  # fmt: skip
_MOST_SPEEDUP: Final = 1e6
_NAME: Final = "device__attribute_display_name"


def looks_like(text: str) -> bool:
    """Return whether a text has the header of such a table."""
    return _header(text) is not None


def read_ncu_csv(text: str, *, source: str) -> tuple[tuple[ProfiledLaunch, ...], ProfiledDevice | None]:
    """Return the launches of a table and the device, as far as it is named.

    Raises:
        DoorError: It is no table of ncu, or it is larger than any that ncu writes.
    """
    start = _header(text)
    if start is None:
        raise DoorError(source, "has no table of `ncu --csv`: no line has the column Kernel Name")
    # A cell with all instances of a metric is longer than Python's csv reads; the limit is one of the process.
    limit = csv.field_size_limit(max(len(text), 1 << 17))
    try:
        return _table(partial(_rows, text[start:], source), source)
    finally:
        csv.field_size_limit(limit)


def _table(
    table: Callable[[], Iterator[list[str]]], source: str
) -> tuple[tuple[ProfiledLaunch, ...], ProfiledDevice | None]:
    rows = table()
    header = next(rows, [])
    columns = {name: at for at, name in enumerate(header)}
    if "Kernel Name" not in columns:
        raise DoorError(source, "has a damaged table of `ncu --csv`: its header has no column Kernel Name")
    if len(header) > MOST_METRICS:
        raise DoorError(source, f"has {len(header)} columns, and at most {MOST_METRICS} are read")
    details = "Metric Name" in columns
    values = [columns.get("Metric Value", columns.get("Average", -1))] if details else _metrics(header)
    cells = (row[at] for row in table() for at in values if 0 <= at < len(row))
    comma = has_decimal_comma(cells)
    builders = _details(rows, columns, source, comma) if details else _raw(rows, header, columns, source, comma)
    if not builders:
        raise DoorError(source, "has the header of a table of ncu, and no launch below it")
    return tuple(builder.build() for builder in builders), _device(builders)


def _header(text: str) -> int | None:
    """Return where the line of the column names begins."""
    for match in re.finditer(r'^[^\n]*"?Kernel Name"?(?:,|$)[^\n]*', text, re.MULTILINE):
        line = match[0].lstrip("\ufeff").lstrip()
        if line.startswith(('"', "ID,", "Kernel Name", "Process")) and "," in line:
            return match.start()
    return None


def _rows(text: str, source: str) -> Iterator[list[str]]:
    reader = csv.reader(io.StringIO(text.lstrip("\ufeff")))
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DoorError(source, f"is no CSV in line {reader.line_num}: {error}") from None
        if row and not row[0].lstrip().startswith("=="):
            yield [cell.strip() for cell in row]


def _cell(row: Sequence[str], columns: dict[str, int], name: str) -> str:
    at = columns.get(name, -1)
    return row[at] if 0 <= at < len(row) else ""


def _metrics(header: Sequence[str]) -> list[int]:
    """Return the columns of metrics of the raw page."""
    return [at for at, name in enumerate(header) if name not in _IDENTITY and "Domain:" not in name]


def _new(
    builders: list[LaunchBuilder], row: Sequence[str], columns: dict[str, int], source: str, comma: bool
) -> LaunchBuilder:
    if len(builders) >= MOST_LAUNCHES:
        raise DoorError(source, f"has more than {MOST_LAUNCHES} launches")
    made = number(_cell(row, columns, "Invocations"), decimal_comma=comma)
    builder = LaunchBuilder(
        index=len(builders),
        name=_cell(row, columns, "Kernel Name"),
        instances=int(made) if made is not None and 0 < made < 1 << 31 else 1,
        grid=extents(_cell(row, columns, "Grid Size")),
        block=extents(_cell(row, columns, "Block Size")),
        decimal_comma=comma,
    )
    if capability := _cell(row, columns, "CC"):
        builder.texts["CC"] = capability[:100]
    builders.append(builder)
    return builder


def _raw(
    rows: Iterator[list[str]], header: list[str], columns: dict[str, int], source: str, comma: bool
) -> list[LaunchBuilder]:
    """Read a column a metric; the second row has the units."""
    builders: list[LaunchBuilder] = []
    units: list[str] = []
    wanted = [(at, header[at]) for at in _metrics(header)]
    for row in rows:
        if len(row) != len(header):
            continue  # a message of the program, or a row that was cut off
        if not builders and not units and not _cell(row, columns, "Kernel Name"):
            units = row
            continue
        builder = _new(builders, row, columns, source, comma)
        for at, name in wanted:
            builder.add("", name, row[at], units[at] if units else "")
    return builders


def _details(rows: Iterator[list[str]], columns: dict[str, int], source: str, comma: bool) -> list[LaunchBuilder]:
    """Read a row a metric or rule; a summary of all launches of a kernel has averages in place of values."""
    builders: list[LaunchBuilder] = []
    by_launch: dict[tuple[str, str, str], LaunchBuilder] = {}
    value = "Metric Value" if "Metric Value" in columns else "Average"
    cells = 0
    for row in rows:
        if len(row) <= columns["Kernel Name"] or not (kernel := _cell(row, columns, "Kernel Name")):
            continue
        cells += 1
        if cells > 100 * MOST_METRICS:
            raise DoorError(source, f"has more than {100 * MOST_METRICS} rows")
        key = _cell(row, columns, "Process ID"), _cell(row, columns, "ID"), kernel
        builder = by_launch.get(key)
        if builder is None:
            builder = by_launch[key] = _new(builders, row, columns, source, comma)
        section = _cell(row, columns, "Section Name")
        if name := _cell(row, columns, "Metric Name"):
            builder.add(section, name, _cell(row, columns, value), _cell(row, columns, "Metric Unit"))
        elif (rule := _cell(row, columns, "Rule Name")) and len(builder.rules) < 10_000:
            builder.rules.append(_rule(rule, section, row, columns, comma))
    return builders


def _rule(name: str, section: str, row: Sequence[str], columns: dict[str, int], comma: bool) -> Rule:
    speedup = number(_cell(row, columns, "Estimated Speedup").removesuffix("%"), decimal_comma=comma)
    scope = _cell(row, columns, "Estimated Speedup Type").lower()
    return Rule(
        name=name[:4096],
        section=section[:4096],
        kind=_KINDS.get(_cell(row, columns, "Rule Type").upper(), "message"),
        text=_cell(row, columns, "Rule Description")[:100_000],
        speedup_pct=speedup if speedup is not None and 0 <= speedup < _MOST_SPEEDUP else None,
        scope="global" if scope == "global" else "local" if scope == "local" else "",
    )


def _device(builders: Sequence[LaunchBuilder]) -> ProfiledDevice | None:
    """Return the device of the first launch; a report of several devices is told by its metrics."""
    first = builders[0]
    match = re.fullmatch(r"(\d{1,2})\.(\d{1,2})", first.texts.get("CC", ""))
    capability = (int(match[1]), int(match[2])) if match else None
    name = first.texts.get(_NAME, "")
    if not name and capability is None:
        return None
    sms, _ = first.raw.get("device__attribute_multiprocessor_count", (None, ""))
    clock = first.build().value("sm_clock")
    memory = first.build().value("dram_clock")
    return ProfiledDevice(
        name=name[:4096] or f"a GPU of compute capability {first.texts['CC']}",
        capability=capability,
        sms=int(sms) if sms is not None and 0 < sms < 1 << 20 else None,
        sm_mhz=clock,
        memory_mhz=memory,
    )


def merged(raw: Sequence[ProfiledLaunch], details: Sequence[ProfiledLaunch]) -> tuple[ProfiledLaunch, ...]:
    """Return launches of the raw page with the rules and labelled sections of the details page of the same report."""
    if len(raw) != len(details) or any(a.name != b.name for a, b in zip(raw, details, strict=True)):
        return tuple(raw)
    return tuple(
        one.model_copy(
            update={
                "rules": other.rules,
                "sections": other.sections,
                "metrics": _better(one.metrics, other.metrics),
                "grid": one.grid or other.grid,
                "block": one.block or other.block,
            }
        )
        for one, other in zip(raw, details, strict=True)
    )


def _better(first: dict[str, Metric], second: dict[str, Metric]) -> dict[str, Metric]:
    """Return the metrics of two pages: of each the known one, the first if both are."""
    known = {name: one for name, one in first.items() if one.value is not None}
    return {**first, **second, **known}
