"""Recordings as bytes: a numpy archive (``.npz``, deflated) of plain arrays and a JSON header, without pickle.

What is read back is bounded and checked: the sizes that the archive announces, before anything is inflated; the type
and the length of each array; and every index, so that a recording that was read can be replayed without another check.
Columns are stored one by one, and numbers that mostly count up as differences, which deflate to little.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import STRICT, Extent, Index
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.json_values import Bounds
from pytest_nvfp4.isolation.door.models import parsed
from pytest_nvfp4.isolation.door.versions import other_version
from pytest_nvfp4.model.flags import POLL_KINDS, WRITE_KINDS
from pytest_nvfp4.model.recording import (
    EVENT,
    FLAGS,
    INSTRUCTION_CLASSES,
    OPERATION,
    Cluster,
    Does,
    Footprint,
    Program,
    Recording,
    Shape,
    Site,
    Unit,
    WarpEvents,
)
from pytest_nvfp4.model.stored_arrays import MOST_BYTES, StoredArrays, sums
from pytest_nvfp4.sim.ptx.marks import Mark, What

VERSION = 1
"""Version of the format; another one is refused."""
_HEADER = "header"
_BOUNDS = Bounds(depth=12, values=4_000_000)
_SOURCE = "the recording"

_Text = Annotated[str, Field(max_length=4096)]
_Dim3 = tuple[Extent, Extent, Extent]
_Many = Annotated[int, Field(ge=0, le=1 << 28)]


class _Model(BaseModel):
    model_config = STRICT


class _Shape(_Model):
    rows: Index = 0
    bytes: Index = 0
    ctas: Annotated[tuple[Annotated[int, Field(ge=0, lt=64)], ...], Field(max_length=64)] = ()
    m: Index = 0
    n: Index = 0
    k: Index = 0
    kind: _Text = ""
    a_tmem: bool = False
    shared_bytes: Index = 0
    columns: Index = 0
    lanes: Index = 0
    sectors: Index = 0


class _Warp(_Model):
    cta: Annotated[int, Field(ge=0, lt=64)]
    index: Annotated[int, Field(ge=0, lt=64)]
    role: _Text
    events: _Many


class _Program(_Model):
    warps: tuple[_Warp, ...]
    shapes: tuple[_Shape, ...]
    operations: _Many
    mixes: _Many
    phases: _Many
    signals: _Many
    slots: _Many


class _Recording(_Model):
    kernel: _Text
    arch: _Text
    grid: _Dim3
    block: _Dim3
    cluster: _Dim3
    shared_bytes: Index
    ctas_per_sm: Extent
    dependent: bool
    sites: tuple[tuple[Annotated[int, Field(ge=-1, lt=1 << 31)], _Text, _Text], ...]
    programs: tuple[_Program, ...]
    clusters: _Many
    footprints: _Many
    refused: tuple[_Text, ...]
    notes: tuple[_Text, ...]
    marks: tuple[tuple[What, _Text], ...] = ()
    cells: _Many = 0


class _Header(_Model):
    format: Literal["nvfp4-recording"]
    version: int
    recordings: tuple[_Recording, ...]


def dumps(recordings: Sequence[Recording]) -> bytes:
    """Return recordings as bytes."""
    arrays: dict[str, NDArray[Any]] = {}
    described = [_describe(recording, f"{number}.", arrays) for number, recording in enumerate(recordings)]
    header = {"format": "nvfp4-recording", "version": VERSION, "recordings": described}
    arrays[_HEADER] = np.frombuffer(json.dumps(header, separators=(",", ":")).encode(), np.uint8)
    target = io.BytesIO()
    np.savez_compressed(target, allow_pickle=False, **arrays)
    return target.getvalue()


def loads(data: bytes, *, source: str = _SOURCE) -> tuple[Recording, ...]:
    """Return the recordings in bytes.

    Raises:
        DoorError: They are no recordings, are damaged, contradict themselves, or are of another version.
    """
    archive = StoredArrays(data, source)
    header = parsed(_Header, archive.array(_HEADER, np.uint8).tobytes(), source=source, bounds=_BOUNDS)
    if header.version != VERSION:
        raise DoorError(source, other_version(header.version, VERSION))
    return tuple(_recording(each, archive.below(f"{number}.")) for number, each in enumerate(header.recordings))


def save(path: Path, recordings: Sequence[Recording]) -> None:
    """Write recordings to a file."""
    path.write_bytes(dumps(recordings))


def load(path: Path) -> tuple[Recording, ...]:
    """Return the recordings in a file. Raises DoorError and OSError."""
    return loads(read_file(path, source=str(path), most=MOST_BYTES), source=str(path))


# ---- writing ---------------------------------------------------------------------------------------------------------


def _describe(recording: Recording, prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    for number, program in enumerate(recording.programs):
        _store_program(program, f"{prefix}{number}.", arrays)
    clusters, footprints = recording.clusters, recording.footprints
    arrays[f"{prefix}index"] = _differences([cluster.index for cluster in clusters])
    arrays[f"{prefix}program"] = np.array([cluster.program for cluster in clusters], np.int32)
    before: dict[int, NDArray[np.int32]] = {}
    rows = []
    for cluster in clusters:
        rows.append(cluster.footprints - before.get(cluster.program, np.int32(0)))
        before[cluster.program] = cluster.footprints
    arrays[f"{prefix}slots"] = np.concatenate([np.empty(0, np.int32), *rows]).astype(np.int32)
    if recording.cells:
        arrays[f"{prefix}cells"] = np.array(recording.cells, np.uint64)
        arrays[f"{prefix}flags"] = np.concatenate([np.empty((0, 2), np.int64), *(each.flags for each in clusters)])
    shapes: dict[bytes, int] = {}
    relative = [(footprint.lines - footprint.lines[:1]).astype(np.int32) for footprint in footprints]
    arrays[f"{prefix}shape"] = np.array([shapes.setdefault(each.tobytes(), len(shapes)) for each in relative], np.int32)
    arrays[f"{prefix}first"] = _differences([int(footprint.lines[0]) for footprint in footprints])
    arrays[f"{prefix}sectors"] = np.array([footprint.sectors for footprint in footprints], np.int32)
    lines = [np.frombuffer(each, np.int32) for each in shapes]
    arrays[f"{prefix}sizes"] = np.array([each.size for each in lines], np.int32)
    arrays[f"{prefix}lines"] = _differences(np.concatenate([np.empty(0, np.int32), *lines]))
    plain = ("kernel", "arch", "grid", "block", "cluster", "shared_bytes", "ctas_per_sm", "dependent", "refused")
    return {name: getattr(recording, name) for name in (*plain, "notes")} | {
        "marks": [[mark.what, mark.name] for mark in recording.marks],
        "sites": [[site.at, site.opcode, site.source] for site in recording.sites],
        "programs": [_describe_program(program) for program in recording.programs],
        "clusters": len(clusters),
        "cells": len(recording.cells),
        "footprints": len(footprints),
    }


def _describe_program(program: Program) -> dict[str, Any]:
    return {
        "warps": [
            {"cta": warp.cta, "index": warp.index, "role": warp.role, "events": len(warp.events)}
            for warp in program.warps
        ],
        "shapes": [
            {name: value for name in _Shape.model_fields if (value := getattr(shape, name)) != getattr(Shape(), name)}
            for shape in program.shapes
        ],
        "operations": len(program.operations),
        "mixes": len(program.mixes),
        "phases": len(program.phases),
        "signals": len(program.signals),
        "slots": program.slots,
    }


def _store_program(program: Program, prefix: str, arrays: dict[str, NDArray[Any]]) -> None:
    events = np.concatenate([np.empty(0, EVENT), *(warp.events for warp in program.warps)])
    items = events["item"].astype(np.int32)
    for does in Does:
        chosen = events["does"] == does
        items[chosen] = _differences(items[chosen])
    for name in ("does", "count", "site"):
        arrays[f"{prefix}{name}"] = events[name]
    arrays[f"{prefix}item"] = items
    for name in OPERATION.names or ():
        arrays[f"{prefix}operation.{name}"] = program.operations[name]
    arrays[f"{prefix}mixes"] = program.mixes.astype(np.int32)
    arrays[f"{prefix}phases"] = program.phases.astype(np.int32)
    arrays[f"{prefix}signals.sizes"] = np.array([len(each) for each in program.signals], np.int32)
    arrays[f"{prefix}signals"] = _differences([phase for each in program.signals for phase in each])


def _differences(values: Sequence[int] | NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the differences of consecutive numbers, the first from 0; ``cumsum`` is the inverse, modulo 2^32."""
    wide = np.array(values, np.int64).reshape(-1)
    return np.diff(wide, prepend=0).astype(np.int32)


