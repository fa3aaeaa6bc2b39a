"""Matrix operands in shared memory: the place of their elements, and copies of their bytes.

An MMA reads 32 bytes of K of each row, or 48 (K = 96). Shared memory is read in *chunks* of 16 bytes, the smallest
unit that any swizzle moves. A geometry is a table of chunk numbers relative to the start of the swizzle pattern,
computed once for each combination of swizzle, offsets, rows and phase, so that reading an operand is one gather.

Layouts (PTX ISA, "Strides" and "Shared Memory Layout and Swizzling"; offsets before the swizzle, which XORs the
absolute address as TMA does; pitch is 128, 64 or 32 bytes; r a row of M or N, k a byte of K in K-major, an element of K
in MN-major, c a chunk of a row of M or N):

- K-major, swizzled: ``(r / 8) * SBO + (r % 8) * pitch + k`` (LBO is not used);
- K-major, no swizzle: ``(r / 8) * SBO + (r % 8) * 16 + (k / 16) * LBO + k % 16``;
- MN-major, swizzled: ``(c / w) * LBO + (c % w) * 16 + (k / s) * SBO + (k % s) * pitch`` with w = pitch / 16 chunks and
  s = 8 rows an atom, or 4 for 128B with 32B atoms (source of the stride of those atoms: CUTLASS's canonical layouts);
- MN-major, no swizzle: ``c * SBO + (k / 8) * LBO + (k % 8) * 16``.

Elements of 4 and 6 bits of kinds with K = 32 lie in chunks of 16, of K or, MN-major, of rows: they are laid out like
elements of 8 bits, and TMA's padded types write them so.

MN-major operands of 32-bit elements need 32B atoms, and no other operand may have them (PTX ISA, "Valid Combinations
of Type-Size, Major-ness and Swizzling"). A start may be any multiple of 16 bytes in the pattern, as long as the bytes
read along K stay in a row: the swizzle acts on absolute addresses, so that TMA and MMA agree (source: NVIDIA's
grouped-GEMM template, whose operands start 640 bytes into a pattern with a base offset of 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.memory.shared import RESERVED, SharedMemory
from pytest_nvfp4.sim.tcgen05.descriptor import SWIZZLES, MatrixDescriptor

Chunks = NDArray[np.complex128]
"""Items of 16 bytes; the values as complex numbers are never used."""
_PATTERN = 1024
"""Bytes of the longest swizzle pattern; a multiple of every shorter one."""
_SPARE = 8
"""Free recordings of one shape to keep for reuse."""


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """Chunk numbers of an operand, relative to a multiple of 1,024 bytes.

    Attributes:
        table: K-major ``[row][2]`` (``[row][3]`` for K = 96, ``[row][1]`` for a copy of 128-bit rows), MN-major
            ``[chunk of rows][k]``.
        lowest, last: Smallest and largest number in the table.
    """

    table: NDArray[np.intp]
    lowest: int
    last: int
    mn: bool
    rows: int
    element_bytes: int


class UnwrittenRows(NamedTuple):
    """What nothing has written of an operand.

    Attributes:
        rows: Which rows have such bytes.
        fault: The first of these bytes, as the finding of a use.
    """

    rows: NDArray[np.bool_]
    fault: Fault


class SharedChunks:
    """A CTA's shared memory in chunks, and the operands whose bytes were found written."""

    def __init__(self, shared: SharedMemory) -> None:
        self.shared = shared
        usable = shared.size & ~15
        self.chunks: Chunks = shared.data[:usable].view(np.complex128)
        self.written: NDArray[np.bool_] = shared.written[:usable].reshape(-1, 16)
        self._checked: set[tuple[int, Geometry]] = set()

    def check(self, start: int, geometry: Geometry, *, what: str) -> tuple[int, UnwrittenRows | None]:
        """Check that an operand lies in bounds; return its pattern's first chunk, and its rows that are not written.

        Raises:
            Fault: ``out-of-bounds``, or ``in-flight``: a copy to the bytes is.
        """
        first = first_chunk(start)
        if (first, geometry) in self._checked:
            return first, None
        low, last = first + geometry.lowest, first + geometry.last
        if first >= 0 and last < self.chunks.size and self.written[low : last + 1].all():
            # Operands are nearly always contiguous, so that a slice finds out faster than the table.
            self._checked.add((first, geometry))
            return first, None
        indices = geometry.table + first
        if first < 0 or first + geometry.last >= self.chunks.size:
            self.shared.check_bounds((indices.reshape(-1, 1) * 16 + np.arange(16)), what=what)
        written = self.written[indices]
        if not written.all():
            whole = written.all(axis=2)
            chunk = int(indices.ravel()[np.argmin(whole)])
            fault = self.shared.uninitialised(chunk * 16 + int(np.argmin(self.written[chunk])), what=what)
            if fault.kind == "in-flight":  # a wait is missing before the MMA, whatever its result is used for
                raise fault
            # A chunk of an MN-major operand has several rows.
            rows = np.ones(geometry.rows, np.bool_)
            if not geometry.mn:
                np.logical_not(np.logical_and.reduce(whole, axis=1), out=rows)
            return first, UnwrittenRows(rows, fault)
        self._checked.add((first, geometry))
        return first, None

    def written_words(self, words: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which 32-bit words, by number, were written in full."""
        found: NDArray[np.bool_] = np.logical_and.reduce(self.written.reshape(-1, 4)[words], axis=-1)
        return found

    def gather(self, first: int, geometry: Geometry) -> Chunks:
        """Return a copy of the operand's chunks; ``first`` is from ``check``."""
        return self.chunks[first:].take(geometry.table)


def first_chunk(start: int) -> int:
    """Return the number of the chunk to which the table of an operand at a start address is relative."""
    return ((start & ~(_PATTERN - 1)) - RESERVED) >> 4


@dataclass(slots=True, eq=False)
class Recording:
    """Copies of an operand's chunks, one instruction after the other. ``count``: number of instructions recorded."""

    _memory: Chunks
    count: int = 0

    def gather(self, chunks: Chunks, table: NDArray[np.intp]) -> None:
        """Record the chunks of a table, without a copy in between."""
        chunks.take(table, out=self._memory[self.count].reshape(table.shape), mode="clip")
        self.count += 1

    def add(self, chunks: Chunks) -> None:
        """Record chunks."""
        self._memory[self.count] = chunks.ravel()
        self.count += 1

    def all(self) -> Chunks:
        """Return a view of all recorded chunks, ``[instruction][chunk]``."""
        return self._memory[: self.count]


class Recordings:
    """Pool of recordings' memory. It is reused, because touching fresh memory costs as much as the copies."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, int], list[Chunks]] = {}

    def start(self, capacity: int, size: int) -> Recording:
        """Return a recording of up to ``capacity`` instructions of ``size`` chunks."""
        free = self._free.get((capacity, size))
        return Recording(free.pop() if free else np.empty((capacity, size), np.complex128))

    def end(self, recording: Recording) -> None:
        """Take back the memory of a recording that is not used any more."""
        memory = recording._memory
        free = self._free.setdefault(memory.shape, [])
        if len(free) < _SPARE:
            free.append(memory)


def geometry(
    matrix: MatrixDescriptor, *, rows: int, mn: bool, element_bytes: int, what: str, row_bytes: int = 32
) -> Geometry:  # fmt: skip
    """Return the geometry of an operand.

    Args:
        rows: Rows of M or N.
        mn: Whether the operand is MN-major.
        row_bytes: Bytes of K of a K-major row: 32, 48 for K = 96, or 16 for a copy.

    Raises:
        Fault: the descriptor is illegal for this operand.
        Unsupported: K-major with 32 B atoms.
    """
    swizzle = matrix.swizzle
    if mn:
        if (element_bytes == 4) != (swizzle.code == 1):
            raise Fault(
                "descriptor",
                f"{what}: MN-major operand of {8 * element_bytes}-bit elements with swizzle {swizzle.name}; swizzle "
                "128B with 32B atoms is required for 32-bit elements and illegal for others",
            )
    elif swizzle.code == 1:
        raise Unsupported(f"{what}: K-major operand with swizzle {swizzle.name}")
    if swizzle.mask:
        offset = matrix.start % swizzle.pitch
        chunks = rows * element_bytes // 16
        reach = min(chunks * 16, swizzle.pitch) if mn else row_bytes
        if offset + reach > swizzle.pitch and matrix.then is None:
            raise Fault(
                "descriptor",
                f"{what}: {reach} bytes from byte {offset} of a row of {swizzle.pitch} bytes (swizzle {swizzle.name}) "
                "run past the end of the row",
                hint="advance the descriptor by 32 bytes along K inside a row, and by an atom at its end",
            )
    base = matrix.lowest & ~(_PATTERN - 1)
    inside, then = matrix.start - base, None if matrix.then is None else matrix.then - base
    uses_leading = mn or not swizzle.mask
    return _table(
        swizzle.code, inside, matrix.leading if uses_leading else 0, matrix.stride, rows, mn, element_bytes, row_bytes,
        then,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _table(
    code: int, inside: int, leading: int, stride: int, rows: int, mn: bool, element_bytes: int, row_bytes: int,
    then: int | None,
) -> Geometry:  # fmt: skip
    swizzle = SWIZZLES[code]
    if mn:
        wide = swizzle.pitch // 16
        chunk = np.arange(rows * element_bytes // 16)[:, None]
        k = np.arange(32 // element_bytes)[None, :]
        if swizzle.mask:
            linear = chunk // wide * leading + chunk % wide * 16
            linear = linear + k // swizzle.rows * stride + k % swizzle.rows * swizzle.pitch
        else:
            linear = chunk * stride + k // 8 * leading + k % 8 * 16
    else:
        row = np.arange(rows)[:, None]
        half = np.arange(row_bytes // 16)[None, :]
        linear = row // 8 * stride + row % 8 * swizzle.pitch + half * (16 if swizzle.mask else leading)
        if then is not None:
            past = inside % swizzle.pitch + half * 16 - swizzle.pitch
            linear = np.where(past >= 0, linear - half * 16 + then - inside + past, linear)
    linear = linear + inside
    physical = linear ^ (linear >> swizzle.shift & swizzle.mask)
    table = np.ascontiguousarray(physical >> 4, np.intp)
    table.flags.writeable = False
    return Geometry(table, int(table.min()), int(table.max()), mn, rows, element_bytes)


@lru_cache(maxsize=1024)
def units_of(geometry: Geometry) -> NDArray[np.intp]:
    """Return the unique chunk numbers of an operand."""
    units = np.unique(geometry.table)
    units.flags.writeable = False
    return units


def k_major_rows(
    together: Chunks, count: int, *, rows: int, mn: bool, element_bytes: int
) -> NDArray[np.uint8]:  # fmt: skip
    """Return the bytes of ``count`` operands as rows of K: ``[row][instruction][32 or 48 bytes]``, contiguous.

    Args:
        together: The chunks of every instruction, in order.
    """
    if not mn:
        # Each row is a run of 32 or 48 bytes that is copied whole.
        runs = together.reshape(count, rows, -1).transpose(1, 0, 2)
        return np.ascontiguousarray(runs).view(np.uint8).reshape(rows, count, -1)
    per = 16 // element_bytes
    k = 32 // element_bytes
    words = together.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[element_bytes]).reshape(count, rows // per, k, per)
    k_major = np.ascontiguousarray(words.transpose(1, 3, 0, 2)).reshape(rows, count, k)
    return k_major.view(np.uint8).reshape(rows, count, 32)
