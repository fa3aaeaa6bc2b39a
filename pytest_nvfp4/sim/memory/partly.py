"""Vector loads with elements whose registers are never read.

LLVM merges loads of neighbouring elements and also loads the gaps between them, into registers that it never uses. An
unused element cannot affect a result, so unwritten bytes and races are checked for the used elements only. The cost is
counted for the whole vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.memory.access import Access
from pytest_nvfp4.sim.memory.pattern import pattern_of
from pytest_nvfp4.sim.memory.read import READERS
from pytest_nvfp4.sim.memory.tally import Key, Tally

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["SPACES", "read_partly"]

SPACES = frozenset({"global", "shared"})
"""State spaces in which a load is split."""

Part = tuple[int, Access]
"""Number of a used element, and the access to that element."""


def read_partly(
    w: Warp, mask: int, address: lanes.Bits, access: Access, parts: Sequence[Part], at: int
) -> tuple[lanes.Bits, ...]:
    """Load the elements of ``parts``; the others are 0. Raises Fault, also if the whole vector is misaligned."""
    cta = w.cta
    tally = cta.units.get(Tally) or cta.unit(Tally)
    size = access.size
    key: Key
    if isinstance(address, int):
        aligned, key = address % size == 0, (f"{access.space}.load", size)
    else:
        base, pattern = pattern_of(address, mask, size)
        low = base + pattern.low
        aligned = pattern.aligned and low % size == 0
        key = (f"{access.space}.load", pattern, low & (31 if access.space == "global" else 127))
    reader = READERS[access.space]
    if not aligned:
        reader(w, mask, address, access, at)  # raises the fault
    elements: list[Any] = [0] * access.count
    cta.units[Tally] = Tally(cta)  # the loads of single elements are not counted
    try:
        for number, part in parts:
            elements[number] = reader(w, mask, address + number * part.size, part, at)
    finally:
        cta.units[Tally] = tally
    tally[key] += 1
    return tuple(elements)
