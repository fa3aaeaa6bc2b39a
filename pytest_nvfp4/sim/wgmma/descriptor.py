"""Matrix descriptor of ``wgmma``, and the 16-byte chunks of shared memory that it addresses.

PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", "Matrix Descriptor Format", "Strides":

    bits 0-13  start address >> 4        bits 16-29  leading byte offset >> 4      bits 32-45  stride byte offset >> 4
    bits 49-51 base offset               bits 62-63  swizzle: 0 none, 1 128 B, 2 64 B, 3 32 B

Address of chunk c (16 bytes along the contiguous dimension) of row r of M or N, or of element k of K:

    K-major   none       start + (r / 8) SBO + (r % 8) 16 + c LBO
              W bytes    start + (r / 8) SBO + (r % 8) W + 16 c                        LBO is not used
    MN-major  none       start + c SBO + (k / 8) LBO + (k % 8) 16                      c counts 8 rows of M or N
              W bytes    start + (c / (W / 16)) LBO + (c % (W / 16)) 16 + (k / 8) SBO + (k % 8) W

A swizzle then XORs address bits 4-6 with bits 7-9 (64 B: 4-5 with 7-8; 32 B: 4 with 7) of the absolute address less 128
times the base offset. With a base offset of 0 these are the bytes that TMA writes, wherever in its pattern (1024, 512,
256 bytes for 128, 64, 32) a matrix starts: DeepGEMM's k-grouped GEMM has its tiles at byte 256. The ISA asks for a base
offset there. Measured on an H200, for TMA, and for wgmma with K-major matrices that start in each of eight rows, with
each base offset and swizzle; MN-major ones are taken to be alike. Without a swizzle the base offset has no meaning.

All other bits are reserved. An H200 ignores each of them (measured: one at a time, in the descriptors of A and of B),
and so does this; ``unit`` warns of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SharedMemory

_WIDTHS = {0: 0, 1: 128, 2: 64, 3: 32}
RESERVED = (0x3 << 14) | (0x3 << 30) | (0x7 << 46) | (0x3FF << 52)
_WRITTEN = np.uint64(0x0101_0101_0101_0101)


@dataclass(frozen=True, slots=True)
class WgmmaDescriptor:
    """Fields of a descriptor, in bytes: ``width`` is the swizzle's width, 0 for none, and ``base``
    128 times the base offset.
    """

    start: int
    leading: int
    stride: int
    width: int
    base: int

    @classmethod
    def decode(cls, bits: int) -> WgmmaDescriptor:
        """Decode 64 bits."""
        leading, stride = (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4
        return cls((bits & 0x3FFF) << 4, leading, stride, _WIDTHS[bits >> 62], (bits >> 49 & 7) << 7)


@lru_cache(maxsize=4096)
def _chunks(descriptor: WgmmaDescriptor, rows: int, chunks: int, depth: int, transposed: bool) -> NDArray[np.intp]:
    """Return addresses >> 4 in the 256 KiB window: ``(rows, chunks)``, or ``(depth, chunks)`` for MN-major."""
    start, width = descriptor.start, descriptor.width
    c = np.arange(chunks)[None, :]
    if transposed:
        k = np.arange(depth)[:, None]
        if width:
            per = width // 16
            inner = c % per * 16 + c // per * descriptor.leading
            address = start + inner + k // 8 * descriptor.stride + k % 8 * width
        else:
            address = start + c * descriptor.stride + k // 8 * descriptor.leading + k % 8 * 16
    else:
        r = np.arange(rows)[:, None]
        if width:
            address = start + r // 8 * descriptor.stride + r % 8 * width + 16 * c
        else:
            address = start + r // 8 * descriptor.stride + r % 8 * 16 + c * descriptor.leading
    if width:
        address = address ^ ((address - descriptor.base) >> 3 & (width - 16))
    chunk_addresses = (address >> 4).astype(np.intp)
    chunk_addresses.flags.writeable = False
    return chunk_addresses


def footprint(
    shared: SharedMemory, bits: int, *, rows: int, row_bytes: int, transposed: bool, what: str
) -> NDArray[np.intp]:
    """Return the 16-byte units of shared memory (index / 16) of a matrix.

    Args:
        bits: The matrix descriptor.
        rows: Rows of M or N.
        row_bytes: Bytes of K in a row.
        transposed: Whether the matrix is MN-major.

    Returns:
        ``(rows, chunks)``, or ``(k, chunks)`` if MN-major.

    Raises:
        Fault: the matrix leaves the kernel's shared memory, or a swizzled row runs past its end.
    """
    descriptor = WgmmaDescriptor.decode(bits)
    chunks, depth = (rows // 8, row_bytes // 2) if transposed else (row_bytes // 16, 0)
    if descriptor.width:
        used = min(chunks, descriptor.width // 16) * 16
        if descriptor.start % descriptor.width + used > descriptor.width:
            raise Fault(
                "descriptor",
                f"{what}: {used} bytes from byte {descriptor.start % descriptor.width} of a row of {descriptor.width} "
                f"bytes run past the end of the row (matrix at shared address {descriptor.start:#x})",
                hint="check the offset along K (or M/N) inside the swizzle's row, and the swizzle bits",
            )
    index = _chunks(descriptor, rows, chunks, depth, transposed) - ((shared.base & ((1 << RANK_SHIFT) - 1)) >> 4)
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= shared.size // 16:
        raise Fault(
            "out-of-bounds",
            f"{what}: the matrix of descriptor {bits:#018x} covers bytes [{16 * low}, {16 * high + 16}) of shared "
            f"memory, and the kernel was launched with {shared.size}",
            hint="check the start address, LBO and SBO of the descriptor",
        )
    return index


def read_matrix(
    shared: SharedMemory, units: NDArray[np.intp], *, rows: int, row_bytes: int, transposed: bool
) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None]:
    """Return the bytes of a matrix, ``(rows, row_bytes)`` K-major, and which rows are undefined (None: no row).

    A row is undefined if any byte of it was never written. This alone is no fault: kernels that pad a tile read such
    rows and store nothing of them. MN-major matrices have elements of 16 bits. ``units`` is from ``footprint``.
    """
    end = shared.size // 16 * 16
    data = shared.data[:end].view(np.uint64).reshape(-1, 2).take(units, axis=0)
    known = shared.written[:end].view(np.uint64).reshape(-1, 2).take(units, axis=0) == _WRITTEN
    if transposed:
        # From (k, rows / 8) chunks of 8 elements to rows of K.
        matrix = data.view(np.uint16).reshape(-1, rows).T.copy().view(np.uint8)
        undefined = None if known.all() else ~known.all(axis=(0, 2)).repeat(8)
    else:
        matrix = data.view(np.uint8).reshape(rows, row_bytes)
        undefined = None if known.all() else ~known.all(axis=(1, 2))
    return matrix, undefined
