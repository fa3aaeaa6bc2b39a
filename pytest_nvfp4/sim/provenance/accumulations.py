"""Accumulations: the MMAs that add to one accumulator, the k that they cover, and the tile that they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.provenance import words
from pytest_nvfp4.sim.provenance.expected import Content, Contents, row_keys, row_of
from pytest_nvfp4.sim.provenance.recorder import Mma, OperandRecorder, Part, Range
from pytest_nvfp4.sim.provenance.tags import TaggedTensor
from pytest_nvfp4.sim.run.cta import Cta, Dim3
from pytest_nvfp4.sim.run.grid import Grid

Fault = tuple[str, int, Dim3]
"""A message, the statement at fault, and a CTA."""
Written = Mapping[tuple[int, int], Mapping[str, NDArray[np.intp]]]
"""By CTA and group, the elements of C that the CTA stored: their rows (rows of A) and columns (rows of B)."""


@dataclass(slots=True, eq=False)
class Accumulation:
    """MMAs that add to one accumulator of one CTA, from the one that clears it.

    Attributes:
        first, last: Their first and last MMA.
        rows: The rows of A and B that each row and column of the accumulator has, as ``Content.rows``.
        ks: The k that each operand read.
        finished: Whether a ``tcgen05.ld`` read the accumulator.
    """

    first: Mma
    last: Mma
    cta: Dim3
    linear: int
    rows: dict[str, NDArray[np.int64]]
    ks: dict[str, set[int]]
    finished: bool = False

    def tile(self, content: Mapping[str, NDArray[np.int64]]) -> bool:
        """Return whether rows are those of this accumulator, as far as both are inside their tensors."""
        for name, mine in self.rows.items():
            other = content[name]
            both = (mine >= 0) & (other >= 0)
            if mine.size != other.size or (mine[both] != other[both]).any():
                return False
        return True


@dataclass(slots=True)
class Accumulations:
    """The accumulations of a call."""

    recorder: OperandRecorder
    _open: dict[tuple[int, int, int], Accumulation] = field(default_factory=dict)
    _all: list[Accumulation] = field(default_factory=list)
    _faults: dict[tuple[str, int], Fault] = field(default_factory=dict)
    _unfollowed: bool = False

    def seen(self, mma: Mma, part: Part) -> Mapping[str, set[int]]:
        """Return the k that the operands of an accumulation have read so far."""
        found = self._open.get((mma.launch, part.linear, mma.columns[0])) if mma.accumulates else None
        return found.ks if found is not None else {}

    def read(self, cta: Cta, columns: Range) -> None:
        """Note that a ``tcgen05.ld`` reads columns of a CTA."""
        for (launch, linear, _), each in self._open.items():
            begin, end = each.last.columns
            if launch == cta.launch.ordinal and linear == cta.linear and begin < columns[1] and columns[0] < end:
                each.finished = True

    def add(self, mma: Mma, part: Part, read: Contents) -> None:
        """Add an MMA."""
        a, b = read["A"], read["B"]
        if not (a.known and b.known):
            self._unfollowed = True
            return
        key = (mma.launch, part.linear, mma.columns[0])
        rows = {name: read[name].rows() for name in ("A", "B")}
        current = self._open.get(key)
        if current is None or not mma.accumulates:
            ks: dict[str, set[int]] = {name: set() for name in read}
            current = self._open[key] = Accumulation(mma, mma, part.cta, part.linear, rows, ks)
            self._all.append(current)
        elif not current.tile(rows):
            self._mixed(mma, part, read, current)
        repeated = [name for name, each in read.items() if each.k is not None and each.k in current.ks[name]]
        if repeated and len(repeated) == sum(each.k is not None for each in read.values()):
            self._repeated(mma, part, read)
        for name, each in read.items():
            if each.k is not None:
                current.ks[name].add(each.k)
        for name, mine in current.rows.items():
            current.rows[name] = np.where(mine >= 0, mine, rows[name])
        current.last = mma

    def _tell(self, kind: str, text: str, at: int, cta: Dim3) -> None:
        self._faults.setdefault((kind, at), (text, at, cta))

    def _mixed(self, mma: Mma, part: Part, read: Contents, current: Accumulation) -> None:
        grid = self.recorder.grid
        assert grid is not None
        where = words.statement(grid, mma.at)
        before = "has been read by the epilogue" if current.finished else "is not complete"
        self._tell(
            "mixed",
            f"the MMA at {where} adds {self._tile(read)} to the accumulator of another tile, which {before}: its first "
            "MMA must clear the accumulator (ACCUMULATE false)",
            mma.at,
            part.cta,
        )

    def _tile(self, read: Contents) -> str:
        tags = self.recorder.tags
        return " and ".join(
            words.what_is_read(read[name], read[name].keys >= 0, tags)
            for name in ("A", "B")
            if read[name].k is not None
        )

    def _repeated(self, mma: Mma, part: Part, read: Contents) -> None:
        grid = self.recorder.grid
        assert grid is not None
        content: Content = next(each for each in read.values() if each.k is not None)
        assert content.k is not None
        row = int(np.flatnonzero(content.keys >= 0)[0])
        loads = {int(each.operand.loads[row]) for each in read.values() if row < each.operand.loads.size}
        places = sorted({self.recorder.loads[number].at for number in loads if number >= 0})
        brought = f" (loaded by {', '.join(words.statement(grid, at) for at in places)})" if places else ""
        self._tell(
            "again",
            f"the MMA at {words.statement(grid, mma.at)} multiplies {words.k_range(content.k)} again, of "
            f"{self._tile(read)}{brought}: each k must be added once",
            self._cause_of_repeat(mma, part, content, places),
            part.cta,
        )

    def _cause_of_repeat(self, mma: Mma, part: Part, content: Content, places: Sequence[int]) -> int:
        """Return the statement that repeats: the load if no load of the CTA brought another k, else the MMA."""
        number = int(content.operand.loads.max())
        if number < 0 or not places:
            return mma.at
        at = self.recorder.loads[number].at
        boxes = {
            load.coordinates
            for load in self.recorder.loads
            if load.at == at and any(cta == part.cta for cta, _ in load.targets)
        }
        return at if len(boxes) == 1 else mma.at

    # ---- after the call ------------------------------------------------------------------------------------------

    def written(self, grid: Grid, outputs: Mapping[int, tuple[Region, int]]) -> Written:
        """Return what each CTA of the last launch stored; empty if the MMAs were not that launch's."""
        found: dict[tuple[int, int], dict[str, NDArray[np.intp]]] = {}
        if not self._all or self._all[-1].last.launch != grid.ordinal:
            return found
        for group, (region, columns) in outputs.items():
            if region.owner is None or not columns:
                continue
            owner = region.owner - region.launch_base
            order = np.argsort(owner, kind="stable")
            ctas, starts = np.unique(owner[order], return_index=True)
            for cta, elements in zip(ctas.tolist(), np.split(order, starts[1:]), strict=True):
                if cta >= 0:
                    rows, cols = np.divmod(elements, columns)
                    found[cta, group] = {"A": rows, "B": cols}
        return found

    def faults(self, grid: Grid, written: Written) -> list[Fault]:
        """Return what is wrong with accumulations whose MMAs are each right: the first cause, if there is any."""
        if self._unfollowed or self.recorder.unfollowed or self.recorder.truncated:
            return list(self._faults.values())[:1]
        return [*self._faults.values(), *self._missing(grid), *self._elsewhere(grid, written)][:1]

    def _missing(self, grid: Grid) -> Iterator[Fault]:
        """Yield the k of a tile that no MMA multiplies into an accumulator that is read."""
        tiles: dict[tuple[bytes, bytes], list[Accumulation]] = {}
        for each in self._all:
            if each.finished:
                tiles.setdefault((each.rows["A"].tobytes(), each.rows["B"].tobytes()), []).append(each)
        for several in tiles.values():
            last = several[-1]
            tensor = self._tensor(last)
            if tensor is None:
                continue
            left = sorted(set(range(0, tensor.k, 64)).difference(*(each.ks["A"] for each in several)))
            if not left:
                continue
            missing = words.span([left[0], left[-1] + 63])
            if any(not each.finished and each.linear == last.linear and each.tile(last.rows) for each in self._all):
                at = last.first.at
                text = (
                    f"the MMA at {words.statement(grid, at)} clears the accumulator (ACCUMULATE false) before anything "
                    f"has read it, so that the products of k {missing} are lost"
                )
            else:
                at = last.last.at
                text = (
                    f"no MMA multiplies k {missing} of {tensor}, rows "
                    f"{words.span([row_of(int(key))[2] for key in last.rows['A'] if key >= 0])}: the last MMA of the "
                    f"tile, at {words.statement(grid, at)}, ends at k {max(last.ks['A'], default=-1) + 63}"
                )
            yield text, at, last.cta

    def _tensor(self, each: Accumulation) -> TaggedTensor | None:
        """Return the matrix that an accumulation reads as operand A."""
        inside = each.rows["A"][each.rows["A"] >= 0]
        if not inside.size:
            return None
        group, matrix, _ = row_of(int(inside[0]))
        index = self.recorder.tags.find(matrix, group)
        return None if index is None else self.recorder.tags.tensors[index]

    def _elsewhere(self, grid: Grid, written: Written) -> Iterator[Fault]:
        """Yield the CTAs that store elements of C which none of their accumulators has."""
        by_cta: dict[int, list[Accumulation]] = {}
        for each in self._all:
            if each.finished:
                by_cta.setdefault(each.linear, []).append(each)
        for (linear, group), stored in written.items():
            if mine := by_cta.get(linear):
                made = np.zeros(stored["A"].size, np.bool_)
                for each in mine:
                    made |= _contains(each, group, stored)
                if not made.all():
                    yield self._stored_elsewhere(grid, mine, group, {name: at[~made] for name, at in stored.items()})

    def _stored_elsewhere(
        self, grid: Grid, mine: Sequence[Accumulation], group: int, stored: Mapping[str, NDArray[np.intp]]
    ) -> Fault:
        """Return the fault of elements that no accumulator has: of their rows, or else of their columns."""
        each = mine[0]
        for matrix, what in (("A", "rows"), ("B", "columns")):
            first = row_keys(group, matrix)
            has = np.unique(np.concatenate([each.rows[name] for each in mine for name in ("A", "B")]) - first)
            has = has[(has >= 0) & (has < 1 << 28)]
            if not np.isin(stored[matrix], has).all():
                break
        tensor = self._tensor(each)
        name = "A" if tensor is None or tensor.matrix == matrix else "B"
        operand = next(part for part in each.last.parts if part.linear == each.linear).operands[name]
        number = int(operand.loads.max())
        load = self.recorder.loads[number] if number >= 0 else None
        at = load.at if load is not None else each.last.at
        what_read = f"{what} {words.span(has)} of it" if has.size else "none of its " + what
        brought = ""
        if load is not None and load.outside:
            brought = f": the box of {words.statement(grid, at)} {words.box_text(load)}, so that TMA filled in zeros"
        elif load is not None:
            brought = f" (operand {name} is loaded by {words.statement(grid, at)})"
        text = (
            f"CTA {each.cta} stores {what} {words.span(stored[matrix])} of C of group {group}, but the accumulator of "
            f"its MMAs at {words.statement(grid, each.last.at)} has {what_read}{brought}"
        )
        return text, at, each.cta


def _contains(each: Accumulation, group: int, stored: Mapping[str, NDArray[np.intp]]) -> NDArray[np.bool_]:
    """Return which stored elements of C an accumulator has."""
    a, b = (np.isin(stored[matrix] + row_keys(group, matrix), each.rows[matrix]) for matrix in ("A", "B"))
    ta, tb = (np.isin(stored[m] + row_keys(group, m), each.rows[o]) for m, o in (("A", "B"), ("B", "A")))
    return np.asarray(a & b | ta & tb)
