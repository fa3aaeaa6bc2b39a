"""IKET's decoded trace as regions: the JSON that ``run-iket profile --postprocess json`` writes (CuTe DSL 4.8.1).

Its fields that are read here::

    stringTable    names
    locationTable  by index, of each warp: ctaId (a number or x, y, z), warpId, and smId where it is known
    launches       kernelName or its index, ranges: [{warpLocIdxs, rangeNameIdx, startTs, endTs}], in ns
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json
from pytest_nvfp4.profiler.spans import Span, Timeline

MOST_BYTES = 256 << 20
_BOUNDS = Bounds(size=MOST_BYTES, values=20_000_000)


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
        spans = [span for launch in launches for entry in launch["ranges"] for span in _spans(values, launch, entry)]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DoorError(source, f"is a trace of IKET that is not understood: {type(error).__name__} {error}") from error
    first = min((span.begin for span in spans), default=0.0)
    moved = tuple(
        Span(span.kernel, span.cta, span.warp, span.sm, span.name, span.begin - first, span.end - first, 0)
        for span in spans
    )
    return Timeline("measured with IKET", "ns", moved)


def _spans(values: dict[str, Any], launch: dict[str, Any], entry: dict[str, Any]) -> list[Span]:
    strings, places = values["stringTable"], values["locationTable"]
    kernel, name = _kernel(values, launch), strings[_index(entry["rangeNameIdx"], strings)]
    begin, end = float(entry["startTs"]), float(entry["endTs"])
    if not isinstance(name, str) or not 0 <= begin <= end:
        raise ValueError("a range has no name, or ends before it begins")
    found = []
    for which in entry["warpLocIdxs"]:
        place = places[_index(which, places)]
        cta = place["ctaId"]
        number = int(cta[0] if isinstance(cta, list) else cta)
        found.append(Span(kernel, number, int(place["warpId"]), int(place.get("smId", -1)), name, begin, end, 0))
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
