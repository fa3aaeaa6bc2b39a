"""Stores of one value by all lanes of a warp that differ by rounding alone.

Triton lets all lanes store the sum of a reduction across lanes to one address. A butterfly of additions gives every
lane the same bits, but the first one may be fused with the multiplication before it (``fma.rn.f32``), of its own
product and not of its neighbour's, so that the sums differ between lanes. That is no mistake of the kernel's author.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.ptx.roles import results, sources
from pytest_nvfp4.sim.ptx.syntax import Instruction, Kernel, Register, Vector

WIDTHS: Final = (32, 64)
"""Widths in bits of elements that may be sums: one, or a pair of ``f32x2``."""
_MOST: Final = 1 << 15
"""Distance of two sums in units of the last place, up to which they differ by rounding: terms may cancel out."""
_SHARE: Final = 2.0**-18
"""Distance of two sums as a share of the largest one that the instruction stores, up to which they differ by rounding.

The terms of sums that are stored together have one size, so that this bounds the error (some 2^-24 of the sum of their
sizes) where all of a sum's terms cancel out.
"""
_TYPES: Final = frozenset({"f32", "f32x2"})
_ARITHMETIC: Final = frozenset({"add", "sub", "mul", "fma", "mad", "div", "min", "max", "sqrt", "rcp", "rsqrt", "ex2"})
_LEAST: Final = 0x0080_0000
"""The bits of the smallest normal number."""
_SIGN: Final = 0x8000_0000


def is_rounding(store: Instruction, sums: frozenset[int], rows: NDArray[Any], every: NDArray[Any]) -> bool:
    """Return whether two lanes' elements are nearly equal results of fp32 arithmetic.

    Args:
        sums: The slots of ``computed_slots``.
        rows: The bits of two lanes' numbers, 32 each.
        every: The bits of all lanes' numbers.
    """
    stored = store.operands[-1]
    registers = stored.items if isinstance(stored, Vector) else (stored,)
    if not all(isinstance(each, Register) and each.slot in sums for each in registers):
        return False
    first, second = rows.astype(np.int64)
    near = np.abs(first - second) <= _MOST
    normal = np.minimum(first & ~_SIGN, second & ~_SIGN) >= _LEAST
    numbers, stored_numbers = (bits.view(np.float32).astype(np.float64) for bits in (rows, every))
    finite = np.isfinite(numbers).all(axis=0)
    with np.errstate(invalid="ignore"):
        distance = np.abs(numbers[0] - numbers[1])
    largest = np.abs(stored_numbers).max(initial=0, where=np.isfinite(stored_numbers))
    rounded = finite & ((near & normal) | (distance <= _SHARE * largest))
    return bool((rounded | (first == second)).all())


def computed_slots(kernel: Kernel) -> frozenset[int]:
    """Return the slots of the registers that only fp32 arithmetic and copies of its results write."""
    computed: set[int] = set()
    other: set[int] = set()
    copies: list[tuple[int, list[int]]] = []
    for instruction in kernel.instructions:
        written = [register.slot for register in results(instruction)]
        if instruction.root in _ARITHMETIC and not _TYPES.isdisjoint(instruction.parts):
            computed.update(written)
        elif instruction.root == "mov" and (read := sources(instruction)):
            copies += [(slot, [register.slot for register in read]) for slot in written]
        else:
            other.update(written)
    found = (computed | {slot for slot, _ in copies}) - other
    while lost := {slot for slot, read in copies if slot in found and not found.issuperset(read)}:
        found -= lost
    return frozenset(found)
