"""Local memory: private bytes of every thread (PTX ISA, "Local State Space").

The address of a local variable is ``LOCAL_WINDOW`` plus its offset, also as a generic address. ``ld.local`` uses only
the low 32 bits, so it accepts addresses with and without the window.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.warp import Warp

LOCAL_WINDOW = 0xFFFE_0000_0000_0000
"""Generic addresses from here to the shared window are local."""


class Unwritten(NamedTuple):
    """Threads that read elements that they never wrote, the numbers of the elements, and the fault of the first one."""

    mask: int
    elements: frozenset[int]
    fault: Fault


class LocalMemory:
    """Local memory of a warp's 32 threads: ``data[lane, offset]``, and whether each byte was written."""

    def __init__(self, warp: Warp) -> None:
        self.size = warp.cta.launch.program.shared.local
        self.data = np.full((32, self.size), 0xA5, np.uint8)
        self.written = np.zeros((32, self.size), np.bool_)
        self._undefined: dict[int, Fault] = {}

    def offset(self, address: int, size: int, lane: int, *, what: str) -> int:
        """Return the offset of an address. Raises Fault: out of bounds or misaligned."""
        offset = address & 0xFFFF_FFFF
        if offset + size > self.size:
            raise Fault(
                "out-of-bounds",
                f"{what}: lane {lane} accesses bytes [{offset}, {offset + size}) of local memory, and a thread has "
                f"{self.size}",
                hint="check the index into the array in local memory",
            )
        if offset % size:
            raise Fault("misaligned", f"{what}: lane {lane}'s local offset {offset} is not a multiple of {size}")
        return offset

    def read_lanes(
        self, mask: int, address: lanes.Bits, size: int, *, count: int, what: str
    ) -> tuple[NDArray[np.uint8], Unwritten | None]:
        """Return ``size`` bytes of each active thread, one row per thread, and which of their elements it never wrote.

        An element that was written in part is none: compilers load two fields of a structure as one, and use one.
        Raises Fault: out of bounds or misaligned.
        """
        rows, columns = self._places(mask, address, size, what=what)
        data, known = self.data[rows, columns], self.written[rows, columns]
        if known.all():
            return data, None
        missing = ~np.logical_or.reduce(known.reshape(-1, count, size // count), axis=2)
        if not missing.any():
            return data, None
        threads = np.logical_or.reduce(missing, axis=1)
        bad = int(np.argmax(threads))
        first = int(columns[bad, int(np.argmax(missing[bad])) * (size // count)])
        fault = self._unwritten(first, int(rows[bad, 0]), what=what)
        elements = frozenset(np.flatnonzero(missing.any(axis=0)).tolist())
        return data, Unwritten(sum(1 << lane for lane in rows[threads, 0].tolist()), elements, fault)

    def _unwritten(self, offset: int, lane: int, *, what: str) -> Fault:
        if (why := self._undefined.get(offset)) is not None:
            return why.stored(f"{what}, lane {lane}", f"byte {offset} of local memory")
        return Fault("uninitialised", f"{what}: lane {lane} reads local byte {offset}, which it never wrote")

    def undefine(self, mask: int, address: lanes.Bits, size: int, part: slice, why: Fault) -> None:
        """Let a part of the ``size`` bytes that were just stored be bytes that the threads never wrote."""
        rows, columns = self._places(mask, address, size, what="")
        places = columns[:, part]
        self.written[rows, places] = False
        self._undefined.update(dict.fromkeys(places.ravel().tolist(), why))

    def write_lanes(self, mask: int, address: lanes.Bits, values: NDArray[np.uint8], *, what: str) -> None:
        """Write one row of bytes to each active thread. Raises Fault."""
        rows, columns = self._places(mask, address, values.shape[1], what=what)
        self.data[rows, columns] = values
        self.written[rows, columns] = True

    def _places(
        self, mask: int, address: lanes.Bits, size: int, *, what: str
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        active = np.array(lanes.lanes(mask), np.intp)
        if isinstance(address, int):
            first = np.full(active.size, self.offset(address, size, int(active[0]), what=what), np.intp)
        else:
            first = (address[active] & address.dtype.type(0xFFFF_FFFF)).astype(np.intp)
            wrong = (first + size > self.size) | (first % size != 0)
            if wrong.any():
                bad = int(active[int(np.argmax(wrong))])
                self.offset(int(address[bad]), size, bad, what=what)
        return active[:, None], first[:, None] + np.arange(size)

    def read(self, address: int, size: int, lane: int, *, what: str) -> bytes:
        """Return bytes of one thread. Raises Fault, also for a byte that was never written."""
        offset = self.offset(address, size, lane, what=what)
        if not self.written[lane, offset : offset + size].all():
            raise self._unwritten(offset, lane, what=what)
        return self.data[lane, offset : offset + size].tobytes()

    def write(self, address: int, value: bytes, lane: int, *, what: str) -> None:
        """Write bytes of one thread. Raises Fault."""
        offset = self.offset(address, len(value), lane, what=what)
        self.data[lane, offset : offset + len(value)] = np.frombuffer(value, np.uint8)
        self.written[lane, offset : offset + len(value)] = True
