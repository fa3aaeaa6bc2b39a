"""IKET's decoded trace as regions: the JSON that ``run-iket profile --postprocess json`` writes (CuTe DSL 4.8.1).

Its fields that are read here::

    stringTable    names
    locationTable  by index, of each warp: ctaId (a number or x, y, z), warpId, and smId where it is known
    launches       kernelName or its index, ranges: [{warpLocIdxs, rangeNameIdx, startTs, endTs}], in ns

``warpLocIdxs`` holds the place of a range's begin and that of its end: twice the same for a range of one warp (seen on
an H200, whose timer advances by 32 ns). The times are those of the GPU's clock of the day, about 2^60.5 ns, of which a
float keeps no more than multiples of 256.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json
from pytest_nvfp4.profiler.spans import Span, Timeline

MOST_BYTES = 256 << 20
_BOUNDS = Bounds(size=MOST_BYTES, values=20_000_000)
_MOST, _LAST_NS = 1 << 53, 1 << 63


def is_iket(values: object) -> bool:
    """Return whether JSON values are a decoded trace of IKET."""
    return isinstance(values, dict) and {"stringTable", "locationTable", "launches"} <= values.keys()


def read(file: Path) -> Timeline:
    """Return the regions of a file. Raises DoorError if it cannot be read or holds something else."""
    source = str(file)
    return timeline_of(
        read_json(read_file(file, source=source, most=MOST_BYTES), source=source, bounds=_BOUNDS), source
    )


def timeline_of(values: Any, source: str, *, last: bool = False) -> Timeline:
    """Return the regions of decoded JSON, of all launches or of the last one of each kernel. Raises DoorError."""
    if not is_iket(values):
        raise DoorError(source, "is no decoded trace of IKET: it has no stringTable, locationTable and launches")
    try:
        launches = values["launches"]
        if last:
            launches = {_kernel(values, launch): launch for launch in launches}.values()
        ctas = _ctas(values["locationTable"])
        ranges = [(launch, entry) for launch in launches for entry in launch["ranges"]]
        first = min((_time(entry["startTs"]) for _, entry in ranges), default=0)
        spans = tuple(
            span for launch, entry in ranges for span in _spans(values, launch, entry, ctas=ctas, first=first)
        )
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise DoorError(source, f"is a trace of IKET that is not understood: {type(error).__name__} {error}") from error
    return Timeline("measured with IKET", "ns", spans)


def _ctas(places: list[dict[str, Any]]) -> list[int | None]:
    """Return the number of the CTA of each place, and None where it has none.

    The trace does not have the extents of the grid, so CTAs of several rows are numbered in their order.
    """
    found: list[tuple[int, int, int] | None] = []
    for place in places:
        axes = place.get("ctaId")
        x, y, z = (*axes, 0, 0)[:3] if isinstance(axes, list) and axes else (axes, 0, 0)
        found.append(None if axes is None else (_number(z), _number(y), _number(x)))
    known = [cta for cta in found if cta is not None]
    if not any(z or y for z, y, _ in known):
        return [None if cta is None else cta[2] for cta in found]
    order = {cta: number for number, cta in enumerate(sorted(set(known)))}
    return [None if cta is None else order[cta] for cta in found]


def _number(value: Any) -> int:
    value = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 17 else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
        raise ValueError(f"{str(value)[:40]!r} is no number from 0 to 2^53")
    return int(value)


def _spans(
    values: dict[str, Any], launch: dict[str, Any], entry: dict[str, Any], *, ctas: Sequence[int | None], first: int
) -> list[Span]:
    strings, places = values["stringTable"], values["locationTable"]
    kernel, name = _kernel(values, launch), strings[_index(entry["rangeNameIdx"], strings)]
    begin, end = _time(entry["startTs"]), _time(entry["endTs"])
    if not isinstance(name, str) or not begin <= end:
        raise ValueError("a range has no name, or ends before it begins")
    found = []
    for which in dict.fromkeys(entry["warpLocIdxs"]):
        place = places[_index(which, places)]
        cta, sm = ctas[which], place.get("smId")
        if cta is None:
            raise ValueError(f"place {which} has no ctaId")
        sm = -1 if sm is None or sm == -1 else _number(sm)
        warp = _number(place["warpId"])
        found.append(Span(kernel, cta, warp, sm, name, float(begin - first), float(end - first), 0))
    return found


def _time(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LAST_NS:
        raise ValueError(f"{str(value)[:40]!r} is no time from 0 to 2^63 ns")
    return int(value)


def _kernel(values: dict[str, Any], launch: dict[str, Any]) -> str:
    strings = values["stringTable"]
    name = launch["kernelName"] if "kernelName" in launch else strings[_index(launch["kernelNameIdx"], strings)]
    if not isinstance(name, str):
        raise ValueError("a launch has no name")
    return name


def _index(value: Any, table: list[Any]) -> int:
    if type(value) is not int or not 0 <= value < len(table):
        raise ValueError(f"{str(value)[:40]} is no index of a table of {len(table)}")
    return value