# ---- reading ---------------------------------------------------------------------------------------------------------


def _recording(header: _Recording, archive: StoredArrays) -> Recording:
    programs = tuple(
        _program(each, archive.below(f"{number}."), sites=len(header.sites), marks=len(header.marks))
        for number, each in enumerate(header.programs)
    )
    x, y, z = (n // c for n, c in zip(header.grid, header.cluster, strict=True))
    count = header.clusters
    index = archive.sums("index", count, x * y * z)
    program = archive.indices("program", count, len(programs))
    slots = archive.array("slots", np.int32)
    if sum(programs[number].slots for number in program.tolist()) != slots.size:
        raise DoorError(archive.source, "has another number of footprints than its clusters need")
    flags = _flags(header.cells, [programs[number] for number in program.tolist()], archive)
    clusters: list[Cluster] = []
    at = 0
    before: dict[int, NDArray[np.int64]] = {}
    for place, number in zip(index.tolist(), program.tolist(), strict=True):
        size = programs[number].slots
        row = slots[at : at + size].astype(np.int64) + before.get(number, np.int64(0))
        before[number] = row
        at += size
        row = archive.within("slots", row, header.footprints, low=-1)
        clusters.append(Cluster(place, number, row, flags[len(clusters)]))
    return Recording(
        **{name: getattr(header, name) for name in ("kernel", "arch", "grid", "block", "cluster", "shared_bytes")},
        ctas_per_sm=header.ctas_per_sm,
        dependent=header.dependent,
        sites=tuple(Site(*site) for site in header.sites),
        programs=programs,
        clusters=tuple(clusters),
        footprints=_footprints(header.footprints, archive),
        refused=header.refused,
        notes=header.notes,
        marks=tuple(Mark(*mark) for mark in header.marks),
        cells=tuple(archive.array("cells", np.uint64, header.cells).tolist()) if header.cells else (),
    )


def _flags(cells: int, programs: Sequence[Program], archive: StoredArrays) -> list[NDArray[np.int64]]:
    """Return the rows of the polls and writes of flags, by cluster."""
    distinct = {id(each): each for each in programs}
    for program in distinct.values():
        for unit, kinds in zip(FLAGS, (POLL_KINDS, WRITE_KINDS), strict=True):
            used = np.unique(program.operations["shape"][program.operations["unit"] == unit]).tolist()
            if wrong := [program.shapes[shape].kind for shape in used if program.shapes[shape].kind not in kinds]:
                raise DoorError(
                    archive.source, f"has a flag of kind {wrong[0]!r}, and not of {', '.join(sorted(kinds))}"
                )
    counts = {key: int(np.isin(each.operations["unit"], FLAGS).sum()) for key, each in distinct.items()}
    ends = np.cumsum([counts[id(each)] for each in programs]).tolist()
    total = ends[-1] if ends else 0
    rows = archive.array("flags", np.int64, total, 2) if cells else np.empty((0, 2), np.int64)
    if len(rows) != total:
        raise DoorError(archive.source, "polls or writes flags, and has no cells")
    archive.within("flags", rows[:, 0], cells)
    return np.split(rows, ends[:-1]) if ends else []


def _footprints(count: int, archive: StoredArrays) -> tuple[Footprint, ...]:
    most = (1 << 31) - 1
    sizes = archive.within("sizes", archive.array("sizes", np.int32), most, low=1)
    lines = archive.array("lines", np.int32, int(sizes.sum(dtype=np.int64)))
    shapes = np.split(sums(lines), np.cumsum(sizes)[:-1]) if sizes.size else []
    if any(shape[0] != 0 or (np.diff(shape) <= 0).any() for shape in shapes):
        raise DoorError(archive.source, "has lines of a footprint that are not unique and ascending from its first")
    number = archive.indices("shape", count, len(shapes))
    first = archive.sums("first", count, most)
    sectors = archive.indices("sectors", count, most)
    if count and max(int(first.max()) + int(shape[-1]) for shape in shapes) > most:
        raise DoorError(archive.source, "has lines beyond 2^31")
    return tuple(
        Footprint((shapes[which] + low).astype(np.int32), touched)
        for which, low, touched in zip(number.tolist(), first.tolist(), sectors.tolist(), strict=True)
    )


def _program(header: _Program, archive: StoredArrays, *, sites: int, marks: int) -> Program:
    total = sum(warp.events for warp in header.warps)
    events = np.empty(total, EVENT)
    events["does"] = archive.array("does", np.uint8, total)
    events["count"] = archive.array("count", np.uint16, total)
    events["site"] = archive.indices("site", total, sites)
    archive.within("does", events["does"], len(Does))
    ends = {Does.RUN: header.mixes, Does.ISSUE: header.operations, Does.MARK: marks}
    items = archive.array("item", np.int32, total).astype(np.int64)
    for does in Does:
        chosen = events["does"] == does
        items[chosen] = archive.within("item", sums(items[chosen]), ends.get(does, header.phases))
    events["item"] = items
    issued = events["item"][events["does"] == Does.ISSUE]
    if np.unique(issued).size != issued.size:
        raise DoorError(archive.source, "issues an operation twice")
    most = (1 << 31) - 1
    operations = np.empty(header.operations, OPERATION)
    limits: Mapping[str, tuple[int, int]] = {
        "unit": (0, len(Unit)),
        "shape": (0, len(header.shapes)),
        "slot": (-1, header.slots),
        "pipe": (-1, most),
        "done": (-1, header.signals),
        "read": (-1, header.signals),
    }
    for name, (low, end) in limits.items():
        column = archive.array(f"operation.{name}", OPERATION[name], header.operations)
        operations[name] = archive.within(f"operation.{name}", column, end, low=low)
    mixes = archive.array("mixes", np.int32, header.mixes, len(INSTRUCTION_CLASSES))
    sizes = archive.indices("signals.sizes", header.signals, most, low=0)
    listed = archive.sums("signals", int(sizes.sum(dtype=np.int64)), header.phases).tolist()
    starts = [0, *np.cumsum(sizes).tolist()]
    warps, at = [], 0
    for warp in header.warps:
        warps.append(WarpEvents(warp.cta, warp.index, warp.role, events[at : at + warp.events]))
        at += warp.events
    return Program(
        warps=tuple(warps),
        operations=operations,
        shapes=tuple(Shape(**shape.model_dump()) for shape in header.shapes),
        mixes=archive.within("mixes", mixes, most),
        phases=archive.indices("phases", header.phases, most),
        signals=tuple(tuple(listed[low:high]) for low, high in pairwise(starts)),
        slots=header.slots,
    )
