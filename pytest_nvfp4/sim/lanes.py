"""Values of a warp's registers and masks of its lanes.

A register holds an unsigned bit pattern. While all lanes agree it is a plain ``int`` (a ``bool`` for a predicate);
otherwise an array of 32 (``uint16``, ``uint32``, ``uint64`` or ``bool``), which is never written in place. The same
Python expression then serves both, and code that does not diverge runs on ints. A mask of lanes is an ``int`` of 32
bits, lane 0 lowest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DTYPES",
    "FULL",
    "ONE_HOT",
    "Bits",
    "Predicate",
    "bits_of",
    "bools",
    "collapse",
    "first",
    "guard_mask",
    "guard_mask_not",
    "inverted",
    "lanes",
    "merge",
    "merge_predicate",
    "pick",
    "spread",
    "uniform",
    "value_in",
]

FULL = 0xFFFF_FFFF
"""All 32 lanes."""

Bits = int | NDArray[Any]
"""An unsigned bit pattern, for all lanes or one a lane."""
Predicate = bool | NDArray[np.bool_]

DTYPES: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64, 128: object}


@lru_cache(maxsize=65536)
def lanes(mask: int) -> tuple[int, ...]:
    """The lanes of a mask, in order."""
    return tuple(lane for lane in range(32) if mask >> lane & 1)


@lru_cache(maxsize=65536)
def bools(mask: int) -> NDArray[np.bool_]:
    """The mask as 32 booleans; read-only."""
    array = np.array([bool(mask >> lane & 1) for lane in range(32)])
    array.flags.writeable = False
    return array


def bits_of(predicate: NDArray[np.bool_]) -> int:
    """32 booleans as a mask."""
    return int.from_bytes(np.packbits(predicate, bitorder="little").tobytes(), "little")


def _one_hot() -> tuple[NDArray[np.bool_], ...]:
    arrays = []
    for lane in range(32):
        array = np.arange(32) == lane
        array.flags.writeable = False
        arrays.append(array)
    return tuple(arrays)


ONE_HOT = _one_hot()
"""By lane: the predicate that holds in this lane only. ``elect.sync`` gives these very arrays."""
_ALL_BUT_ONE = tuple(~array for array in ONE_HOT)
for _array in _ALL_BUT_ONE:
    _array.flags.writeable = False
_KNOWN = {
    **{id(array): 1 << lane for lane, array in enumerate(ONE_HOT)},
    **{id(array): FULL ^ 1 << lane for lane, array in enumerate(_ALL_BUT_ONE)},
}
_INVERSE = {
    **{id(one): other for one, other in zip(ONE_HOT, _ALL_BUT_ONE, strict=True)},
    **{id(other): one for one, other in zip(ONE_HOT, _ALL_BUT_ONE, strict=True)},
}


def inverted(predicate: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The lanes where a predicate does not hold; of an elected lane's the array that is known."""
    known = _INVERSE.get(id(predicate))
    return ~predicate if known is None else known


def guard_mask(predicate: Predicate, mask: int) -> int:
    """The lanes of ``mask`` where the predicate holds."""
    if predicate is True:
        return mask
    if predicate is False:
        return 0
    known = _KNOWN.get(id(predicate))
    return (bits_of(predicate) if known is None else known) & mask


def guard_mask_not(predicate: Predicate, mask: int) -> int:
    """The lanes of ``mask`` where the predicate does not hold."""
    if predicate is True:
        return 0
    if predicate is False:
        return mask
    known = _KNOWN.get(id(predicate))
    return mask & ~(bits_of(predicate) if known is None else known)


def first(mask: int) -> int:
    """The lowest lane of a mask that is not 0."""
    return (mask & -mask).bit_length() - 1


def pick(value: Bits, mask: int) -> int:
    """The value in the lowest active lane."""
    return value if value.__class__ is int else int(value[first(mask)])  # type: ignore[index]


def uniform(value: Bits, mask: int) -> int | None:
    """The value if all active lanes agree, else None."""
    if value.__class__ is int:
        return value
    active = value if mask == FULL else value[bools(mask)]  # type: ignore[index]
    one = active[0]  # type: ignore[index]
    return int(one) if (active == one).all() else None


def value_in(value: Bits, lane: int) -> int:
    """The value of one lane."""
    return value if isinstance(value, int) else int(value[lane])


def spread(value: Bits, bits: int) -> NDArray[Any]:
    """The value as an array of 32 of ``uint{bits}``; not to be written to."""
    if isinstance(value, int):
        return np.full(32, value, DTYPES[bits])
    return value


def collapse(value: Bits) -> Bits:
    """The value as an int if all 32 lanes agree. Worth its microsecond after ``tid >> 5`` and the like."""
    if value.__class__ is int:
        return value
    one = value[0]  # type: ignore[index]
    return value if np.count_nonzero(value != one) else int(one)


def merge(mask: int, new: Bits, old: Bits, bits: int) -> Bits:
    """``new`` in the lanes of ``mask``, ``old`` in the others."""
    if new is old or (new.__class__ is int and old.__class__ is int and new == old):
        return new
    dtype = DTYPES[bits]
    return np.where(bools(mask), np.asarray(new, dtype), np.asarray(old, dtype))


def merge_predicate(mask: int, new: Predicate, old: Predicate) -> Predicate:
    """``new`` in the lanes of ``mask``, ``old`` in the others."""
    if new is old:
        return new
    return np.where(bools(mask), new, old)
