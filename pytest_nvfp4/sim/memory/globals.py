"""Global memory: the named regions of this process that a kernel may access.

Addresses are those of this process. A region is one allocation (a tensor's storage, a table of pointers, the parameter
block). Bytes between two regions belong to no allocation: an access past the end of a tensor is a fault and does not
read a neighbour's data.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.sim.fault import Fault

_FREED_LIMIT = 1024
"""Number of freed allocations that messages can name."""
_NEAR = 1 << 20
"""Bytes around a tensor within which a message gives the tensor's name instead of the absolute address."""
_NULL = 1 << 16
"""Addresses below it are an offset from a null pointer: no device allocates there."""
_OF_LIBRARIES = re.compile(
    r"variable _ZN(?:\d+_INTERNAL_\w*?)?(?:4cuda|3cub|6thrust|7cutlass|4cute|18cooperative_groups)\d"
)
"""Names of variables that come with the headers of C++ libraries, which no message is about."""
_STORED_RUNS = 64
"""Runs of elements stored for one pair of CTAs and one instruction; the counts include all of them."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Elements [start, stop) written by CTA ``before`` and then by CTA ``now`` at a place of the kernel.

    ``place`` is empty if it is not known, as for two CTAs that ran in different processes.
    """

    before: int
    now: int
    place: str
    start: int
    stop: int


@dataclass(slots=True)
class Coverage:
    """Write conflicts of one region.

    Attributes:
        conflicts: The first runs of each conflict.
        counts: Number of elements of all conflicts, by (before, now, at).
        place: Returns the place of an instruction of this launch.
    """

    conflicts: list[Conflict] = field(default_factory=list)
    counts: dict[tuple[int, int, int], int] = field(default_factory=dict)
    place: Callable[[int], str] | None = None
    _stored: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def record(self, elements: NDArray[np.intp], before: NDArray[np.int32], now: int, at: int) -> None:
        """Record elements that CTA ``now`` wrote and that CTA ``before`` (one entry an element) had written."""
        for cta in np.unique(before):
            key = (int(cta), now, at)
            own = np.sort(elements[before == cta])
            self.counts[key] = self.counts.get(key, 0) + own.size
            stored = self._stored.get(key, 0)
            if stored < _STORED_RUNS:
                runs = contiguous_runs(own)[: _STORED_RUNS - stored]
                place = self.place(at) if self.place is not None and at >= 0 else ""
                self.conflicts.extend(Conflict(key[0], now, place, start, stop) for start, stop in runs)
                self._stored[key] = stored + len(runs)


