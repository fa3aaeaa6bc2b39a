"""A CTA's shared memory: bytes, which of them were written, and which belong to an mbarrier.

Addresses are 32-bit: the CTA's rank in its cluster in bits 24 and up, the offset in the window below (observed in the
masks that CUTLASS applies to reach a peer CTA's barrier). The first 1,024 bytes are the system's from sm_90 on (from
the CUBIN's section sizes), so the kernel's variables start at offset 1,024. Bytes are uninitialised until written; a
read of one is a fault (PTX ISA, "Shared State Space": no initial value).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault

__all__ = ["RANK_SHIFT", "RESERVED", "SHARED_WINDOW", "Opaque", "SharedMemory"]

RESERVED = 1024
"""Bytes at the start of the window that are the system's."""
RANK_SHIFT = 24
SHARED_WINDOW = 0xFFFF_0000_0000_0000
"""Where the shared windows of a cluster lie among generic addresses; the low 32 bits are the shared address."""
_OFFSET = (1 << RANK_SHIFT) - 1
_POISON = 0xA5


class Opaque(dict[int, tuple[int, str]]):
    """Objects by start index: ``(size, name)``. Every one lies in [low, high), which makes most checks one compare.

    ``made`` counts the objects that were ever made: while it stays, nothing new can be in the way.
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

    Every method takes *indices* (0 for the kernel's first byte); ``index`` makes one from an address.
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
        """Start index of an object that plain accesses must not touch, its size and what it is."""
        self.in_flight: dict[object, tuple[int, int, str]] = {}
        """By copy that has not arrived: start index, size, and what it is. Its bytes count as not written."""

    def index(self, address: int, size: int, *, what: str, align: int = 1) -> int:
        """The index of a shared::cta address, checked: own window, in bounds for ``size`` bytes, aligned.

        Raises:
            Fault: out-of-bounds, misaligned, or an address of another CTA of the cluster.
        """
        index = address - self.base
        if index >= 0 and index + size <= self.size:
            if address % align:
                raise Fault("misaligned", f"{what}: shared address {address:#x} is not a multiple of {align}")
            return index
        if address >> RANK_SHIFT != self.rank:
            raise Fault(
                "out-of-bounds",
                f"{what}: shared address {address:#x} lies in CTA {address >> RANK_SHIFT} of the cluster, and this is "
                f"CTA {self.rank}",
                hint="an address of another CTA needs a shared::cluster access (mapa)",
            )
        raise Fault(
            "out-of-bounds",
            f"{what}: bytes [{index}, {index + size}) of shared memory, and the kernel was launched with {self.size}",
            hint="look at the smem argument of the launch and at the offsets of the tensors in shared memory",
        )

    def read(self, index: int, size: int, *, what: str) -> NDArray[np.uint8]:
        """A view of ``size`` bytes, all of them written before. Raises Fault if one was not."""
        if not self.written[index : index + size].all():
            missing = index + int(np.argmin(self.written[index : index + size]))
            raise self.uninitialised(missing, what=what)
        return self.data[index : index + size]

    def write(self, index: int, data: NDArray[np.uint8], *, what: str) -> None:
        """Write bytes at an index that was checked."""
        size = data.size
        if self.opaque:
            self.refuse_opaque(index, index + size, what=what)
        self.data[index : index + size] = data
        self.written[index : index + size] = True

    def gather(self, indices: NDArray[np.intp], *, what: str) -> NDArray[np.uint8]:
        """Bytes at indices (any shape). Raises Fault for one out of bounds or never written."""
        self.check_bounds(indices, what=what)
        if not self.written[indices].all():
            flat = indices.ravel()
            raise self.uninitialised(int(flat[np.argmin(self.written[flat])]), what=what)
        return self.data[indices]

    def scatter(self, indices: NDArray[np.intp], data: NDArray[np.uint8], *, what: str) -> None:
        """Write bytes at indices (same shape). Raises Fault for one out of bounds or inside an mbarrier."""
        self.check_bounds(indices, what=what)
        if self.opaque:
            low, high = int(indices.min()), int(indices.max()) + 1
            for start, (size, _) in self.opaque.items():
                if start < high and low < start + size and ((indices >= start) & (indices < start + size)).any():
                    self.refuse_opaque(start, start + 1, what=what)
        self.data[indices] = data
        self.written[indices] = True

    def check_bounds(self, indices: NDArray[np.intp], *, what: str) -> None:
        """Raises Fault for an index outside the memory."""
        if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= self.size):
            flat = indices.ravel()
            bad = int(flat[np.argmax((flat < 0) | (flat >= self.size))])
            raise Fault(
                "out-of-bounds",
                f"{what}: byte {bad} of shared memory, and the kernel was launched with {self.size} bytes",
                hint="look at the smem argument of the launch and at the offsets of the tensors in shared memory",
            )

    def refuse_opaque(self, low: int, high: int, *, what: str) -> None:
        """Raises Fault if [low, high) touches an mbarrier or another opaque object."""
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
        """The fault of reading a byte that nothing wrote, or that a copy is about to write."""
        for start, size, copy in self.in_flight.values():
            if start <= index < start + size:
                return Fault(
                    "in-flight",
                    f"{what}: byte {index} of shared memory (address {self.base + index:#x}) has not arrived: {copy} "
                    f"to bytes [{start}, {start + size}) is under way",
                    hint="wait for the copy's mbarrier (the right one, in the right phase) or group before data are "
                    "read",
                )
        return Fault(
            "uninitialised",
            f"{what}: byte {index} of shared memory (address {self.base + index:#x}) was never written",
            hint="a load that was not waited for, a wrong stage, or a copy that is too small",
        )
