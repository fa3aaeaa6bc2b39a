"""Words for what operands read and need, and for the statements that brought it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.provenance.expected import Blame, Content, Contents
from pytest_nvfp4.sim.provenance.origins import UNKNOWN, CtaOrigins
from pytest_nvfp4.sim.provenance.recorder import Load, Mma, OperandRecorder
from pytest_nvfp4.sim.provenance.tags import Tags
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.source import place_of
from pytest_nvfp4.sim.tma.box import outside_text


def span(numbers: NDArray[np.int64] | list[int]) -> str:
    """Return ``0-127`` for a range of numbers, ``7`` for one."""
    low, high = int(min(numbers)), int(max(numbers))
    return f"{low}" if low == high else f"{low}-{high}"


def statement(grid: Grid, at: int) -> str:
    """Return the place of a statement: ``sm100.py:330``."""
    return place_of(grid.kernel.instructions[at])


def k_range(k: int, count: int = 64) -> str:
    """Return ``k 64-127``."""
    return f"k {k}-{k + count - 1}"


def box_text(load: Load) -> str:
    """Return the box of a tensor load outside its tensor: its coordinates and its tensor."""
    return outside_text(load.coordinates or (), load.tensor, load.extents or ())


@dataclass(frozen=True, slots=True)
class Evidence:
    """What memory held when a wrong operand was read: the statement at fault, and a fact about it.

    Attributes:
        at: The statement; -1 if it is the MMA.
        over: Place of the statement that copied the needed data to where ``at`` overwrote it; empty if nothing was
            overwritten.
    """

    at: int
    fact: str
    over: str = ""


def evidence(
    blame: Blame, read: Content, origins: CtaOrigins, recorder: OperandRecorder, grid: Grid
) -> Evidence:  # fmt: skip
    """Return where the needed data are: overwritten, elsewhere in TMEM or shared memory, or nowhere."""
    tags = recorder.tags
    cell = tags.cell(blame.tensor, int(blame.rows[0]), blame.k)
    word = tags.words(np.array([cell]))[0]
    row = int(np.flatnonzero(blame.mask)[0])
    load, copy = int(read.operand.loads[row]), _copy(read, row)
    units = (origins.units == word).any(axis=1)
    if read.operand.columns is not None:
        column = read.operand.columns[0] + row // 32
        before = (origins.tmem.before[column] == word) & (origins.tmem.by[column] == copy)
        earlier = origins.tmem.before_by[column][before]
        if earlier.size and earlier[0] >= 0 and copy >= 0:
            last, first = recorder.copies[copy], recorder.copies[int(earlier[0])]
            return Evidence(last.at, f"TMEM columns [{last.columns[0]}, {last.columns[1]})", statement(grid, first.at))
        lies = np.flatnonzero((origins.columns == word).any(axis=1))
        if lies.size:
            return Evidence(-1, f"what it needs lies in TMEM column {lies[0]}{_by_copy(recorder, grid, origins, lies)}")
        if units.any() and copy >= 0:
            where = int(np.flatnonzero(units)[0])
            source = dict(recorder.copies[copy].sources)[origins.cta.index]
            return Evidence(
                recorder.copies[copy].at,
                f"{statement(grid, recorder.copies[copy].at)} copies from bytes [{source[0]}, {source[1]}) of shared "
                f"memory, and what is needed lies at byte {16 * where}{_by_load(recorder, grid, origins, where)}",
            )
    elif units.any():
        where = int(np.flatnonzero(units)[0])
        begin, end = read.operand.shared or (0, 0)
        return Evidence(
            -1,
            f"it reads bytes [{begin}, {end}) of shared memory, and what it needs lies at byte {16 * where}"
            f"{_by_load(recorder, grid, origins, where)}",
        )
    lost = np.flatnonzero((origins.shared.before == word).any(axis=1))
    if lost.size and load >= 0 and (by := int(origins.shared.by[lost[0]])) >= 0:
        here = recorder.loads[by]
        was = int(origins.shared.before_by[lost[0]])
        if was >= 0 and recorder.loads[was].at != here.at:
            return Evidence(here.at, f"byte {16 * lost[0]} of shared memory", statement(grid, recorder.loads[was].at))
    at = recorder.loads[load].at if load >= 0 else -1
    return Evidence(
        at, "what it needs lies nowhere in this CTA: nothing has copied it there, or something has overwritten it"
    )


def reading(
    mma: Mma, blame: Blame, read: Contents, found: Evidence, recorder: OperandRecorder, grid: Grid, *, again: bool
) -> str:  # fmt: skip
    """Return one sentence on a wrong operand: what it reads, what brought it, and what it needs."""
    tags, content = recorder.tags, read[blame.name]
    row = int(np.flatnonzero(blame.mask)[0])
    load = int(content.operand.loads[row])
    where = statement(grid, mma.at)
    part = "" if blame.mask.all() else f", in rows {span(np.flatnonzero(blame.mask))} of the tile,"
    subject = f"the {blame.name} operand of the MMA at {where}"
    needed = f"{tags.tensors[blame.tensor]}, rows {span(blame.rows)}, {k_range(blame.k)}"
    beside = read[blame.reference]
    because = f", because its {blame.reference} operand reads {what_is_read(beside, beside.keys >= 0, tags)}"
    if content.operand.cells[row] == 0 and load >= 0 and recorder.loads[load].outside:
        made = recorder.loads[load]
        return (
            f"{subject}{part} reads zeros: the box of {statement(grid, made.at)} {box_text(made)}, so that TMA filled "
            f"in zeros; it needs {needed}{because}"
        )
    what = what_is_read(content, blame.mask, tags)
    if found.over:
        return (
            f"{what} lies over {tags.tensors[blame.tensor]}: {statement(grid, found.at)} writes it to {found.fact}, "
            f"where {found.over} had put {needed}, and {subject} reads it"
        )
    came = []
    if load >= 0:
        came.append(f"loaded by {statement(grid, recorder.loads[load].at)}")
    copy = _copy(content, row)
    if copy >= 0:
        came.append(f"copied to TMEM by {statement(grid, recorder.copies[copy].at)}")
    chain = f" ({', '.join(came)})" if came else ""
    if what == needed:
        return (
            f"{subject}{part} reads {what}{chain} in another order: in row {row} of the tile it reads row "
            f"{content.places.row[row]}, and needs row {blame.rows[0]}{because}"
        )
    return f"{subject}{part} reads {what}{' again' if again else ''}{chain}, and needs {needed}{because}"


def what_is_read(content: Content, mask: NDArray[np.bool_], tags: Tags) -> str:
    """Return what the rows of a mask read: a tensor, its rows and k."""
    tensors = content.places.tensor[mask]
    if (tensors < 0).all():
        return "zeros" if content.zeros else "data of no input"
    most = int(np.bincount(tensors[tensors >= 0]).argmax())
    of = mask & (content.places.tensor == most)
    tensor = tags.tensors[most]
    rows = content.places.row[of]
    padding = ", which is padding" if int(rows.min()) >= tensor.rows else ""
    ks = content.places.k[of]
    return f"{tensor}, rows {span(rows)}{padding}, {k_range(int(ks.min()), int(ks.max() - ks.min()) + 64)}"


def _copy(content: Content, row: int) -> int:
    return UNKNOWN if content.operand.copies is None else int(content.operand.copies[row])


def _by_copy(recorder: OperandRecorder, grid: Grid, origins: CtaOrigins, columns: NDArray[np.intp]) -> str:
    number = int(origins.tmem.by[columns[0]].max())
    return f", copied by {statement(grid, recorder.copies[number].at)}" if number >= 0 else ""


def _by_load(recorder: OperandRecorder, grid: Grid, origins: CtaOrigins, unit: int) -> str:
    number = int(origins.shared.by[unit])
    return f", loaded by {statement(grid, recorder.loads[number].at)}" if number >= 0 else ""