def contiguous_runs(elements: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return ascending numbers as runs [start, stop); a repeated number does not end a run."""
    if not elements.size:
        return []
    breaks = np.flatnonzero(np.diff(elements) > 1) + 1
    starts = elements[np.concatenate(([0], breaks))]
    stops = elements[np.concatenate((breaks - 1, [elements.size - 1]))] + 1
    return [(int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


@dataclass(slots=True, eq=False)
class Region:
    """``size`` bytes at address ``start``. ``describe`` returns the user's term for a byte offset."""

    name: str
    start: int
    size: int
    writable: bool = True
    describe: Callable[[int], str] | None = None
    data: NDArray[np.uint8] = field(init=False, repr=False)
    """The bytes, in place."""
    owner: NDArray[np.int32] | None = field(default=None, repr=False)
    """Writer of each element of ``owner_bytes`` bytes: linear CTA plus ``launch_base``, or negative
    (see ``memory.coverage``). None if not watched."""
    owner_bytes: int = 1
    launch_base: int = field(default=0, repr=False)
    """Owner number of CTA 0 of this launch; smaller numbers are writers of earlier launches."""
    highest: int = field(default=-1, repr=False)
    """Largest owner number so far."""
    coverage: Coverage | None = field(default=None, repr=False)
    """Write conflicts of a watched output."""
    notes: list[tuple[Any, ...]] | None = field(default=None, repr=False)
    """The writes of a watched output that this process has recorded, for its parent: see ``coverage.repeat``."""
    initialised: NDArray[np.bool_] | None = field(default=None, repr=False)
    """Whether each byte was ever written; None if that is not tracked."""
    read_at: int = field(default=-1, repr=False)
    """An instruction of the launch that reads a region which kernels do not write, while races are looked for."""
    unknown: bool = field(default=False, repr=False)
    """Whether its content is not there, or not what the launches so far have made of it (simulations without data)."""
    raw: memoryview = field(init=False, repr=False)
    """The same bytes for ``struct``."""

    def __post_init__(self) -> None:
        self._bind()

    def cut(self, size: int) -> None:
        """Shorten the region to its first ``size`` bytes. Raises ValueError."""
        if not 0 <= size <= self.size:
            raise ValueError(f"{self.name} has {self.size} bytes and cannot be cut to {size}")
        self.size = size
        self._bind()
        if self.initialised is not None:
            self.initialised = self.initialised[:size]
        if self.owner is not None:
            self.owner = self.owner[: -(-size // self.owner_bytes)]

    def _bind(self) -> None:
        if self.size:
            self.raw = memoryview((ctypes.c_ubyte * self.size).from_address(self.start)).cast("B")
            self.data = np.frombuffer(self.raw, np.uint8)
        else:
            self.raw = memoryview(b"")
            self.data = np.empty(0, np.uint8)

    def watch(self, owner_bytes: int) -> Coverage:
        """Start to record the writer of every element of ``owner_bytes`` bytes (see ``memory.coverage``)."""
        self.owner_bytes = owner_bytes
        self.owner = np.full(-(-self.size // owner_bytes), -1, np.int32)
        self.coverage = Coverage()
        self.launch_base, self.highest = 0, -1
        return self.coverage

    def track_writes(self) -> None:
        """Begin to record which bytes are written, by processes forked later, too; none was."""
        self.initialised = np.frombuffer(mmap.mmap(-1, max(1, self.size)), np.bool_, self.size)

    def forget_writes(self) -> None:
        """Record no longer which bytes are written if all were."""
        if self.initialised is not None and self.initialised.all():
            self.initialised = None

    def unwritten(self, offset: int, size: int, *, what: str, kind: str = "uninitialised") -> Fault | None:
        """Return the fault of reading bytes of which some were never written; None if all were, or if it is unknown."""
        if self.initialised is None:
            return None
        known = self.initialised[offset : offset + size]
        return None if known.all() else self.uninitialised(offset + int(np.argmin(known)), what=what, kind=kind)

    def uninitialised(self, offset: int, *, what: str, kind: str = "uninitialised") -> Fault:
        """Return the fault of reading a byte that was never written."""
        return Fault(
            kind,
            f"{what}: reads {self.place(self.start + offset)}, which was never written",
            hint="fill the tensor before the launch, or write it before it is read",
        )

    def begin_launch(self, place: Callable[[int], str] | None = None) -> None:
        """Start a new launch: overwriting elements of earlier launches is no conflict.

        Args:
            place: Returns the place of an instruction of its kernel.
        """
        self.launch_base = self.highest + 1
        if self.coverage is not None:
            self.coverage.place = place

    @property
    def end(self) -> int:
        """Address after the last byte."""
        return self.start + self.size

    def place(self, address: int) -> str:
        """Describe an address inside or near the region."""
        offset = address - self.start
        if self.describe is not None and 0 <= offset < self.size:
            return self.describe(offset)
        if offset < 0:
            return f"{-offset} bytes before {self.name}"
        if offset >= self.size:
            return f"{offset - self.size} bytes after the end of {self.name} ({self.size} bytes)"
        return f"{self.name} at byte {offset}"


def dense(extent: Extent) -> bool:
    """Return whether no bytes lie between the elements of an extent, nor are some of several elements."""
    size = extent.size
    for stride, count in sorted(zip(extent.strides, extent.shape, strict=True)):
        if count > 1:
            if stride != size:
                return False
            size *= count
    return True


@dataclass(slots=True)
class Touched:
    """The regions that a launch has read and written so far; an atomic operation is both."""

    reads: set[Region] = field(default_factory=set)
    writes: set[Region] = field(default_factory=set)


class FreedMemory(NamedTuple):
    """An allocation that the host has freed."""

    start: int
    size: int
    name: str


class GlobalMemory:
    """All regions, sorted by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: list[Region] = []
        self._nothing = Region("nothing", 0, 0)
        self.recent_read = self.recent_written = self._nothing
        """Regions of the last read and write. Most accesses hit the same one again, which saves the search and the
        note in ``touched``."""
        self.touched = Touched()
        self.freed: deque[FreedMemory] = deque(maxlen=_FREED_LIMIT)

    def add(self, region: Region) -> Region:
        """Add a region. Raises ValueError if it overlaps another one."""
        position = bisect.bisect_right(self._starts, region.start)
        for other in self._regions[max(0, position - 1) : position + 1]:
            if region.start < other.end and other.start < region.end:
                raise ValueError(f"{region.name} overlaps {other.name}")
        self._starts.insert(position, region.start)
        self._regions.insert(position, region)
        return region

    def remove(self, region: Region) -> None:
        """Remove a region."""
        position = self._regions.index(region)
        del self._starts[position], self._regions[position]
        if self.recent_read is region:
            self.recent_read = self._nothing
        if self.recent_written is region:
            self.recent_written = self._nothing

    def begin_launch(self) -> None:
        """Start the record of the regions that a launch reads and writes."""
        self.recent_read = self.recent_written = self._nothing
        self.touched = Touched()

    def enter(self, region: Region, *, write: bool) -> None:
        """Record that the launch reads or writes a region, and expect its next such access there."""
        if write:
            self.recent_written = region
            self.touched.writes.add(region)
        else:
            self.recent_read = region
            self.touched.reads.add(region)

    def __iter__(self) -> Iterator[Region]:
        return iter(self._regions)

    def find(self, address: int) -> Region | None:
        """Return the region that contains an address."""
        position = bisect.bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        region = self._regions[position]
        return region if address < region.end else None

    def written(self, extent: Extent) -> NDArray[np.bool_] | None:
        """Return whether each byte of an extent was written, by element; None if that is not recorded.

        Of an extent that is partly outside its region: that of all bytes from its first on.
        """
        if 0 in extent.shape or (region := self.find(extent.address)) is None or region.initialised is None:
            return None
        written = region.initialised[extent.address - region.start :]
        last = sum((count - 1) * stride for count, stride in zip(extent.shape, extent.strides, strict=True))
        if min(extent.strides, default=0) < 0 or last + extent.size > written.size:
            return written
        return as_strided(written, (*extent.shape, extent.size), (*extent.strides, 1))

    def wrote(self, extent: Extent) -> None:
        """Record that the host has written an extent. A region that is written as a whole is recorded no longer."""
        written = self.written(extent)
        if written is None:
            return
        region = self.find(extent.address)
        if region is not None and extent.address == region.start and written.nbytes == region.size and dense(extent):
            region.initialised = None
        else:
            written[...] = True

    def region(self, address: int, size: int, *, write: bool, what: str) -> Region:
        """Return the region that contains all of [address, address + size).

        Raises:
            Fault: out of bounds, or a write to a read-only region.
        """
        region = self.recent_written if write else self.recent_read
        if address < region.start or address + size > region.start + region.size:
            position = bisect.bisect_right(self._starts, address) - 1
            if position < 0 or address + size > self._regions[position].end:
                raise self.outside(address, size, write=write, what=what)
            region = self._regions[position]
            self.enter(region, write=write)
        if write and not region.writable:
            raise Fault(
                "read-only",
                f"{what}: writes {region.place(address)}, which is read-only",
                hint="kernel parameters, pointer tables and inputs must not be written",
            )
        return region

    def outside(self, address: int, size: int, *, write: bool, what: str) -> Fault:
        """Return the fault of an access outside every region; its message names the nearest region."""
        verb = "writes" if write else "reads"
        if address < _NULL:
            more = f" plus {address} bytes" if address else ""
            return Fault(
                "out-of-bounds",
                f"{what}: {verb} {size} bytes at a null pointer{more}",
                hint="check the pointers that the launch passes, and those that the kernel loads from memory",
            )
        regions = [region for region in self._regions if not _OF_LIBRARIES.match(region.name)] or self._regions
        near = min(regions, key=lambda r: max(r.start - address, address + size - r.end, 0), default=None)
        nearest = f"; the nearest tensor: {near.place(address)}" if near is not None else "; no tensor is allocated"
        # The absolute address differs from run to run; the name of a near tensor does not.
        beside = near is not None and near.start - _NEAR < address < near.end + _NEAR
        place = "" if beside else f" at global address {address:#x}"
        for freed in reversed(self.freed):
            if freed.start <= address < freed.start + freed.size:
                return Fault(
                    "out-of-bounds",
                    f"{what}: {verb} {size} bytes, from byte {address - freed.start} of {freed.name}, which the host "
                    "has freed",
                    hint="keep the tensor until the kernel has ended: an address (data_ptr) does not keep it alive",
                )
        return Fault(
            "out-of-bounds",
            f"{what}: {verb} {size} bytes{place}, outside every tensor{nearest}",
            hint="check the predicate that guards the last rows or columns, and the strides"
            if beside
            else "check for an offset that overflows, and for data_ptr() of a tensor in host memory",
        )

    def read(self, address: int, size: int, *, what: str) -> NDArray[np.uint8]:
        """Return a view of bytes. Raises Fault."""
        region = self.region(address, size, write=False, what=what)
        offset = address - region.start
        if (unwritten := region.unwritten(offset, size, what=what)) is not None:
            raise unwritten
        return region.data[offset : offset + size]

    def write(self, address: int, data: NDArray[np.uint8], *, what: str) -> None:
        """Write bytes; a watched output also needs ``memory.coverage.note_write``. Raises Fault."""
        region = self.region(address, data.size, write=True, what=what)
        offset = address - region.start
        region.data[offset : offset + data.size] = data
        if region.initialised is not None:
            region.initialised[offset : offset + data.size] = True
