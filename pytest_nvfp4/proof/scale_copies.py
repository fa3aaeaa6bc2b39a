"""Copies of scale factors from shared memory to TMEM, compared with what each MMA must read.

``tcgen05.cp .32x128b.warpx4`` copies 32 lines of 16 bytes; line i, byte c goes to TMEM lane i + 32 q, q = 0 .. 3, and
byte c of four consecutive columns (PTX ISA, "tcgen05.cp"). The copies of a stage move the addresses of bytes instead of
the bytes; the addresses that end up in TMEM are compared with those that each MMA must read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.offsets import domain_size, offset_array
from pytest_nvfp4.layout.tree import leaves
from pytest_nvfp4.proof.scale_operand import LANE, LANE_BYTES, LANES, MMA_K, ScaleOperand
from pytest_nvfp4.proof.scale_places import Places, missing_rows, places_of, tmem_words
from pytest_nvfp4.proof.statement import CaseResult

_LINES, _LINE = 32, 16
"""Lines of one copy, and bytes of a line."""
_QUADRANTS = 4


@dataclass(frozen=True, slots=True)
class _Copies:
    """Copies of one operand.

    Attributes:
        reads: Starts of the copies in shared memory, in 16-byte units, by stage.
        writes: TMEM addresses of their starts, the same in every stage.
        line_step: Bytes of shared memory between lines of a copy.
        side: TMEM side of one copy.
    """

    reads: list[list[int]]
    writes: list[int]
    line_step: int
    side: Layout


def check_copy(operand: ScaleOperand, *, line_units: int = 1, source_units: int = 0) -> CaseResult:
    """Check that, after the copies of a stage, each MMA reads the bytes of its rows and k-blocks.

    Wrong with ``line_units`` 8 (lines 128 bytes apart) or ``source_units`` (16-byte units of delay of the copy).

    Raises:
        LayoutError: the copy was not found, or its layouts have another form.
    """
    copies = _copies_of(operand)
    smem, tmem = places_of(operand.smem, copies=1), places_of(operand.tmem, copies=_QUADRANTS)
    wrong = (
        missing_rows(operand, smem, "shared memory")
        or missing_rows(operand, tmem, "TMEM")
        or _unequal_k(operand, smem, tmem)
        or _lines_mismatch(operand, copies)
        or _start_mismatch(operand, copies)
    )
    if wrong is not None:
        return CaseResult(wrong, 1)
    smem, tmem = smem.within(operand.rows), tmem.within(operand.rows)
    first = tmem.k % operand.vector == 0  # one of the elements that share a factor is enough
    row, k, mma, place = tmem.row[first], tmem.k[first], tmem.mma[first], tmem.offset[first]
    if len(outside := np.flatnonzero((place // LANE >= LANES) | (place % LANE >= LANE_BYTES) | (place < 0))):
        return CaseResult(f"{operand.name}: the MMA reads {tmem_words(int(place[outside[0]]))}, outside TMEM", 1)
    due = np.zeros((operand.rows, MMA_K, int(smem.mma.max()) + 1), np.int64)
    for stage, reads in enumerate(copies.reads):
        late = [unit + source_units for unit in reads]
        image = _tmem_after(late, copies.writes, line_step=copies.line_step * line_units)
        now = smem.stage == stage
        due[smem.row[now], smem.k[now], smem.mma[now]] = smem.offset[now]
        actual, expected = image[place // LANE, place % LANE], due[row, k, mma]
        differ = np.flatnonzero(actual != expected)
        if len(differ):
            at = int(differ[0])
            byte = int(actual[at])
            content = f"byte {byte} of shared memory, not {expected[at]}" if byte >= 0 else "written by no copy"
            wrong = (
                f"{operand.name}, stage {stage}, row {row[at]}, k {mma[at] * MMA_K + k[at]}: the MMA reads "
                f"{tmem_words(int(place[at]))}, which is {content}"
            )
            return CaseResult(wrong, (stage + 1) * len(place))
    return CaseResult(None, len(copies.reads) * len(place))


def _copies_of(operand: ScaleOperand) -> _Copies:
    if operand.source is None or operand.target is None:
        raise LayoutError(f"{operand.name}: its copy was not found")
    parts = modes(operand.smem)
    reads = _starts(operand.source, stages=domain_size(parts[3]) if len(parts) == 4 else 1)
    writes = _starts(operand.target, stages=1)[0]
    if len(reads[0]) != len(writes):
        raise LayoutError(f"{operand.name}: {len(reads[0])} sources and {len(writes)} targets of copies do not pair")
    step = leaves(modes(operand.source)[0].stride)[0]
    line_step = (step if isinstance(step, int) else 1) * _LINE
    return _Copies(reads, writes, line_step, modes(operand.target)[0])


def _starts(layout: Layout, *, stages: int) -> list[list[int]]:
    """Return the start of each instruction by stage; the first mode is the inside of one instruction."""
    inner = domain_size(modes(layout)[0])
    starts = offset_array(layout)[::inner] if inner else offset_array(layout)
    if not stages or len(starts) % stages:
        raise LayoutError(f"{layout}: {len(starts)} instructions do not divide into {stages} stages")
    return starts.reshape(stages, -1).tolist()


def _unequal_k(operand: ScaleOperand, smem: Places, tmem: Places) -> str | None:
    if smem.size[1] == tmem.size[1]:
        return None
    return f"{operand.name}: shared memory has {smem.size[1]} MMAs of k, and TMEM {tmem.size[1]}"


def _lines_mismatch(operand: ScaleOperand, copies: _Copies) -> str | None:
    """Return a message if a copy's TMEM side differs from the places that the instruction writes."""
    line, byte = _line_bytes()
    goes = [(line + _LINES * quadrant) * LANE + byte for quadrant in range(_QUADRANTS)]
    if offset_array(copies.side).tolist() == np.stack([part.T for part in goes]).ravel().tolist():
        return None
    return f"{operand.name}: a copy's TMEM side is {copies.side}, but its lines go to other places"


def _start_mismatch(operand: ScaleOperand, copies: _Copies) -> str | None:
    for address in copies.writes:
        if address // LANE or address + _LINE > LANE_BYTES:
            return f"{operand.name}: a copy starts at {tmem_words(address)}; it must start at lane 0 of a legal column"
    return None


def _tmem_after(reads: Sequence[int], writes: Sequence[int], *, line_step: int) -> NDArray[np.int64]:
    """Return the byte of shared memory at each lane and byte of TMEM after one stage's copies; -1 where none wrote."""
    line, byte = _line_bytes()
    image = np.full((LANES, LANE_BYTES), -1, np.int64)
    for unit, address in zip(reads, writes, strict=True):
        taken = unit * _LINE + line * line_step + byte
        for quadrant in range(_QUADRANTS):
            image[line + _LINES * quadrant, address + byte] = taken
    return image


def _line_bytes() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return line and byte of everything that one copy reads, each an array of lines by bytes."""
    line, byte = np.meshgrid(np.arange(_LINES), np.arange(_LINE), indexing="ij")
    return line, byte
