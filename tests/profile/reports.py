"""Reports of profilers, as small as they can be."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

IDENTITY = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
            "Grid Size", "Device", "CC")  # fmt: skip


def _table(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


def raw_page(launches: Sequence[Mapping[str, object]], units: Mapping[str, str], *, kernel: str = "gemm") -> str:
    """Return the raw page of ncu: a column a metric, a row of units, a row a launch."""
    names = list(units)
    rows: list[Sequence[object]] = [(*IDENTITY, *names), ("",) * len(IDENTITY) + tuple(units.values())]
    for number, values in enumerate(launches):
        identity = (number, 1, "python3", "host", kernel, 1, 7, "(256, 1, 1)", "(132, 1, 1)", 0, "9.0")
        rows.append((*identity, *(values.get(name, "") for name in names)))
    return _table(rows)


def details_page(
    metrics: Sequence[tuple[str, str, str, str]], rules: Sequence[tuple[str, str, str, str, str]] = ()
) -> str:
    """Return the details page of ncu: (section, name, unit, value) and (section, rule, type, text, speed-up)."""
    columns = (
        *IDENTITY,
        *("Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type", "Rule Description"),
        *("Estimated Speedup Type", "Estimated Speedup"),
    )
    identity = (0, 1, "python3", "host", "gemm", 1, 7, "(256, 1, 1)", "(132, 1, 1)", 0, "10.0")
    rows: list[Sequence[object]] = [columns]
    rows += [(*identity, *metric, "", "", "", "", "") for metric in metrics]
    rows += [(*identity, section, "", "", "", *rest, "global", gain) for section, *rest, gain in rules]
    return _table(rows)


def nsys_export(path: Path, *, tables: Mapping[str, tuple[str, Sequence[Sequence[object]]]]) -> Path:
    """Write an export of nsys: name of a table -> (columns, rows)."""
    with sqlite3.connect(path) as connection:
        for name, (columns, rows) in tables.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
            places = ", ".join("?" * len(columns.split(",")))
            connection.executemany(f"INSERT INTO {name} VALUES ({places})", rows)
    connection.close()
    return path


RECORD = """
<record><kind>Precise</kind><level>Error</level>
<who><threadIdx><x>3</x><y>0</y><z>0</z></threadIdx><blockIdx><x>2</x><y>0</y><z>0</z></blockIdx></who>
<what><text>Invalid __global__ write of size 4 bytes</text><size>4</size><accessAddress>0x10</accessAddress></what>
<where><func>gemm</func><path>kernel.py</path><line>8</line></where>
<hostStack><frame><func>main</func></frame></hostStack></record>
"""


def sanitizer_xml(*records: str) -> str:
    """Return a report of compute-sanitizer."""
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<ComputeSanitizerOutput>'
        + "".join(records)
        + "</ComputeSanitizerOutput>"
    )
