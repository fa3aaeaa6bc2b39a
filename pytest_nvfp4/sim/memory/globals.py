"""Global memory: the regions of this process that a kernel may touch, by name.

Addresses are those of this process. A region is one allocation (a tensor's storage, a table of pointers, the parameter
block); whatever lies between two regions is nobody's, so that running past a tensor is a fault and not a wrong number.
"""

from __future__ import annotations

import bisect
import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.coverage import Coverage

__all__ = ["GlobalMemory", "Region"]

_REMEMBERED = 1024
_NEAR = 1 << 20


@dataclass(slots=True, eq=False)
class Region:
    """``size`` bytes at ``start``. ``describe`` says in the user's terms what lies at a byte offset."""

    name: str
    start: int
    size: int
    writable: bool = True
    describe: Callable[[int], str] | None = None
    data: NDArray[np.uint8] = field(init=False, repr=False)
    """The bytes, in place."""
    owner: NDArray[np.int32] | None = field(default=None, repr=False)
    """For a watched output: by element, the CTA that wrote it, -1 if none; ``owner_bytes`` an element.

    The number is the linear CTA plus ``launch_base``.
    """
    owner_bytes: int = 1
    launch_base: int = field(default=0, repr=False)
    """Owners of this launch are its CTAs plus this number; smaller ones wrote in an earlier launch."""
    highest: int = field(default=-1, repr=False)
    """The largest owner so far."""
    coverage: Coverage | None = field(default=None, repr=False)
    """Who wrote what twice, for a watched output; made by ``watch``."""
    initialised: NDArray[np.bool_] | None = field(default=None, repr=False)
    """By byte, whether it was ever written; None where that is not tracked."""
    read_at: int = field(default=-1, repr=False)
    """Of a region that kernels do not write, while somebody watches: an instruction of the launch that reads it."""
    raw: memoryview = field(init=False, repr=False)
    """The same bytes for ``struct``."""

    def __post_init__(self) -> None:
        self._bind()

    def cut(self, size: int) -> None:
        """End the region after ``size`` bytes: what follows is nobody's from now on."""
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
        """Count the writer of every element of ``owner_bytes`` bytes from now on (see ``memory.coverage``)."""
        self.owner_bytes = owner_bytes
        self.owner = np.full(-(-self.size // owner_bytes), -1, np.int32)
        self.coverage = Coverage()
        self.launch_base, self.highest = 0, -1
        return self.coverage

    def begin_launch(self) -> None:
        """What was written so far stays written, and writing it again in the new launch is no conflict."""
        self.launch_base = self.highest + 1

    @property
    def end(self) -> int:
        """Address after the last byte."""
        return self.start + self.size

    def say(self, address: int) -> str:
        """What lies at an address inside or near the region."""
        offset = address - self.start
        if self.describe is not None and 0 <= offset < self.size:
            return self.describe(offset)
        if offset < 0:
            return f"{-offset} bytes before {self.name}"
        if offset >= self.size:
            return f"{offset - self.size} bytes after the end of {self.name} ({self.size} bytes)"
        return f"{self.name} at byte {offset}"


class GlobalMemory:
    """All regions, sorted by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: list[Region] = []
        self.recent = Region("nothing", 0, 0)
        """The region of the last access: most accesses fall into it again."""
        self.freed: deque[tuple[int, int, str]] = deque(maxlen=_REMEMBERED)
        """Start, size and name of memory that the host has freed, for the words of a fault."""

    def add(self, region: Region) -> Region:
        """Add a region; one that overlaps another is a mistake of the caller (ValueError)."""
        position = bisect.bisect_right(self._starts, region.start)
        for other in self._regions[max(0, position - 1) : position + 1]:
            if region.start < other.end and other.start < region.end:
                raise ValueError(f"{region.name} overlaps {other.name}")
        self._starts.insert(position, region.start)
        self._regions.insert(position, region)
        return region

    def remove(self, region: Region) -> None:
        """Forget a region."""
        position = self._regions.index(region)
        del self._starts[position], self._regions[position]
        if self.recent is region:
            self.recent = Region("nothing", 0, 0)

    def __iter__(self) -> Iterator[Region]:
        return iter(self._regions)

    def find(self, address: int) -> Region | None:
        """The region that holds an address."""
        position = bisect.bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        region = self._regions[position]
        return region if address < region.end else None

    def region(self, address: int, size: int, *, write: bool, what: str) -> Region:
        """The region that holds all of [address, address + size).

        Raises:
            Fault: out of bounds, or a write to a region that is read-only.
        """
        region = self.recent
        if address < region.start or address + size > region.start + region.size:
            position = bisect.bisect_right(self._starts, address) - 1
            if position < 0 or address + size > self._regions[position].end:
                raise self.outside(address, size, write=write, what=what)
            region = self.recent = self._regions[position]
        if write and not region.writable:
            raise Fault(
                "read-only",
                f"{what}: writes {region.say(address)}, which is read-only",
                hint="kernel parameters, pointer tables and inputs must not be written",
            )
        return region
        raise self.outside(address, size, write=write, what=what)

    def outside(self, address: int, size: int, *, write: bool, what: str) -> Fault:
        """The fault of touching what is nobody's, in terms of the nearest region."""
        near = min(
            self._regions,
            key=lambda r: max(r.start - address, address + size - r.end, 0),
            default=None,
        )
        verb = "writes" if write else "reads"
        said = f"; the nearest tensor: {near.say(address)}" if near is not None else "; there is no tensor at all"
        # Beside a tensor its name says it, and the words are the same in every call, wherever the tensor lies.
        beside = near is not None and near.start - _NEAR < address < near.end + _NEAR
        place = "" if beside else f" at global address {address:#x}"
        for start, extent, name in reversed(self.freed):
            if start <= address < start + extent:
                return Fault(
                    "out-of-bounds",
                    f"{what}: {verb} {size} bytes, from byte {address - start} of {name}, which the host has freed",
                    hint="keep the tensor until the kernel has ended: an address (data_ptr) does not keep it alive",
                )
        return Fault(
            "out-of-bounds",
            f"{what}: {verb} {size} bytes{place}, outside every tensor{said}",
            hint="look at the predicate that guards the last rows or columns, and at the strides",
        )

    def read(self, address: int, size: int, *, what: str) -> NDArray[np.uint8]:
        """A view of bytes. Raises Fault."""
        region = self.region(address, size, write=False, what=what)
        offset = address - region.start
        if region.initialised is not None:
            self.check_initialised(region, offset, size, what=what)
        return region.data[offset : offset + size]

    def write(self, address: int, data: NDArray[np.uint8], *, what: str) -> None:
        """Write bytes; a watched output also needs ``memory.coverage.note_write``. Raises Fault."""
        region = self.region(address, data.size, write=True, what=what)
        offset = address - region.start
        region.data[offset : offset + data.size] = data
        if region.initialised is not None:
            region.initialised[offset : offset + data.size] = True

    def check_initialised(self, region: Region, offset: int, size: int, *, what: str) -> None:
        """Raises Fault for a byte of a tracked region that nothing has written."""
        assert region.initialised is not None
        known = region.initialised[offset : offset + size]
        if not known.all():
            missing = offset + int(np.argmin(known))
            raise Fault(
                "uninitialised",
                f"{what}: reads {region.say(region.start + missing)}, which nothing has written",
                hint="fill the tensor before the launch, or write it before it is read",
            )
