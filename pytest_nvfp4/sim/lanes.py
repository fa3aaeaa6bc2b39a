"""Register values and lane masks of a warp.

A register holds an unsigned bit pattern: a plain ``int`` (a ``bool`` for a predicate) while all lanes agree, otherwise
an array of 32 elements (``uint16``, ``uint32``, ``uint64`` or ``bool``) that is never written in place. The same Python
expression works on both, and code without divergence runs on ints. A lane mask is an ``int`` of 32 bits, lane 0 lowest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

FULL = 0xFFFF_FFFF
"""All 32 lanes."""

Bits = int | NDArray[Any]
"""An unsigned bit pattern, for all lanes or one per lane."""
Predicate = bool | NDArray[np.bool_]

DTYPES: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64, 128: object}


@lru_cache(maxsize=65536)
def lanes(mask: int) -> tuple[int, ...]:
    """Return the lanes of a mask, ascending."""
    return tuple(lane for lane in range(32) if mask >> lane & 1)


@lru_cache(maxsize=65536)
def bools(mask: int) -> NDArray[np.bool_]:
    """Return a mask as 32 booleans (a read-only array)."""
    array = np.array([bool(mask >> lane & 1) for lane in range(32)])
    array.flags.writeable = False
    return array


def bits_of(predicate: NDArray[np.bool_]) -> int:
    """Return 32 booleans as a mask."""
    return int.from_bytes(np.packbits(predicate, bitorder="little").tobytes(), "little")


ONE_HOT = tuple(bools(1 << lane) for lane in range(32))
"""By lane: the predicate that is true in this lane only. ``elect.sync`` returns these arrays themselves."""
# elect.sync guards most single-lane instructions. Its predicates are recognised by identity, which saves packing the
# bits; ONE_HOT and _ALL_BUT_ONE keep the arrays alive, so no other array can have their id.
_ALL_BUT_ONE = tuple(bools(FULL ^ 1 << lane) for lane in range(32))
_KNOWN = {id(bools(mask)): mask for lane in range(32) for mask in (1 << lane, FULL ^ 1 << lane)}
_INVERSE = {id(array): other for array, other in zip(ONE_HOT + _ALL_BUT_ONE, _ALL_BUT_ONE + ONE_HOT, strict=True)}


def inverted(predicate: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the inverted predicate; that of ``elect.sync`` is a shared array."""
    known = _INVERSE.get(id(predicate))
    return ~predicate if known is None else known


def guard_mask(predicate: Predicate, mask: int) -> int:
    """Return the lanes of ``mask`` where the predicate is true."""
    if predicate is True:
        return mask
    if predicate is False:
        return 0
    known = _KNOWN.get(id(predicate))
    return (bits_of(predicate) if known is None else known) & mask


def guard_mask_not(predicate: Predicate, mask: int) -> int:
    """Return the lanes of ``mask`` where the predicate is false."""
    if predicate is True:
        return 0
    if predicate is False:
        return mask
    known = _KNOWN.get(id(predicate))
    return mask & ~(bits_of(predicate) if known is None else known)


def first(mask: int) -> int:
    """Return the lowest lane of a non-zero mask."""
    return (mask & -mask).bit_length() - 1


def pick(value: Bits, mask: int) -> int:
    """Return the value in the lowest active lane."""
    return value if value.__class__ is int else int(value[first(mask)])  # type: ignore[index]


def uniform(value: Bits, mask: int) -> int | None:
    """Return the value if all active lanes agree, else None."""
    if value.__class__ is int:
        return value
    active = value if mask == FULL else value[bools(mask)]  # type: ignore[index]
    common = active[0]  # type: ignore[index]
    return int(common) if (active == common).all() else None


def value_in(value: Bits, lane: int) -> int:
    """Return the value of one lane."""
    return value if isinstance(value, int) else int(value[lane])


def spread(value: Bits, bits: int) -> NDArray[Any]:
    """Return the value as an array of 32 ``uint{bits}``, which must not be written to."""
    if isinstance(value, int):
        return np.full(32, value, DTYPES[bits])
    return value


def collapse(value: Bits) -> Bits:
    """Return the value as an int if all 32 lanes agree; this pays off after ``tid >> 5`` and similar operations."""
    if value.__class__ is int:
        return value
    common = value[0]  # type: ignore[index]
    return value if np.count_nonzero(value != common) else int(common)


def merge(mask: int, new: Bits, old: Bits, bits: int) -> Bits:
    """Return ``new`` in the lanes of ``mask`` and ``old`` in the others."""
    if new is old or (new.__class__ is int and old.__class__ is int and new == old):
        return new
    dtype = DTYPES[bits]
    return np.where(bools(mask), np.asarray(new, dtype), np.asarray(old, dtype))


def merge_predicate(mask: int, new: Predicate, old: Predicate) -> Predicate:
    """Return ``new`` in the lanes of ``mask`` and ``old`` in the others."""
    if new is old:
        return new
    return np.where(bools(mask), new, old)
