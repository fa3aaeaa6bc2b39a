"""Vector loads of which some elements go to registers that no instruction reads.

LLVM joins loads of neighbours and loads what lies in the gaps with them, into registers that it never uses. Nothing
comes of those elements, so that it is no finding that nothing wrote them, or that another warp writes them now: only
the elements that are used are accesses. What the instruction costs is counted for the whole vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.memory.access import Access
from pytest_nvfp4.sim.memory.pattern import pattern_of
from pytest_nvfp4.sim.memory.read import READERS
from pytest_nvfp4.sim.memory.tally import Tally

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["SPACES", "read_partly"]

SPACES = frozenset({"global", "shared"})
"""State spaces in which a load is split."""

Part = tuple[int, Access]
"""An element that is used: its number, and the access to it alone."""


def read_partly(
    w: Warp, mask: int, address: lanes.Bits, access: Access, parts: Sequence[Part], at: int
) -> tuple[lanes.Bits, ...]:
    """Load the elements of ``parts``; the others are 0. Raises Fault, for an address of the whole vector too."""
    cta = w.cta
    tally = cta.units.get(Tally) or cta.unit(Tally)
    size = access.size
    low: int
    if address.__class__ is int:
        low, key = address, (f"{access.space}.load", size)
    else:
        base, pattern = pattern_of(address, mask, size)  # type: ignore[arg-type]
        low = base + pattern.low
        key = (f"{access.space}.load", pattern, low & (31 if access.space == "global" else 127))  # type: ignore[assignment]
    reader = READERS[access.space]
    if low % size or (address.__class__ is not int and not pattern.aligned):
        reader(w, mask, address, access, at)  # says what is misaligned
    found: list[Any] = [0] * access.count
    cta.units[Tally] = Tally(cta)
    try:
        for number, part in parts:
            where = address + number * part.size
            found[number] = reader(w, mask, where, part, at)
    finally:
        cta.units[Tally] = tally
    tally[key] = tally.get(key, 0) + 1
    return tuple(found)
