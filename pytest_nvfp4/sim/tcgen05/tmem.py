"""Tensor Memory of one CTA: 128 lanes x 512 columns of 32 bits (PTX ISA, "Tensor Memory").

An address has the lane in bits 16-31 and the column in bits 0-15. Each column belongs to one allocation or to none;
each word is uninitialised until written, and again when its column is allocated anew. A load from columns that were
freed and not allocated since returns the old words: a finding that does not stop the kernel.

Accumulators may be *pending*: written as far as every check is concerned, and computed when they are read
(``settle``).

Columns whose four 32-lane quadrants hold the same words because a ``.warpx4`` copy wrote them are marked *replicated*,
so that scale factors need not be compared again.

``epoch`` grows whenever a check that passed could fail now (the allocations change) or a plan's assumption may no
longer hold (the replicated columns change). An instruction issued again in the same epoch passes its checks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.cta import Cta

if TYPE_CHECKING:
    from pytest_nvfp4.sim.tcgen05.accumulate import Chain

COLUMNS = 512
"""TMEM capacity in columns."""
LANES = 128
_ONES = bytes([1]) * COLUMNS
_ZEROS = bytes(COLUMNS)


class FreedBlock(NamedTuple):
    """A freed allocation: its number of columns, and the warp and instruction that freed it."""

    columns: int
    warp: int
    at: int


class Undefined(NamedTuple):
    """Lanes of a column whose words were written and hold nothing that was ever written.

    Attributes:
        lanes: The lanes.
        fault: The finding of a use: what nothing had written.
    """

    lanes: NDArray[np.bool_]
    fault: Fault


class UndefinedWords(NamedTuple):
    """The undefined words ``[column][lane]`` of some columns, and the finding of a use; None if there are none."""

    words: NDArray[np.bool_]
    fault: Fault | None


class Tmem:
    """Tensor Memory of one CTA: ``cta.unit(Tmem)``.

    Attributes:
        data: The words, ``[column, lane]``.
        owner: By column the number of its allocation, 0 for none.
        full: By column 1 if every lane was written.
        some: ``[column, lane]``: lanes written, of columns that are not full.
        replicated: By column 1 if a ``.warpx4`` copy wrote it last.
        halved: By column 1 if an MMA of M = 64, which writes 16 of every 32 lanes, wrote it.
        pending: Chains whose accumulators have not been computed.
        undefined: By column, words that were written from bytes or words that nothing had written.
        freed: The blocks freed last, by first column.
    """

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.data: NDArray[np.uint32] = np.full((COLUMNS, LANES), 0xA5A5A5A5, np.uint32)
        self.floats: NDArray[np.float32] = self.data.view(np.float32)
        self.owner = bytearray(COLUMNS)
        self.full = bytearray(COLUMNS)
        self.some: NDArray[np.bool_] = np.zeros((COLUMNS, LANES), np.bool_)
        self.replicated = bytearray(COLUMNS)
        self.halved = bytearray(COLUMNS)
        self.pending: list[Chain] = []
        self.undefined: dict[int, Undefined] = {}
        self.epoch = 0
        self.freed: dict[int, FreedBlock] = {}

    def claim(self, column: int, count: int, *, what: str) -> None:
        """Raise Fault unless columns lie inside one allocation."""
        end = column + count
        owner = self.owner
        if end <= COLUMNS:
            allocation = owner[column]
            if allocation and owner.count(allocation, column, end) == count:
                return
        raise self._outside(column, count, what=what)

    def claim_to_read(self, column: int, count: int, *, what: str) -> None:
        """Do the same for a load, but only report one from columns that were freed and not allocated again."""
        try:
            self.claim(column, count, what=what)
        except Fault as fault:
            if self._freed(column, count) is None or self.owner.count(0, column, column + count) != count:
                raise
            self.cta.launch.report_fault(fault)

    def _freed(self, column: int, count: int) -> FreedBlock | None:
        """Return the freed block that contained these columns."""
        for first, block in self.freed.items():
            if first <= column and column + count <= first + block.columns:
                return block
        return None

    def _outside(self, column: int, count: int, *, what: str) -> Fault:
        runs: list[str] = []
        start = 0
        for end in range(1, COLUMNS + 1):
            if end == COLUMNS or self.owner[end] != self.owner[start]:
                if self.owner[start]:
                    runs.append(f"[{start}, {end})")
                start = end
        allocated = f"allocated: columns {', '.join(runs)}" if runs else "nothing is allocated"
        freed = self._freed(column, count)
        if freed is not None:
            return Fault(
                "tmem",
                f"{what}: TMEM columns [{column}, {column + count}) were freed by warp {freed.warp} at "
                f"{self.cta.launch.place(freed.at)}; {allocated}",
                hint="tcgen05.dealloc does not wait for the last use: put a barrier of all warps that use the "
                "accumulator before it",
            )
        return Fault(
            "tmem",
            f"{what}: TMEM columns [{column}, {column + count}) do not lie inside one allocation; {allocated}",
            hint="look for an address that is not tcgen05.alloc's, a wrong column offset, too few columns, or a use "
            "after tcgen05.dealloc",
        )

    def settle(self, column: int, count: int) -> None:
        """Compute pending accumulators that overlap columns."""
        if self.pending:
            end = column + count
            for chain in [p for p in self.pending if p.first < end and column < p.last]:
                chain.finish()

    def wrote(self, column: int, count: int, lanes: slice | NDArray[np.bool_] | None = None) -> None:
        """Record that lanes (None: all) of columns were written."""
        end = column + count
        if self.undefined:
            self._overwrite_undefined(column, end, lanes)
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
        """Return whether columns are marked as holding the same words in each quadrant."""
        return self.replicated.find(0, column, column + count) < 0

    def wrote_replicated(self, column: int, count: int) -> None:
        """Record that all lanes of columns were written, with the same words in each quadrant."""
        end = column + count
        if self.undefined:
            self._overwrite_undefined(column, end, None)
        if self.replicated.find(0, column, end) >= 0:
            self.epoch += 1
            self.replicated[column:end] = _ONES[:count]
        self.full[column:end] = _ONES[:count]

    def _overwrite_undefined(self, column: int, end: int, lanes: slice | NDArray[np.bool_] | None) -> None:
        for at in [at for at in self.undefined if column <= at < end]:
            left = self.undefined[at].lanes
            left[slice(None) if lanes is None else lanes] = False
            if not left.any():
                del self.undefined[at]

    def undefine(self, column: int, words: NDArray[np.bool_], fault: Fault) -> None:
        """Record that written words ``[column][lane]``, from a column on, hold nothing that was ever written.

        A use of them is ``fault``, and so is one of what an MMA adds to them.
        """
        self.epoch += 1
        for offset in np.flatnonzero(words.any(axis=1)).tolist():
            at, lanes = column + offset, words[offset]
            if self.full[at]:
                self.some[at] = True
                self.full[at] = 0
            self.some[at, lanes] = False
            self.undefined[at] = Undefined(lanes.copy(), fault)

    def undefined_words(self, column: int, count: int) -> UndefinedWords:
        """Return what ``undefine`` has recorded of columns."""
        words = np.zeros((count, LANES), np.bool_)
        fault: Fault | None = None
        for at, lost in self.undefined.items():
            if column <= at < column + count:
                words[at - column] = lost.lanes
                fault = fault or lost.fault
        return UndefinedWords(words, fault)

    def need(
        self,
        column: int,
        count: int,
        lanes: slice | NDArray[np.bool_] | None = None,
        *,
        what: str,
        hint: str = "",
        undefined: bool = False,
    ) -> None:
        """Raise Fault unless lanes (None: all) of columns were written; ``undefined`` allows what is undefined."""
        end = column + count
        if self.full.find(0, column, end) < 0:
            return
        for partial in range(column, end):
            if self.full[partial]:
                continue
            missing = np.zeros(LANES, np.bool_)
            missing[slice(None) if lanes is None else lanes] = True
            missing &= ~self.some[partial]
            lost = self.undefined.get(partial)
            if lost is not None and (missing & lost.lanes).any():
                if not undefined:
                    raise lost.fault
                missing &= ~lost.lanes
            if missing.any():
                raise Fault(
                    "uninitialised",
                    f"{what}: lane {int(np.argmax(missing))} of TMEM column {partial} was never written",
                    hint=hint or "an earlier tcgen05.mma, tcgen05.cp or tcgen05.st is missing, or wrote elsewhere",
                )

    def unwritten(self, columns: NDArray[np.intp], lanes: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which words, by column and lane, were never written."""
        full = np.frombuffer(self.full, np.uint8) != 0
        missing: NDArray[np.bool_] = ~(full[columns] | self.some[columns, lanes])
        return missing

    def unwritten_half(self, column: int, count: int, lanes: slice) -> slice | None:
        """Return the half of 32 lanes that was never written in columns of an accumulator of M = 64; None elsewhere."""
        if self.halved.find(0, column, column + count) >= 0:
            return None
        halves = self.some[column : column + count, lanes].reshape(count, 2, 16)
        if self.full.find(1, column, column + count) >= 0 or not (halves == halves[:1, :, :1]).all():
            return None
        first, second = halves[0, :, 0]
        return None if first == second else slice(16, 32) if first else slice(16)

    def take(self, column: int, count: int, number: int) -> None:
        """Assign free columns to an allocation; they become uninitialised."""
        end = column + count
        self.epoch += 1
        self.freed = {c: block for c, block in self.freed.items() if end <= c or c + block.columns <= column}
        self.owner[column:end] = bytes([number]) * count
        self.full[column:end] = _ZEROS[:count]
        self.replicated[column:end] = _ZEROS[:count]
        self.halved[column:end] = _ZEROS[:count]
        self.some[column:end] = False
        self._overwrite_undefined(column, end, None)

    def free(self, column: int, count: int, *, warp: int = 0, at: int = 0) -> None:
        """Free columns; ``warp`` executes the instruction ``at`` that frees them."""
        self.settle(column, count)
        self.epoch += 1
        self.owner[column : column + count] = _ZEROS[:count]
        self.freed[column] = FreedBlock(count, warp, at)
