"""Read an export of Nsight Systems (``nsys export --type sqlite``): kernels, NVTX ranges, the GPU, and warnings.

Tables and columns differ between versions, and a table is there only if something was recorded for it, so both are
looked up before they are used. Source: Nsight Systems, "SQLite Schema Reference".
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.profile.readers.durations import TimedLaunch, by_kernel
from pytest_nvfp4.profile.result import (
    Extents,
    Metric,
    ProfiledDevice,
    ProfiledLaunch,
    TimedRange,
)

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES: Final = "NVTX_EVENTS"
_REGION: Final = "profile_region"
_MOST_ROWS: Final = 2_000_000
_MOST_RANGES: Final = 1000
_MOST_NOTES: Final = 100
_STEPS: Final = 2_000_000_000
_STEPS_BETWEEN: Final = 100_000
_MOST_NAME: Final = 1 << 16
_RANGE_TYPES: Final = (59, 60, 70, 71)
"""NvtxPushPopRange and NvtxStartEndRange, and those of torch's domains (enum ENUM_NSYS_EVENT_TYPE)."""
_ALLOWED: Final = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_PRAGMA}


class _Export:
    """An open export: read-only, of tables alone, with a bound on the work of all queries."""

    def __init__(self, connection: sqlite3.Connection, source: str) -> None:
        self._connection = connection
        self._source = source
        self._left = _STEPS
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_NAME)
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(self._worked, _STEPS_BETWEEN)
        # A view could hide any amount of work behind the name of a table.
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self.tables = {str(name): self._columns(str(name)) for (name,) in tables[:1000]}

    def _worked(self) -> int:
        self._left -= _STEPS_BETWEEN
        return int(self._left <= 0)

    def _columns(self, table: str) -> set[str]:
        return {str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({_quoted(table)})")}

    def rows(self, table: str, wanted: Sequence[str], *, most: int = _MOST_ROWS) -> Iterator[tuple[Any, ...]]:
        """Yield some columns of a table; a column that it lacks is None in every row."""
        columns = self.tables.get(table, set())
        if not columns:
            return
        chosen = ", ".join(_quoted(name) if name in columns else "NULL" for name in wanted)
        for number, row in enumerate(self._connection.execute(f"SELECT {chosen} FROM {_quoted(table)}")):
            if number >= most:
                raise DoorError(self._source, f"has more than {most} rows in {table}")
            yield row


def _authorize(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class NsysExport:
    """What an export contains.

    Attributes:
        launches: Kernels; those of the range ``profile_region`` if there is one.
        ranges: NVTX ranges by name, the longest first.
        device: The first GPU.
        notes: Errors and warnings of the tool, and what is missing.
    """

    def __init__(self, path: Path, *, source: str) -> None:
        """Read an export. Raises DoorError, and OSError if there is no such file."""
        path.stat()
        address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        try:
            with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
                connection.text_factory = lambda data: data.decode("utf-8", "replace")
                self._read(_Export(connection, source), source)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a message may quote bytes of a damaged schema
            raise DoorError(source, f"is no readable SQLite export of nsys: {error}") from None

    def _read(self, export: _Export, source: str) -> None:
        if not {"StringIds", "TARGET_INFO_GPU", KERNELS, _RANGES, "META_DATA_EXPORT"} & set(export.tables):
            raise DoorError(source, "has no table of Nsight Systems: export it with `nsys export --type sqlite`")
        names = {int(key): str(text) for key, text in export.rows("StringIds", ("id", "value")) if _is_int(key)}
        notes: list[str] = []
        for text, severity in export.rows("DIAGNOSTIC_EVENT", ("text", "severity"), most=100_000):
            if isinstance(text, str) and isinstance(severity, int) and severity >= 2 and len(notes) < _MOST_NOTES:
                notes.append(text[:1000])
        spans = list(_nvtx(export, names))
        self.ranges = _summed(spans)
        self.device = _gpu(export)
        self.launches = self._kernels(export, names, spans)
        if KERNELS not in export.tables:
            notes.append("the export has no CUDA kernels: only times of NVTX ranges are known")
        self.notes = tuple(notes)

    def _kernels(
        self, export: _Export, names: dict[int, str], spans: Sequence[tuple[str, int, int]]
    ) -> tuple[ProfiledLaunch, ...]:
        regions = [(start, end) for name, start, end in spans if name == _REGION]
        called: dict[int, int] = {}
        if regions:
            for correlation, start in export.rows(_RUNTIME, ("correlationId", "start")):
                if _is_int(correlation) and _is_int(start):
                    called[correlation] = start
        wanted = ("start", "end", "correlationId", "demangledName", "shortName", "registersPerThread")
        axes = [f"{what}{axis}" for what in ("grid", "block", "cluster") for axis in "XYZ"]
        shared = ("dynamicSharedMemory", "staticSharedMemory")
        made = []
        for row in export.rows(KERNELS, (*wanted, *axes, *shared)):
            start, end, correlation, demangled, short, registers = row[:6]
            if not _is_int(start) or not _is_int(end) or end < start:
                continue
            at = called.get(correlation, start)
            if regions and not any(first <= at <= last for first, last in regions):
                continue
            facts = [("registers", _metric(registers, "")), ("dynamic_shared_memory", _metric(row[15], "byte"))]
            facts.append(("static_shared_memory", _metric(row[16], "byte")))
            made.append(
                TimedLaunch(
                    _name(demangled, names) or _name(short, names) or "a kernel without a name",
                    float(end - start),
                    grid=_extents(row[6:9]),
                    block=_extents(row[9:12]),
                    cluster=_extents(row[12:15]),
                    facts=tuple((key, value) for key, value in facts if value.value is not None),
                )
            )
        return by_kernel(made)


def _nvtx(export: _Export, names: dict[int, str]) -> Iterator[tuple[str, int, int]]:
    for start, end, text, identity, kind in export.rows(_RANGES, ("start", "end", "text", "textId", "eventType")):
        if not _is_int(start) or not _is_int(end) or end < start or (_is_int(kind) and kind not in _RANGE_TYPES):
            continue
        name = text if isinstance(text, str) and text else _name(identity, names)
        if name:
            yield name[:4096], start, end


def _summed(spans: Sequence[tuple[str, int, int]]) -> tuple[TimedRange, ...]:
    total: dict[str, list[int]] = {}
    for name, start, end in spans:
        total.setdefault(name, []).append(end - start)
    longest = sorted(total.items(), key=lambda item: -sum(item[1]))[:_MOST_RANGES]
    return tuple(
        TimedRange(name=name, instances=len(times), total_us=Metric.of(sum(times) / 1e3, "us"))
        for name, times in longest
    )


def _gpu(export: _Export) -> ProfiledDevice | None:
    for name, major, minor, sms in export.rows("TARGET_INFO_GPU", ("name", "computeMajor", "computeMinor", "smCount")):
        capability = (major, minor) if _is_int(major) and _is_int(minor) and 0 <= minor < 100 > major >= 0 else None
        known = int(sms) if _is_int(sms) and 0 < sms < 1 << 20 else None
        return ProfiledDevice(name=str(name or "a GPU")[:4096], capability=capability, sms=known)
    return None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and abs(value) < 1 << 62


def _name(value: object, names: dict[int, str]) -> str:
    """Return a name that is an id of ``StringIds``, or the text itself as in old versions."""
    if isinstance(value, int):
        return names.get(value, "")
    return value if isinstance(value, str) else ""


def _metric(value: object, unit: str) -> Metric:
    return Metric.of(float(value) if isinstance(value, int) and 0 <= value < 1 << 50 else None, unit)


def _extents(values: Sequence[object]) -> Extents | None:
    if not all(isinstance(value, int) and 0 < value < 1 << 31 for value in values):
        return None
    x, y, z = values
    assert isinstance(x, int)
    assert isinstance(y, int)
    assert isinstance(z, int)
    return x, y, z
