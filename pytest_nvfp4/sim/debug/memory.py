"""Shared memory and TMEM of a CTA at a stop: what was written by whom, raw values, and tensors by their layouts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from pytest_nvfp4.layout.coordinates import tree_size
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import parse_type
from pytest_nvfp4.layout.irtypes import TypeInfo, dtype_bits
from pytest_nvfp4.layout.measures import smem_bytes, tmem_columns
from pytest_nvfp4.layout.tree import Tree
from pytest_nvfp4.sim.debug.errors import CommandError
from pytest_nvfp4.sim.debug.source import line_of
from pytest_nvfp4.sim.debug.values import element_text, words_text
from pytest_nvfp4.sim.debug.writes import CtaWrites, Writer
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.tcgen05.tmem import COLUMNS, LANES, Tmem

_MOST_RUNS = 24
_PARTS = 4
"""Parts of an opcode that are shown."""
_SIDE = 8
"""Rows and columns of a tensor that are shown."""


class Element(NamedTuple):
    """An element of a tensor: its bits, whether they were written, and by whom if that is known."""

    bits: int
    written: bool
    writer: str


def writer_text(cta: Cta, writer: Writer | None) -> str:
    """Describe a writer: its warp, line and opcode."""
    if writer is None:
        return "written by an unknown instruction"
    instruction = cta.launch.kernel.instructions[writer.at]
    rank = f" of CTA rank {writer.rank}" if writer.rank != cta.rank else ""
    return f"warp {writer.warp}{rank} at {line_of(instruction)} ({'.'.join(instruction.parts[:_PARTS])})"


def _writers(cta: Cta) -> tuple[CtaWrites, list[str]]:
    writes = cta.unit(CtaWrites)
    return writes, [writer_text(cta, writer) for writer in writes.writers]


def shared_runs(cta: Cta) -> list[dict[str, Any]]:
    """Return the runs of bytes of shared memory with one writer, in order."""
    writes, names = _writers(cta)
    shared = cta.shared
    texts = sorted(set(names))
    group = np.array([texts.index(name) for name in names])[writes.shared]
    group[~shared.written] = -1
    for start, (size, _) in shared.opaque.items():
        group[start : start + size] = -2
    edges = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), shared.size]
    found: list[dict[str, Any]] = []
    for start, stop in pairwise(edges):
        if start < stop:
            kind = int(group[start])
            by = {-1: "uninitialised", -2: "mbarrier"}.get(kind) or texts[kind]
            found.append({"start": start, "stop": stop, "by": by})
    return found


def shared_text(cta: Cta) -> str:
    """Return the map of shared memory as text."""
    runs = shared_runs(cta)
    if not runs:
        return "shared memory: none"
    lines = [f"shared memory, {cta.shared.size} bytes:"]
    for run in runs[:_MOST_RUNS]:
        start, stop = run["start"], run["stop"]
        known = run["by"] not in ("uninitialised", "mbarrier")
        data = f": {cta.shared.data[start : min(stop, start + 16)].tobytes().hex(' ', 4)}" if known else ""
        lines.append(f"  bytes {start}-{stop - 1}  {run['by']}{data}{' ...' if known and stop - start > 16 else ''}")
    return "\n".join([*lines, *_more(len(runs))])


def _more(count: int) -> list[str]:
    return [f"  and {count - _MOST_RUNS} more"] if count > _MOST_RUNS else []


def tmem_runs(cta: Cta) -> list[dict[str, Any]]:
    """Return the runs of allocated TMEM columns that are alike."""
    tmem = cta.units.get(Tmem)
    if tmem is None or not any(tmem.owner):
        return []
    writes, names = _writers(cta)
    columns = []
    for column in range(COLUMNS):
        written = tmem.some[column] | bool(tmem.full[column])
        keys = [names[n] if there else "uninitialised" for n, there in zip(writes.tmem[column], written, strict=True)]
        parts, lane = [], 0
        for by, items in groupby(keys):
            count = len(list(items))
            parts.append((lane, lane + count, by))
            lane += count
        columns.append((tmem.owner[column], tuple(parts)))
    found: list[dict[str, Any]] = []
    start = 0
    for (owner, alike), same in groupby(columns):
        stop = start + len(list(same))
        if owner:
            listed = [{"first_lane": low, "lanes": high - low, "by": by} for low, high, by in alike]
            found.append({"start": start, "stop": stop, "parts": listed})
        start = stop
    return found


def tmem_text(cta: Cta) -> str:
    """Return the map of TMEM as text."""
    runs = tmem_runs(cta)
    if not runs:
        return "TMEM: nothing is allocated"
    tmem = cta.unit(Tmem)
    lines = ["TMEM, allocated columns:"]
    for run in runs[:_MOST_RUNS]:
        start, stop = run["start"], run["stop"]
        for part in run["parts"][:4]:
            low, count, by = part["first_lane"], part["lanes"], part["by"]
            tmem.settle(start, stop - start)
            data = f": {words_text(tmem.data[start : min(stop, start + 4), low].copy())}"
            where = f"columns {start}-{stop - 1}" + ("" if count == LANES else f" lanes {low}-{low + count - 1}")
            lines.append(f"  {where}  {by}{data if by != 'uninitialised' else ''}")
        if len(run["parts"]) > 4:
            lines.append(f"  and {len(run['parts']) - 4} more parts of these lanes")
    return "\n".join([*lines, *_more(len(runs))])


@dataclass(frozen=True)
class Tensor:
    """A tensor in shared memory or TMEM: its name, type text, and the byte or column where it begins, if known."""

    name: str
    type: str
    base: int | None = None

    @property
    def info(self) -> TypeInfo:
        """Its parsed type."""
        return parse_type(self.type)

    @property
    def size(self) -> str:
        """The memory that it takes, as text."""
        columns, size = tmem_columns(self.info), smem_bytes(self.info)
        return f"{columns} columns" if columns else f"{size} bytes" if size else "of unknown size"

    def modes(self) -> tuple[int, ...]:
        """Return the sizes of its top-level modes. Raises LayoutError for a run-time size."""
        layout = self.info.layout
        shape: Tree = layout.shape if layout is not None else ()
        return tuple(tree_size(mode) for mode in shape) if isinstance(shape, tuple) else (tree_size(shape),)

    def element(self, cta: Cta, place: tuple[int, ...]) -> Element:
        """Return the element at a coordinate of its top-level modes. Raises CommandError if there is none."""
        info, bits = self.info, dtype_bits(self.info.dtype)
        sizes = self.modes()
        if self.base is None or info.layout is None or not bits:
            raise CommandError(f"where {self.name} begins is not known: give it (`tensor {self.name} at BYTE`)")
        if len(place) != len(sizes) or not all(0 <= at < size for at, size in zip(place, sizes, strict=True)):
            raise CommandError(f"{self.name} has the modes {sizes}: {place} is no coordinate of it")
        offset = info.layout(place if isinstance(info.layout.shape, tuple) else place[0])
        if not isinstance(offset, int):
            raise CommandError(f"the layout of {self.name} has no integer offsets: {info.layout}")
        return (self._tmem if info.space == "tmem" else self._shared)(cta, offset * bits, bits)

    def _shared(self, cta: Cta, first: int, bits: int) -> Element:
        shared, swizzle = cta.shared, self.info.pointer_swizzle
        assert self.base is not None
        index = self.base + first // 8
        if swizzle is not None:
            index = swizzle(shared.base + index) - shared.base
        size = max(1, bits // 8)
        if not 0 <= index <= shared.size - size:
            raise CommandError(f"{self.name}: byte {index} is outside of shared memory ({shared.size} bytes)")
        value = int.from_bytes(shared.data[index : index + size].tobytes(), "little") >> first % 8 & (1 << bits) - 1
        writes, names = _writers(cta)
        return Element(value, bool(shared.written[index : index + size].all()), names[int(writes.shared[index])])

    def _tmem(self, cta: Cta, first: int, bits: int) -> Element:
        assert self.base is not None
        word = first // 32
        column, lane = self.base + (word & 0xFFFF), word >> 16
        if not (0 <= column < COLUMNS and 0 <= lane < LANES):
            raise CommandError(f"{self.name}: column {column}, lane {lane} is outside of TMEM")
        tmem = cta.unit(Tmem)
        tmem.settle(column, 1)
        value = int(tmem.data[column, lane]) >> first % 32 & (1 << bits) - 1
        writes, names = _writers(cta)
        return Element(value, bool(tmem.full[column] or tmem.some[column, lane]), names[int(writes.tmem[column, lane])])

    def text(self, cta: Cta, place: tuple[int, ...] = ()) -> str:
        """Return a corner of the tensor as text, from a coordinate on: the first mode down, the second across."""
        sizes = self.modes()
        start = (*place, *(0,) * (len(sizes) - len(place)))
        rows = range(start[0], min(sizes[0], start[0] + _SIDE))
        across = range(start[1], min(sizes[1], start[1] + _SIDE)) if len(sizes) > 1 else range(1)
        elements = {
            (i, j): self.element(cta, (i, j, *start[2:]) if len(sizes) > 1 else (i,)) for i in rows for j in across
        }
        lines = [f"{self.name}: {self.type}, begins at {'column' if self.info.space == 'tmem' else 'byte'} {self.base}"]
        for i in rows:
            cells = [elements[i, j] for j in across]
            shown = [element_text(cell.bits, self.info.dtype) if cell.written else "--" for cell in cells]
            lines.append(f"  {i:>4}: " + " ".join(f"{text:>7}" for text in shown))
        by = sorted({cell.writer for cell in elements.values() if cell.written})
        lines += [f"  written by {each}" for each in by]
        if not all(cell.written for cell in elements.values()):
            lines.append("  -- is uninitialised")
        return "\n".join(lines)


def tensor_of(name: str, type_text: str) -> Tensor | None:
    """Return a tensor in shared memory or TMEM; None for another type, and one with run-time sizes."""
    tensor = Tensor(name, type_text)
    try:
        info = tensor.info
        if info.space not in ("smem", "tmem") or not dtype_bits(info.dtype) or not tensor.modes():
            return None
    except (LayoutError, ValueError):
        return None
    return tensor
