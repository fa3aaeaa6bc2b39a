"""Accumulations: the MMAs that add to one accumulator, the k that they cover, and the tile that they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.provenance import words
from pytest_nvfp4.sim.provenance.expected import Content, Contents, row_keys, row_of
from pytest_nvfp4.sim.provenance.recorder import Mma, OperandRecorder, Part, Range
from pytest_nvfp4.sim.provenance.tags import TaggedTensor
from pytest_nvfp4.sim.run.cta import Cta, Dim3
from pytest_nvfp4.sim.run.grid import Grid

Elements = Mapping[str, NDArray[np.intp]]
"""Elements of C: the row of A (row of C) and the row of B (column of C) of each."""
Written = Mapping[tuple[int, int, int], Elements]
"""By launch, CTA and group, the elements of C that the CTA stored."""


class Fault(NamedTuple):
    """A message, the launch and the statement at fault, and a CTA."""

    text: str
    grid: Grid
    at: int
    cta: Dim3


@dataclass(slots=True, eq=False)
class Accumulation:
    """MMAs that add to one accumulator of one CTA, from the one that clears it.

    Attributes:
        first, last: Their first and last MMA.
        rows: The rows of A and B that each row and column of the accumulator has, as ``Content.rows``.
        ks: The k that each operand read.
        finished: The first ``tcgen05.ld`` that read the accumulator; None if none did.
    """

    grid: Grid
    first: Mma
    last: Mma
    cta: Dim3
    linear: int
    rows: dict[str, NDArray[np.int64]]
    ks: dict[str, set[int]]
    finished: int | None = None

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
    """The accumulations of a call.

    Attributes:
        outputs: For each C the watched memory, and its columns. Each has the rows of one group of tags, or of several
            that follow each other (batches).
    """

    recorder: OperandRecorder
    outputs: Mapping[int, tuple[Region, int]] = field(default_factory=dict)
    _bases: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By C, each launch with the number of its first CTA among the owners of C's elements, in order."""
    _open: dict[tuple[int, int, int], Accumulation] = field(default_factory=dict)
    _all: list[Accumulation] = field(default_factory=list)
    _faults: dict[tuple[str, int], Fault] = field(default_factory=dict)
    _unfollowed: bool = False

    def begin(self, grid: Grid) -> None:
        """Begin a launch."""
        for output, (region, _) in self.outputs.items():
            self._bases.setdefault(output, []).append((region.launch_base, grid.ordinal))

    def seen(self, mma: Mma, part: Part) -> Mapping[str, set[int]]:
        """Return the k that the operands of an accumulation have read so far."""
        found = self._open.get((mma.launch, part.linear, mma.columns[0])) if mma.accumulates else None
        return found.ks if found is not None else {}

    def read(self, cta: Cta, at: int, columns: Range) -> None:
        """Note that a ``tcgen05.ld`` reads columns of a CTA."""
        for (launch, linear, _), each in self._open.items():
            begin, end = each.last.columns
            if launch == cta.launch.ordinal and linear == cta.linear and begin < columns[1] and columns[0] < end:
                each.finished = at if each.finished is None else each.finished

    def add(self, mma: Mma, part: Part, read: Contents) -> None:
        """Add an MMA."""
        grid = self.recorder.grid
        assert grid is not None
        a, b = read["A"], read["B"]
        if not (a.known and b.known):
            self._unfollowed = True
            return
        key = (mma.launch, part.linear, mma.columns[0])
        rows = {name: read[name].rows() for name in ("A", "B")}
        current = self._open.get(key)
        if current is None or not mma.accumulates:
            ks: dict[str, set[int]] = {name: set() for name in read}
            current = self._open[key] = Accumulation(grid, mma, mma, part.cta, part.linear, rows, ks)
            self._all.append(current)
        elif not current.tile(rows):
            self._mixed(grid, mma, part, read, current)
        repeated = [name for name, each in read.items() if each.k is not None and each.k in current.ks[name]]
        if repeated and len(repeated) == sum(each.k is not None for each in read.values()):
            self._repeated(grid, mma, part, read)
        for name, each in read.items():
            if each.k is not None:
                current.ks[name].add(each.k)
        for name, mine in current.rows.items():
            current.rows[name] = np.where(mine >= 0, mine, rows[name])
        current.last = mma

    def _tell(self, kind: str, fault: Fault) -> None:
        self._faults.setdefault((kind, fault.at), fault)

    def _mixed(self, grid: Grid, mma: Mma, part: Part, read: Contents, current: Accumulation) -> None:
        where = words.statement(grid, mma.at)
        before = "has been read by the epilogue" if current.finished is not None else "is not complete"
        text = (
            f"the MMA at {where} adds {self._tile(read)} to the accumulator of another tile, which {before}: the first "
            "MMA of a tile must clear the accumulator (ACCUMULATE false)"
        )
        self._tell("mixed", Fault(text, grid, mma.at, part.cta))

    def _tile(self, read: Contents) -> str:
        tags = self.recorder.tags
        return " and ".join(
            words.what_is_read(read[name], read[name].keys >= 0, tags)
            for name in ("A", "B")
            if read[name].k is not None
        )

    def _repeated(self, grid: Grid, mma: Mma, part: Part, read: Contents) -> None:
        content: Content = next(each for each in read.values() if each.k is not None)
        assert content.k is not None
        row = int(np.flatnonzero(content.keys >= 0)[0])
        loads = {int(each.operand.loads[row]) for each in read.values() if row < each.operand.loads.size}
        places = sorted({self.recorder.loads[number].at for number in loads if number >= 0})
        brought = f" (loaded by {', '.join(words.statement(grid, at) for at in places)})" if places else ""
        text = (
            f"the MMA at {words.statement(grid, mma.at)} multiplies {words.k_range(content.k)} again, of "
            f"{self._tile(read)}{brought}: each k must be added once"
        )
        self._tell("again", Fault(text, grid, self._cause_of_repeat(mma, part, content, places), part.cta))

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

    def written(self) -> Written:
        """Return what each CTA of the launches with MMAs stored."""
        found: dict[tuple[int, int, int], Elements] = {}
        for output, (region, columns) in self.outputs.items():
            if region.owner is None or not columns:
                continue
            groups, begins = self._groups(output)
            order = np.argsort(region.owner, kind="stable")
            owners, starts = np.unique(region.owner[order], return_index=True)
            for owner, elements in zip(owners.tolist(), np.split(order, starts[1:]), strict=True):
                if owner >= 0:
                    # The launches that did not write this C have the base of the next one that did.
                    base, launch = [pair for pair in self._bases[output] if pair[0] <= owner][-1]
                    rows, cols = np.divmod(elements, columns)
                    of = np.searchsorted(begins, rows, side="right") - 1
                    for at in np.unique(of).tolist():
                        mine = of == at
                        places = {"A": rows[mine] - begins[at], "B": cols[mine]}
                        found[launch, owner - base, groups[at]] = places
        return found

    def _groups(self, output: int) -> tuple[list[int], NDArray[np.intp]]:
        """Return the groups of tags whose rows a C has, and the row of C at which each begins."""
        tags = self.recorder.tags
        if tags.unit == "group":
            return [output], np.zeros(1, np.intp)
        rows = {tensor.group: tensor.rows for tensor in tags.tensors if tensor.name == "A"}
        return list(rows), np.cumsum([0, *rows.values()])[:-1]

    def faults(self, written: Written) -> list[Fault]:
        """Return what is wrong with accumulations whose MMAs are each right: the first cause, if there is any."""
        if self._unfollowed or self.recorder.unfollowed or self.recorder.truncated:
            return list(self._faults.values())[:1]
        return [*self._faults.values(), *self._missing(), *self._elsewhere(written)][:1]

    def _missing(self) -> Iterator[Fault]:
        """Yield the k of a tile that no MMA multiplies into an accumulator that is read."""
        tiles: dict[tuple[bytes, bytes], list[Accumulation]] = {}
        for each in self._all:
            if each.finished is not None:
                tiles.setdefault((each.rows["A"].tobytes(), each.rows["B"].tobytes()), []).append(each)
        for several in tiles.values():
            last = several[-1]
            grid = last.grid
            tensor = self._tensor(last)
            if tensor is None:
                continue
            left = sorted(set(range(0, tensor.k, 64)).difference(*(each.ks["A"] for each in several)))
            if not left:
                continue
            missing = words.span([left[0], left[-1] + 63])
            if any(each.finished is None and each.linear == last.linear and each.tile(last.rows) for each in self._all):
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
            yield Fault(text, grid, at, last.cta)

    def _tensor(self, each: Accumulation) -> TaggedTensor | None:
        """Return the matrix that an accumulation reads as operand A."""
        inside = each.rows["A"][each.rows["A"] >= 0]
        if not inside.size:
            return None
        group, matrix, _ = row_of(int(inside[0]))
        index = self.recorder.tags.find(matrix, group)
        return None if index is None else self.recorder.tags.tensors[index]

    def _elsewhere(self, written: Written) -> Iterator[Fault]:
        """Yield the CTAs that store elements of C which none of their accumulators has."""
        by_cta: dict[tuple[int, int], list[Accumulation]] = {}
        for each in self._all:
            if each.finished is not None:
                by_cta.setdefault((each.first.launch, each.linear), []).append(each)
        for (launch, linear, group), stored in written.items():
            if mine := by_cta.get((launch, linear)):
                made = _made(mine, group, stored)
                if not made.all():
                    left = {matrix: places[~made] for matrix, places in stored.items()}
                    others = [each for several in by_cta.values() for each in several]
                    yield self._stored_elsewhere(mine, group, left, elsewhere=bool(_made(others, group, left).all()))

    def _stored_elsewhere(
        self, mine: Sequence[Accumulation], group: int, stored: Elements, *, elsewhere: bool
    ) -> Fault:
        """Return the fault of stored elements that no accumulator of the CTA has: of their rows, or else columns.

        ``elsewhere``: other CTAs have accumulated them, so that the store's coordinates are wrong, not the loads'.
        """
        each = mine[0]
        grid = each.grid
        rows, columns = (_rows_of(mine, group, matrix) for matrix in ("A", "B"))
        matrix, what, has = ("A", "rows", rows) if not np.isin(stored["A"], rows).all() else ("B", "columns", columns)
        tensor = self._tensor(each)
        name = "A" if tensor is None or tensor.matrix == matrix else "B"
        operand = next(part for part in each.last.parts if part.linear == each.linear).operands[name]
        number = int(operand.loads.max())
        load = self.recorder.loads[number] if number >= 0 else None
        at = load.at if load is not None else each.last.at
        reason = ""
        if load is not None and load.outside:
            reason = f": the box of {words.statement(grid, at)} {words.box_text(load)}, so that TMA filled in zeros"
        elif elsewhere and each.finished is not None:
            at = each.finished
            reason = f"; the epilogue, which reads the accumulator at {words.statement(grid, at)}, stores it elsewhere"
        elif load is not None:
            reason = f" (operand {name} is loaded by {words.statement(grid, at)})"
        has_text = f"{what} {words.span(has)} of it" if has.size else f"none of its {what}"
        text = (
            f"CTA {each.cta} stores {what} {words.span(stored[matrix])} of C of {self.recorder.tags.unit} {group}, "
            f"but the accumulator of its MMAs at {words.statement(grid, each.last.at)} has {has_text}{reason}"
        )
        return Fault(text, grid, at, each.cta)


def _rows_of(mine: Sequence[Accumulation], group: int, matrix: str) -> NDArray[np.int64]:
    """Return the rows of a matrix that accumulators have."""
    first = row_keys(group, matrix)
    rows = np.unique(np.concatenate([each.rows[name] for each in mine for name in ("A", "B")])) - first
    return np.asarray(rows[(rows >= 0) & (rows < row_keys(group + 1, matrix) - first)])


def _made(accumulations: Sequence[Accumulation], group: int, stored: Elements) -> NDArray[np.bool_]:
    """Return which elements of C some accumulator has, as a tile or transposed."""
    a, b = stored["A"] + row_keys(group, "A"), stored["B"] + row_keys(group, "B")
    made = np.zeros(a.size, np.bool_)
    for each in accumulations:
        x, y = each.rows["A"], each.rows["B"]
        made |= np.isin(a, x) & np.isin(b, y) | np.isin(a, y) & np.isin(b, x)
    return made
