"""4- and 6-bit elements in shared memory and in TMEM.

In shared memory 16 elements are packed into the low 8 or 12 bytes of a group of 16 bytes, whose other bytes are
padding. In TMEM each has a byte of its own, and lies in its middle: ``00xxxx00`` or ``0xxxxxx0`` (PTX ISA, "Packing
formats used by matrices in Tensor Memory", and NVIDIA's example of decompressing copies). ``tcgen05.cp`` converts the
one to the other (PTX ISA, "Optional Decompression"); the bits around an element in TMEM are not read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.matrix import unpacked

ELEMENT_BITS = {"e2m1": 4, "e2m3": 6, "e3m2": 6}
"""Width of the formats that have containers."""


def spread(groups: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return the containers of groups ``[..., 16]``, of the same shape."""
    return unpacked(groups, bits) << np.uint8(_shift(bits))


def packed(containers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return the groups of containers ``[..., 16]``, of the same shape."""
    codes = (containers >> np.uint8(_shift(bits)))[..., None]
    elements = np.unpackbits(codes, axis=-1, bitorder="little", count=bits)
    groups = np.zeros_like(containers)
    groups[..., : 2 * bits] = np.packbits(elements.reshape(*containers.shape[:-1], -1), axis=-1, bitorder="little")
    return groups


def _shift(bits: int) -> int:
    """Return the number of bits below an element in its container."""
    return (8 - bits) // 2
