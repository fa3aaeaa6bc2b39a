"""Ways of an accumulator tile from TMEM through registers to global memory, enumerated, counted and ranked.

A way is a ``tcgen05.ld`` shape, a number of columns that are loaded at once, and a path: *direct* stores from the
registers that hold a row, or *staged* through shared memory, with TMA or coalesced stores of 16 bytes a lane after it.
The warps cover the lanes of TMEM in quarters (warp w reaches lanes 32 * (w % 4) to + 31); further warps cover further
columns. `pytest_nvfp4.search.epilogue_fragments` describes the elements of lanes and registers.

The ranking is, in this order: sectors of global memory for the stored bytes, cache lines of a request, bytes that a
lane moves at once, bank conflicts, registers, bytes and passes of shared memory. All are *enumerated* from addresses;
none is a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from pytest_nvfp4.layout.notation import Layout, Swizzle
from pytest_nvfp4.layout.warp import LINE_BYTES, SECTOR_BYTES, WARP, bank_conflicts, coalescing
from pytest_nvfp4.search.epilogue_fragments import LANES, Fragment, fragments

Path = Literal["direct", "staged", "TMA"]

STORE_BYTES = (32, 16, 8, 4, 2, 1)
"""Widths of one store of a lane: 32 bytes to global memory only, on sm_100 and later (PTX ISA, "st")."""
SUBTILES = (8, 16, 32, 64, 128, 256)
SHARED_STAGES = 2
"""Buffers in shared memory, so that one fills while the other drains."""
_SWIZZLES = {32: Swizzle(1, 4, 3), 64: Swizzle(2, 4, 3), 128: Swizzle(3, 4, 3)}
_PITCH = 1 << 16
"""Bytes from one row of C to the next: all multiples of a cache line have the same counts."""


class EpilogueError(ValueError):
    """A tile or a number of threads without any way."""


@dataclass(frozen=True, slots=True)
class EpilogueTile:
    """An accumulator tile and the threads that store it.

    Attributes:
        n: Columns of the tile in one CTA; its rows are the 128 lanes of TMEM.
        threads: Threads of the epilogue: 128 cover the lanes once, more store several parts of the columns at a time.
        bits: Bits of an element of C.

    Raises:
        EpilogueError: The sizes are not supported.
    """

    n: int
    threads: int = 128
    bits: int = 16

    def __post_init__(self) -> None:
        if self.bits not in (8, 16, 32):
            raise EpilogueError(f"elements of {self.bits} bits: C must have 8, 16 or 32")
        if self.threads not in (128, 256, 512):
            raise EpilogueError(
                f"{self.threads} threads: a warp reaches 32 of the 128 lanes, so there must be 128, 256 or 512"
            )
        if self.n < 8 or self.n > 512 or self.n % (8 * self.parts):
            raise EpilogueError(
                f"N = {self.n} with {self.threads} threads: each of {self.parts} groups of four warps stores a "
                f"multiple of 8 columns, so N must be a multiple of {8 * self.parts}, at most 512"
            )

    @property
    def parts(self) -> int:
        """Number of groups of four warps, each with its own columns."""
        return self.threads // LANES

    @property
    def columns(self) -> int:
        """Columns of each group of four warps."""
        return self.n // self.parts


@dataclass(frozen=True, slots=True)
class Counts:
    """Accesses of one warp for its part of the tile.

    Attributes:
        requests: Instructions, or boxes of TMA.
        units: Sectors of global memory, or wavefronts of shared memory.
        ideal: Fewest units that move as many bytes.
        lines: Cache lines touched, over all requests; 0 for shared memory.
        ideal_lines: Fewest lines for as many bytes.
    """

    requests: int
    units: int
    ideal: int
    lines: int = 0
    ideal_lines: int = 0

    @property
    def efficiency(self) -> float:
        """Fewest units over actual units, 0 to 1."""
        return self.ideal / self.units

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.requests + other.requests,
            self.units + other.units,
            self.ideal + other.ideal,
            self.lines + other.lines,
            self.ideal_lines + other.ideal_lines,
        )

    def __mul__(self, times: int) -> Counts:
        return Counts(
            self.requests * times, self.units * times, self.ideal * times, self.lines * times, self.ideal_lines * times
        )


@dataclass(frozen=True)
class Way:
    """One way of the tile to global memory.

    Attributes:
        name: Unique name.
        path: Path after the registers.
        load: ``tcgen05.ld`` shape with its repetition.
        thread_value: (thread, value) -> row + 128 * column of the part of the tile that is loaded at once; None for a
            kernel's own way.
        columns: Columns loaded at once.
        width: Bytes that one lane moves at once, the minimum over the way.
        store: Accesses of global memory.
        shared: Accesses of shared memory, writes and reads together; None for direct stores.
        registers: 32-bit registers of a thread for one load: fp32 values and packed elements of C.
        smem_bytes: Bytes of shared memory.
        swizzle: Swizzle of the buffer in shared memory.
        own: Whether it is the kernel's own way.
    """

    name: str
    path: Path
    load: str
    thread_value: Layout | None
    columns: int
    width: int
    store: Counts
    shared: Counts | None
    registers: int
    smem_bytes: int
    swizzle: Swizzle | None = None
    own: bool = False

    @property
    def conflicts(self) -> int:
        """Wavefronts above the fewest possible."""
        return 0 if self.shared is None else self.shared.units - self.shared.ideal

    @property
    def sectors_a_request(self) -> float:
        """Average number of sectors of a request."""
        return self.store.units / self.store.requests

    @property
    def line_efficiency(self) -> float:
        """Fewest lines over lines touched, 0 to 1."""
        return self.store.ideal_lines / self.store.lines

    @property
    def key(self) -> tuple[float | int | str, ...]:
        """Sort key; smaller is better."""
        return (
            -round(self.store.efficiency, 6),
            -round(self.line_efficiency, 6),
            -self.width,
            self.conflicts,
            self.registers,
            self.smem_bytes,
            0 if self.shared is None else self.shared.units,
            not self.own,
            self.name,
        )


def ways(tile: EpilogueTile) -> list[Way]:
    """Return every way of a tile, best first. Raises EpilogueError if there is none."""
    found: list[Way] = []
    for columns in SUBTILES:
        if tile.columns % columns:
            continue
        for fragment in fragments(columns):
            found += _direct(tile, fragment, columns)
            found += _staged(tile, fragment, columns)
    if not found:
        raise EpilogueError(f"N = {tile.n} with {tile.threads} threads: no load divides {tile.columns} columns evenly")
    return rank(found)


def rank(found: Sequence[Way]) -> list[Way]:
    """Sort ways, best first."""
    return sorted(found, key=lambda way: way.key)


def _registers(tile: EpilogueTile, fragment: Fragment) -> int:
    return fragment.registers + -(-fragment.registers * tile.bits // 32)


def _direct(tile: EpilogueTile, fragment: Fragment, columns: int) -> Iterator[Way]:
    element = tile.bits // 8
    width = next(width for width in STORE_BYTES if width <= fragment.contiguous * element)
    store = _stores(fragment, width=width, element=element, times=tile.columns // columns)
    yield Way(
        f"{fragment.load} -> {width} B stores",
        "direct",
        fragment.load,
        fragment.thread_value(tile.parts, tile.columns),
        columns,
        width,
        store,
        None,
        _registers(tile, fragment),
        0,
    )


@lru_cache(maxsize=256)
def _stores(fragment: Fragment, *, width: int, element: int, times: int) -> Counts:
    """Count the stores of a warp directly from its registers."""
    total = Counts(0, 0, 0)
    for request in _requests(fragment, width // element):
        cost = coalescing([row * _PITCH + column * element for row, column in request], width=width)
        total += _global(1, cost.sectors, cost.lines, cost.useful_bytes)
    return total * times


def _requests(fragment: Fragment, together: int) -> Iterator[list[tuple[int, int]]]:
    lanes = [fragment.elements(lane) for lane in range(WARP)]
    for at in range(0, len(lanes[0]), together):
        yield [lane[at] for lane in lanes]


def _global(requests: int, sectors: int, lines: int, useful: int) -> Counts:
    return Counts(requests, sectors, -(-useful // SECTOR_BYTES), lines, -(-useful // LINE_BYTES))


@dataclass(frozen=True, slots=True)
class Buffer:
    """One subtile in shared memory, row by row.

    Attributes:
        row_bytes: Bytes of a row in one block: a row longer than 128 bytes is split into blocks.
        pitch: Bytes from one row to the next.
        swizzle: Swizzle of the byte addresses.
        rows: Rows of a block.
    """

    row_bytes: int
    pitch: int
    swizzle: Swizzle | None
    rows: int = LANES

    def address(self, row: int, byte: int) -> int:
        """Return the address of a byte of a row."""
        block, inside = divmod(byte, self.row_bytes)
        at = block * self.rows * self.pitch + row * self.pitch + inside
        return at if self.swizzle is None else self.swizzle(at)

    def __str__(self) -> str:
        if self.swizzle is not None:
            return str(self.swizzle)
        return f"rows of {self.pitch} B" if self.pitch != self.row_bytes else "no swizzle"


def buffers(row_bytes: int) -> Iterator[Buffer]:
    """Yield the buffers for rows of this size: plain, with a swizzle of TMA, and padded by 16 bytes."""
    block = min(row_bytes, LINE_BYTES)
    yield Buffer(block, block, None)
    if block in _SWIZZLES:
        yield Buffer(block, block, _SWIZZLES[block])
    yield Buffer(row_bytes, row_bytes + 16, None)


def _staged(tile: EpilogueTile, fragment: Fragment, columns: int) -> Iterator[Way]:
    element = tile.bits // 8
    row_bytes = columns * element
    if row_bytes < 16:
        return
    times = tile.columns // columns
    for buffer in buffers(row_bytes):
        for name, width, written in _writes(fragment, buffer, element):
            padded = buffer.pitch != buffer.row_bytes
            way = Way(
                name=f"{fragment.load} -> {name}, {buffer} -> TMA",
                path="TMA",
                load=fragment.load,
                thread_value=fragment.thread_value(tile.parts, tile.columns),
                columns=columns,
                width=width,
                store=_boxes(buffer, row_bytes) * times,
                shared=written * times,
                registers=_registers(tile, fragment),
                smem_bytes=SHARED_STAGES * tile.parts * LANES * (row_bytes + 16 * padded),
                swizzle=buffer.swizzle,
            )
            if not padded:  # TMA reads a box from dense rows
                yield way
            if (drained := _drain(buffer, row_bytes)) is not None:
                read, store = drained
                yield replace(
                    way,
                    name=f"{fragment.load} -> {name}, {buffer} -> 16 B loads and stores",
                    path="staged",
                    width=min(width, 16),
                    store=store * times,
                    shared=(written + read) * times,
                )


def _boxes(buffer: Buffer, row_bytes: int) -> Counts:
    """Count the stores by TMA, which writes whole rows of a box; a warp has 32 of the 128 rows."""
    sectors, lines = WARP * -(-row_bytes // SECTOR_BYTES), WARP * -(-row_bytes // LINE_BYTES)
    return _global(-(-row_bytes // buffer.row_bytes), sectors, lines, WARP * row_bytes)


def _writes(fragment: Fragment, buffer: Buffer, element: int) -> Iterator[tuple[str, int, Counts]]:
    """Yield name, width and counts of a warp's writes to shared memory: plain stores, and stmatrix if possible."""
    width = min(next(width for width in STORE_BYTES if width <= fragment.contiguous * element), 16)
    total = Counts(0, 0, 0)
    for request in _requests(fragment, width // element):
        cost = bank_conflicts([buffer.address(row, column * element) for row, column in request], width=width)
        total += Counts(1, cost.wavefronts, cost.ideal)
    yield f"{width} B stores", width, total
    if fragment.load.startswith("16x256b") and element == 2:
        yield "stmatrix", 16, _stmatrix(fragment, buffer)


def _stmatrix(fragment: Fragment, buffer: Buffer) -> Counts:
    """Count ``stmatrix.m8n8.x4.b16``: a matrix is 8 rows of 16 bytes, written in one pass if their banks differ."""
    elements = [element for lane in range(WARP) for element in fragment.elements(lane)]
    corners = sorted({(row - row % 8, column - column % 8) for row, column in elements}, key=lambda at: at[::-1])
    total = Counts(-(-len(corners) // 4), 0, 0)
    for row, column in corners:
        cost = bank_conflicts([buffer.address(row + at, column * 2) for at in range(8)], width=16)
        total += Counts(0, cost.wavefronts, cost.ideal)
    return total


@lru_cache(maxsize=256)
def _drain(buffer: Buffer, row_bytes: int) -> tuple[Counts, Counts] | None:
    """Count a warp's reads and stores of its 32 rows, 16 bytes a lane along a row; None if lanes do not fill rows."""
    lanes_a_row = row_bytes // 16
    if row_bytes % 16 or (WARP % lanes_a_row and lanes_a_row % WARP):
        return None
    read = store = Counts(0, 0, 0)
    places = [(row, 16 * at) for row in range(WARP) for at in range(lanes_a_row)]
    for first in range(0, len(places), WARP):
        request = places[first : first + WARP]
        conflicts = bank_conflicts([buffer.address(row, byte) for row, byte in request], width=16)
        read += Counts(1, conflicts.wavefronts, conflicts.ideal)
        moved = coalescing([row * _PITCH + byte for row, byte in request], width=16)
        store += _global(1, moved.sectors, moved.lines, moved.useful_bytes)
    return read, store
