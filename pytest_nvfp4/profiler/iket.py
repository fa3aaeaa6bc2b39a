"""IKET's decoded trace as regions: the JSON that ``run-iket profile --postprocess json`` writes (CuTe DSL 4.8.1).

Its fields that are read here::

    stringTable    names
    locationTable  by index, of each warp: ctaId (a number or x, y, z), warpId, and smId where it is known
    launches       kernelName or its index, ranges: [{warpLocIdxs, rangeNameIdx, startTs, endTs}], in ns
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
        spans = [
            span for launch in launches for entry in launch["ranges"] for span in _spans(values, launch, entry, ctas)
        ]
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise DoorError(source, f"is a trace of IKET that is not understood: {type(error).__name__} {error}") from error
    first = min((span.begin for span in spans), default=0.0)
    moved = tuple(
        Span(span.kernel, span.cta, span.warp, span.sm, span.name, span.begin - first, span.end - first, 0)
        for span in spans
    )
    return Timeline("measured with IKET", "ns", moved)


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
    values: dict[str, Any], launch: dict[str, Any], entry: dict[str, Any], ctas: Sequence[int | None]
) -> list[Span]:
    strings, places = values["stringTable"], values["locationTable"]
    kernel, name = _kernel(values, launch), strings[_index(entry["rangeNameIdx"], strings)]
    begin, end = float(entry["startTs"]), float(entry["endTs"])
    if not isinstance(name, str) or not 0 <= begin <= end < _LAST_NS:
        raise ValueError("a range has no name, ends before it begins, or later than 2^63 ns")
    found = []
    for which in entry["warpLocIdxs"]:
        place = places[_index(which, places)]
        cta, sm = ctas[which], place.get("smId")
        if cta is None:
            raise ValueError(f"place {which} has no ctaId")
        sm = -1 if sm is None or sm == -1 else _number(sm)
        found.append(Span(kernel, cta, _number(place["warpId"]), sm, name, begin, end, 0))
    return found


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
