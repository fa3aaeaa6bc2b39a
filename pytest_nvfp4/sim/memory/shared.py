"""A CTA's shared memory: bytes, and records of those that were written and those that belong to an mbarrier.

Addresses are 32-bit: the CTA's rank in its cluster in bits 24 and up, the offset in the window below (as in the masks
with which CUTLASS addresses a peer CTA's barrier). From sm_90 on, the system reserves the first 1,024 bytes (taken from
the CUBIN's section sizes), so the kernel's variables start at offset 1,024. Bytes have no initial value (PTX ISA,
"Shared State Space").
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault

RESERVED = 1024
"""Bytes at the start of the window that the system reserves."""
RANK_SHIFT = 24
SHARED_WINDOW = 0xFFFF_0000_0000_0000
"""Generic address of shared address 0; the low 32 bits of a generic address are the shared address."""
_POISON = 0xA5
_HINT_SIZE = "check the smem argument of the launch and the offsets of the tensors in shared memory"


class InFlight(NamedTuple):
    """A copy to shared memory that has not arrived: its first index, bytes, and opcode."""

    start: int
    size: int
    name: str


class Opaque(dict[int, tuple[int, str]]):
    """Objects that only their own instructions may access: ``(size, name)`` by start index.

    All objects lie in [low, high), which reduces most checks to one comparison. ``made`` counts the objects ever added:
    while it is unchanged, a cached check stays valid.
    """

    low = 1 << 32
    high = 0
    made = 0

    def __setitem__(self, start: int, value: tuple[int, str]) -> None:
        super().__setitem__(start, value)
        self.low = min(self.low, start)
        self.high = max(self.high, start + value[0])
        self.made += 1


class SharedMemory:
    """``size`` bytes of the kernel's shared memory, at window offsets ``RESERVED`` to ``RESERVED + size``.

    Methods take *indices* (0 is the kernel's first byte); ``index`` converts an address.
    """

    def __init__(self, size: int, *, rank: int) -> None:
        self.size = size
        self.rank = rank
        self.base = (rank << RANK_SHIFT) + RESERVED
        """Address of index 0."""
        self.data: NDArray[np.uint8] = np.full(size, _POISON, np.uint8)
        self.written: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self.raw = memoryview(self.data)  # type: ignore[arg-type]
        """The same bytes for ``struct``."""
        self.written_raw = memoryview(self.written.view(np.uint8))  # type: ignore[arg-type]
        self.opaque = Opaque()
        self.in_flight: dict[object, InFlight] = {}
        """Copies in flight; their bytes count as not written."""
        self.undefined: dict[int, Fault] = {}
        """By byte, why the value is not defined that was stored there last; of bytes that are not ``written`` alone."""

    def index(self, address: int, size: int, *, what: str, align: int = 1) -> int:
        """Return the index of a shared::cta address with ``size`` bytes.

        Raises:
            Fault: out of bounds, misaligned, or an address of another CTA of the cluster.
        """
        index = address - self.base
        if index >= 0 and index + size <= self.size:
            if address % align:
                raise Fault("misaligned", f"{what}: shared address {address:#x} is not a multiple of {align}")
            return index
        if address >> RANK_SHIFT != self.rank:
            raise Fault(
                "out-of-bounds",
                f"{what}: shared address {address:#x} is in CTA {address >> RANK_SHIFT} of the cluster, and this is "
                f"CTA {self.rank}",
                hint="an address of another CTA needs a shared::cluster access (mapa)",
            )
        raise Fault(
            "out-of-bounds",
            f"{what}: bytes [{index}, {index + size}) of shared memory, and the kernel was launched with {self.size}",
            hint=_HINT_SIZE,
        )

    def undefine(self, places: NDArray[np.intp], why: Fault) -> None:
        """Let bytes that have just been stored be ones that nothing has written."""
        self.written[places] = False
        self.undefined.update(dict.fromkeys(places.tolist(), why))

    def read(self, index: int, size: int, *, what: str) -> NDArray[np.uint8]:
        """Return a view of ``size`` bytes. Raises Fault for a byte that was never written."""
        if not self.written[index : index + size].all():
            missing = index + int(np.argmin(self.written[index : index + size]))
            raise self.uninitialised(missing, what=what)
        return self.data[index : index + size]

    def write(self, index: int, data: NDArray[np.uint8], *, what: str) -> None:
        """Write bytes at a checked index. Raises Fault if they overlap an mbarrier."""
        size = data.size
        if self.opaque:
            self.refuse_opaque(index, index + size, what=what)
        self.data[index : index + size] = data
        self.written[index : index + size] = True

    def gather(self, indices: NDArray[np.intp], *, what: str) -> NDArray[np.uint8]:
        """Return the bytes at indices of any shape. Raises Fault: out of bounds or never written."""
        self.check_bounds(indices, what=what)
        if not self.written[indices].all():
            flat = indices.ravel()
            raise self.uninitialised(int(flat[np.argmin(self.written[flat])]), what=what)
        return self.data[indices]

    def scatter(self, indices: NDArray[np.intp], data: NDArray[np.uint8], *, what: str) -> None:
        """Write bytes at indices of the same shape. Raises Fault: out of bounds or inside an mbarrier."""
        self.check_bounds(indices, what=what)
        if self.opaque:
            low, high = int(indices.min()), int(indices.max()) + 1
            for start, (size, _) in self.opaque.items():
                if start < high and low < start + size and ((indices >= start) & (indices < start + size)).any():
                    self.refuse_opaque(start, start + 1, what=what)
        self.data[indices] = data
        self.written[indices] = True

    def check_bounds(self, indices: NDArray[np.intp], *, what: str) -> None:
        """Raise Fault for an index outside the memory."""
        if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= self.size):
            flat = indices.ravel()
            bad = int(flat[np.argmax((flat < 0) | (flat >= self.size))])
            raise Fault(
                "out-of-bounds",
                f"{what}: byte {bad} of shared memory, and the kernel was launched with {self.size} bytes",
                hint=_HINT_SIZE,
            )

    def refuse_opaque(self, low: int, high: int, *, what: str) -> None:
        """Raise Fault if [low, high) overlaps an mbarrier or another opaque object."""
        if low >= self.opaque.high or high <= self.opaque.low:
            return
        for start, (size, name) in self.opaque.items():
            if start < high and low < start + size:
                raise Fault(
                    "mbarrier",
                    f"{what}: bytes [{low}, {high}) of shared memory overlap {name} at byte {start}",
                    hint="an mbarrier is opaque until mbarrier.inval (PTX ISA, 'mbarrier')",
                )

    def uninitialised(self, index: int, *, what: str) -> Fault:
        """Return the fault of reading a byte that was never written, or that a copy in flight will write."""
        for copy in self.in_flight.values():
            if copy.start <= index < copy.start + copy.size:
                return Fault(
                    "in-flight",
                    f"{what}: byte {index} of shared memory (address {self.base + index:#x}) has not arrived: "
                    f"{copy.name} to bytes [{copy.start}, {copy.start + copy.size}) is in flight",
                    hint="wait for the copy's mbarrier (the right one, in the right phase) or group before the data "
                    "are read",
                )
        if (why := self.undefined.get(index)) is not None:
            return why.stored(what, f"byte {index} of shared memory")
        return Fault(
            "uninitialised",
            f"{what}: byte {index} of shared memory (address {self.base + index:#x}) was never written",
            hint="possible causes: no barrier behind the write of another thread, no wait for a load, a wrong stage, "
            "or a copy that is too small",
        )
