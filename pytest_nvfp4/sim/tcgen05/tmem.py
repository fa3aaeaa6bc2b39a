"""Tensor Memory of one CTA: 128 lanes x 512 columns of 32 bits (PTX ISA, "Tensor Memory").

An address has the lane in bits 16-31 and the column in bits 0-15. Each column belongs to one allocation or to none;
each word is uninitialised until written, and again when its column is allocated anew. A load from columns that were
freed, and that nobody has allocated since, finds the old words: a finding that does not stop the kernel.

Values of accumulators may be *pending*: written as far as every check is concerned, computed when somebody looks
(``settle``).

Columns whose four 32-lane quadrants hold the same words because a ``.warpx4`` copy wrote them are known as
*replicated*, so that scale factors need not be compared again.

``epoch`` grows whenever a check that passed could fail now (a change of allocations) or what an instruction noted is
no longer so (a change of what is replicated). An instruction that is issued again in the same epoch passes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta

__all__ = ["COLUMNS", "LANES", "Pending", "Tmem", "split"]

COLUMNS = 512
LANES = 128
_ONES = bytes([1]) * COLUMNS
_ZEROS = bytes(COLUMNS)


class Pending(Protocol):
    """An accumulator whose value is still to be computed, in columns [first, last) of this memory."""

    first: int
    last: int

    def finish(self) -> None:
        """Write the value, and leave every memory's list."""

    def forget(self) -> None:
        """Leave every memory's list."""


def split(address: int) -> tuple[int, int]:
    """Lane and column of a TMEM address."""
    return address >> 16, address & 0xFFFF


class Tmem:
    """The memory. ``data[column, lane]``; ``owner[column]`` is the number of the allocation, 0 for none."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.data: NDArray[np.uint32] = np.full((COLUMNS, LANES), 0xA5A5A5A5, np.uint32)
        self.floats: NDArray[np.float32] = self.data.view(np.float32)
        self.owner = bytearray(COLUMNS)
        self.full = bytearray(COLUMNS)
        """1 for a column of which every lane was written."""
        self.some: NDArray[np.bool_] = np.zeros((COLUMNS, LANES), np.bool_)
        """Lanes written of the columns that are not full."""
        self.replicated = bytearray(COLUMNS)
        self.pending: list[Pending] = []
        self.epoch = 0
        self.freed: dict[int, tuple[int, int, int]] = {}
        """By first column the blocks that were freed last: columns, warp, and instruction."""

    def claim(self, column: int, count: int, *, what: str) -> None:
        """Check that columns lie inside one allocation. Raises Fault."""
        end = column + count
        owner = self.owner
        if end <= COLUMNS:
            one = owner[column]
            if one and owner.count(one, column, end) == count:
                return
        raise self._outside(column, count, what=what)

    def claim_to_read(self, column: int, count: int, *, what: str) -> None:
        """The same for a load, which is only reported if its columns were freed and still hold what they held."""
        try:
            self.claim(column, count, what=what)
        except Fault as fault:
            if self._freed(column, count) is None or self.owner.count(0, column, column + count) != count:
                raise
            self.cta.launch.report(fault.kind, fault.message, hint=fault.hint)

    def _freed(self, column: int, count: int) -> tuple[int, int] | None:
        """The warp and instruction that freed the block that these columns were part of."""
        for first, (size, warp, at) in self.freed.items():
            if first <= column and column + count <= first + size:
                return warp, at
        return None

    def _outside(self, column: int, count: int, *, what: str) -> Fault:
        runs: list[str] = []
        start = 0
        for end in range(1, COLUMNS + 1):
            if end == COLUMNS or self.owner[end] != self.owner[start]:
                if self.owner[start]:
                    runs.append(f"[{start}, {end})")
                start = end
        held = f"allocated: columns {', '.join(runs)}" if runs else "nothing is allocated"
        by = self._freed(column, count)
        if by is not None:
            return Fault(
                "tmem",
                f"{what}: TMEM columns [{column}, {column + count}) were freed by warp {by[0]} at "
                f"{self.cta.launch.say(by[1])}; {held}",
                hint="nothing makes tcgen05.dealloc wait for the last use: a barrier of all warps that use the "
                "accumulator is missing before it",
            )
        return Fault(
            "tmem",
            f"{what}: TMEM columns [{column}, {column + count}) do not lie inside one allocation; {held}",
            hint="an address that is not tcgen05.alloc's, a wrong column offset, too few columns, or a use after "
            "tcgen05.dealloc",
        )

    def settle(self, column: int, count: int) -> None:
        """Compute what is pending in columns."""
        if self.pending:
            end = column + count
            for chain in [p for p in self.pending if p.first < end and column < p.last]:
                chain.finish()

    def wrote(self, column: int, count: int, lanes: slice | NDArray[np.bool_] | None = None) -> None:
        """Note that lanes (None: all) of columns were written."""
        end = column + count
        if self.replicated.find(1, column, end) >= 0:
            self.epoch += 1
            self.replicated[column:end] = _ZEROS[:count]
        if lanes is None:
            self.full[column:end] = _ONES[:count]
            return
        if self.full.find(0, column, end) < 0:
            return
        self.some[column:end, lanes] = True
        whole = self.some[column:end].all(axis=1)
        for offset in np.flatnonzero(whole).tolist():
            self.full[column + offset] = 1

    def is_replicated(self, column: int, count: int) -> bool:
        """Whether columns are known to hold the same words in each quadrant."""
        return self.replicated.find(0, column, column + count) < 0

    def wrote_replicated(self, column: int, count: int) -> None:
        """Note that all lanes of columns were written, with the same words in each quadrant."""
        end = column + count
        if self.replicated.find(0, column, end) >= 0:
            self.epoch += 1
            self.replicated[column:end] = _ONES[:count]
        self.full[column:end] = _ONES[:count]

    def need(
        self, column: int, count: int, lanes: slice | NDArray[np.bool_] | None = None, *, what: str, hint: str = ""
    ) -> None:
        """Check that lanes (None: all) of columns were written. Raises Fault."""
        end = column + count
        if self.full.find(0, column, end) < 0:
            return
        for one in range(column, end):
            if self.full[one]:
                continue
            have = self.some[one]
            wanted = np.zeros(LANES, np.bool_)
            wanted[slice(None) if lanes is None else lanes] = True
            missing = wanted & ~have
            if missing.any():
                lane = int(np.argmax(missing))
                raise Fault(
                    "uninitialised",
                    f"{what}: lane {lane} of TMEM column {one} was never written",
                    hint=hint or "an earlier tcgen05.mma, tcgen05.cp or tcgen05.st is missing, or wrote elsewhere",
                )

    def take(self, column: int, count: int, number: int) -> None:
        """Give free columns to an allocation; they hold nothing."""
        end = column + count
        self.epoch += 1
        self.freed = {c: block for c, block in self.freed.items() if end <= c or c + block[0] <= column}
        self.owner[column:end] = bytes([number]) * count
        self.full[column:end] = _ZEROS[:count]
        self.replicated[column:end] = _ZEROS[:count]
        self.some[column:end] = False

    def free(self, column: int, count: int, *, warp: int = 0, at: int = 0) -> None:
        """Take columns back, which a warp frees at an instruction."""
        self.settle(column, count)
        self.epoch += 1
        self.owner[column : column + count] = _ZEROS[:count]
        self.freed[column] = (count, warp, at)
