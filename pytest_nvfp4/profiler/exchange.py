"""Records of regions as JSON, and back: what a program with a kernel writes, and commands read as data of others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_nvfp4.profiler.records import EVENT_WORDS, Event, KernelRecord, Kind, WarpRecord

VERSION = 1
_NAME = "pytest-nvfp4 regions "
FORMAT = f"{_NAME}{VERSION}"
MOST_BYTES = 256 << 20
MOST_VALUES = 48_000_000
_FIELDS = EVENT_WORDS + 2
_WORD, _WIDE = 1 << 32, 1 << 64


def as_data(records: Sequence[KernelRecord]) -> dict[str, Any]:
    """Return records as JSON-ready values; the events of a warp are one flat list of integers."""
    return {"format": FORMAT, "kernels": [_kernel(record) for record in records]}


def _kernel(record: KernelRecord) -> dict[str, Any]:
    data = {**asdict(record), "warps": []}
    for warp in record.warps:
        flat = [
            number
            for each in warp.events
            for number in (each.clock, each.timer_ns, int(each.kind), each.lane, each.region, each.value)
        ]
        head = [warp.cta, warp.warp, warp.channel, warp.sm, warp.clock, warp.timer_ns, warp.lost]
        data["warps"].append([head, flat])
    return data


def read(file: Path) -> list[KernelRecord]:
    """Return the records of a file. Raises DoorError if it cannot be read or holds something else."""
    from pytest_nvfp4.isolation.door.files import read_file

    return from_text(read_file(file, source=str(file), most=MOST_BYTES), source=str(file))


def from_text(data: bytes, *, source: str) -> list[KernelRecord]:
    """Return the records that a program wrote. Raises DoorError if a value is not one that `as_data` makes."""
    from pytest_nvfp4.isolation.door.json_values import Bounds, read_json

    return from_values(
        read_json(data, source=source, bounds=Bounds(size=MOST_BYTES, values=MOST_VALUES)), source=source
    )


def from_values(values: Any, *, source: str) -> list[KernelRecord]:
    """Return the records in JSON values. Raises DoorError if one is not as `as_data` makes it."""
    from pytest_nvfp4.isolation.door.error import DoorError
    from pytest_nvfp4.isolation.door.versions import other_version

    try:
        stated = values["format"]
        if isinstance(stated, str) and stated != FORMAT and stated.startswith(_NAME):
            raise DoorError(source, other_version(stated.removeprefix(_NAME), VERSION))
        if stated != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        return [_record(each) for each in values["kernels"]]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DoorError(source, f"holds no records of regions: {error}") from error


def _record(data: dict[str, Any]) -> KernelRecord:
    regions = tuple(_text(name) for name in data["regions"])
    grid, block = _three(data["grid"]), _three(data["block"])
    threads, ctas = block[0] * block[1] * block[2], grid[0] * grid[1] * grid[2]
    warps = []
    for head, flat in data["warps"]:
        bounds = (ctas, -(-threads // 32), 2, _WORD, _WORD, _WIDE, _WORD)
        cta, warp, channel, sm, clock, timer, lost = _numbers(head, bounds)
        if len(flat) % _FIELDS:
            raise ValueError("an event is incomplete")
        events = tuple(_event(flat[at : at + _FIELDS], len(regions)) for at in range(0, len(flat), _FIELDS))
        warps.append(WarpRecord(cta, warp, channel, sm, clock, timer, events, lost))
    return KernelRecord(
        _text(data["kernel"]),
        regions,
        grid,
        block,
        _number(data["launches"], _WORD),
        tuple(warps),
        _number(data["not_recorded"], _WIDE),
        _number(data["damaged"], _WORD),
    )


def _event(values: list[Any], regions: int) -> Event:
    clock, timer, kind, lane, region = _numbers(values[:5], (_WORD, _WORD, 4, 32, regions))
    value = _number(values[5] + (1 << 31), _WORD) - (1 << 31)
    return Event(clock, timer, Kind(kind), lane, region, value)


def _numbers(values: list[Any], ends: Sequence[int]) -> list[int]:
    return [_number(value, end) for value, end in zip(values, ends, strict=True)]


def _number(value: Any, end: int) -> int:
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"{json.dumps(value, default=repr)[:60]} is not an integer from 0 to {end - 1}")
    return value


def _three(values: Any) -> tuple[int, int, int]:
    x, y, z = (_number(value, _WORD) for value in values)
    return x, y, z


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4000:
        raise ValueError("a name is no text of at most 4000 characters")
    return value
