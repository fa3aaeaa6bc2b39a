"""Exhaustive search for packings of accumulators and other segments into TMEM: orders, alignments and overlaps.

A packing is an order of the segments by their first column. For a given order and a given bound on the overlap of
neighbouring accumulators, the shortest packing puts every segment at the lowest column that its alignment allows,
because each start grows with the starts before it. So trying every order is exhaustive; orders that differ only by
segments of equal size and alignment count as one.

Overlapping accumulators constrain the epilogue: the next MMA waits until the shared columns are read. Packings that fit
are ranked by the remaining freedom, the *lead* (see `pytest_nvfp4.tmem.phases`).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

from pytest_nvfp4.tmem.columns import COLUMNS, MmaTile, TmemError, allocation, columns
from pytest_nvfp4.tmem.phases import Disjoint, Placement, best_leads, best_order, prove_disjoint

SCALES_ALIGN = 4
"""Default alignment of scale factors: the columns that ``tcgen05.cp.4x32x128b`` writes at once."""
MOST_ORDERS = 20_000
"""Largest number of orders that is searched."""
MOST_OVERLAPS = 20_000
"""Largest number of overlaps that is searched."""


class PlacedSegment(NamedTuple):
    """Segment with its first column."""

    name: str
    start: int
    columns: int


Starts: TypeAlias = tuple[PlacedSegment, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """Contiguous columns.

    Attributes:
        name: Unique name.
        columns: Number of columns.
        align: Alignment of the first column.
    """

    name: str
    columns: int
    align: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.columns <= COLUMNS:
            raise TmemError(f"segment {self.name}: {self.columns} columns; use 1 to {COLUMNS}")
        if self.align < 1:
            raise TmemError(f"segment {self.name}: an alignment of {self.align} columns; use at least 1")


@dataclass(frozen=True)
class PackingRequest:
    """Segments to pack.

    Attributes:
        accumulator: One accumulator stage.
        stages: Number of accumulators.
        others: All other segments, always live.
        subtile: Columns that the epilogue reads at once.
        capacity: TMEM capacity in columns.
    """

    accumulator: Segment
    stages: int
    others: tuple[Segment, ...] = ()
    subtile: int = 32
    capacity: int = COLUMNS

    def __post_init__(self) -> None:
        names = [segment.name for segment in self.others]
        if len({*names, self.accumulator.name}) != len(names) + 1:
            raise TmemError(f"two segments have the same name: {', '.join([self.accumulator.name, *names])}")
        if self.stages < 1:
            raise TmemError(f"{self.stages} accumulators: at least 1 is needed")
        if self.subtile < 1:
            raise TmemError(f"a subtile of {self.subtile} columns: use at least 1")
        if not 1 <= self.capacity <= COLUMNS:
            raise TmemError(f"a capacity of {self.capacity} columns: an SM has {COLUMNS}")
        if (orders := self.orders) > MOST_ORDERS:
            raise TmemError(
                f"{self.stages} accumulators and {len(self.others)} other segments have {orders} orders, more than the "
                f"{MOST_ORDERS} that are searched: join segments that are always used together"
            )

    @property
    def width(self) -> int:
        """Columns of one subtile, at most those of the accumulator."""
        return min(self.subtile, self.accumulator.columns)

    @property
    def orders(self) -> int:
        """Number of orders; segments of equal size and alignment are interchangeable."""
        alike = Counter((segment.columns, segment.align) for segment in self.others)
        total = math.factorial(self.stages + len(self.others)) // math.factorial(self.stages)
        return total // math.prod(math.factorial(count) for count in alike.values())

    @classmethod
    def of(
        cls, tile: MmaTile, *, subtile: int = 32, capacity: int = COLUMNS, align: int = SCALES_ALIGN
    ) -> PackingRequest:
        """Return the request for the accumulators and scale factors of a tile.

        Raises:
            TmemError: one accumulator is wider than TMEM.
        """
        need = columns(tile)
        return cls(
            Segment("acc", need.stage),
            tile.stages,
            (Segment("SFA", need.sfa, align), Segment("SFB", need.sfb, align)),
            subtile=subtile,
            capacity=capacity,
        )


@dataclass(frozen=True)
class Packing:
    """One packing.

    Attributes:
        request: The packed segments.
        overlaps: Bound on the overlap of each accumulator but the first with the one before it, in column order.
        starts: The segments in column order; accumulators are ``acc0``, ``acc1``, ...
    """

    request: PackingRequest
    overlaps: tuple[int, ...]
    starts: Starts

    @cached_property
    def _timed(self) -> tuple[Placement, tuple[int, ...]]:
        return _in_time(self.request, self.starts)

    @property
    def placement(self) -> Placement:
        """Input of the proof: accumulators in tile order, with their read orders."""
        return self._timed[0]

    @property
    def leads(self) -> tuple[int, ...]:
        """Number of subtiles that may be unread when an MMA into each accumulator starts, in tile order."""
        return self._timed[1]

    @property
    def overlap(self) -> int:
        """Largest number of columns that two accumulators share."""
        stages = sorted(self.placement.stages)
        return max((max(0, self.placement.width - (b - a)) for a, b in itertools.pairwise(stages)), default=0)

    @property
    def used(self) -> int:
        """Number of columns up to the last."""
        return max(start + size for _, start, size in self.starts)

    @property
    def allocation(self) -> int | None:
        """Smallest sufficient allocation; None if it does not fit an SM."""
        return allocation(self.used)

    @property
    def fits(self) -> bool:
        """Whether its allocation fits the capacity."""
        return self.allocation is not None and self.allocation <= self.request.capacity

    @property
    def slack(self) -> int:
        """Unused columns of the capacity; negative if it is too small."""
        return self.request.capacity - self.used

    @property
    def lead(self) -> int:
        """Smallest lead of all accumulators."""
        return min(self.leads)

    def prove(self) -> Disjoint:
        """Prove that no two live segments overlap in any phase."""
        return prove_disjoint(self.placement, self.leads)


@dataclass(frozen=True)
class PackingSearch:
    """Result of a search.

    Attributes:
        request: The packed segments.
        packings: The shortest packing for each overlap that is equal for all pairs of neighbours, and for each unequal
            overlap that fits and is not covered by a smaller one.
        tried: Number of combinations of orders and overlaps that were tried.
    """

    request: PackingRequest
    packings: tuple[Packing, ...]
    tried: int

    @property
    def best(self) -> Packing | None:
        """The fitting packing with the largest lead, then the fewest columns; None if none fits."""
        fitting = [packing for packing in self.packings if packing.fits]
        return min(fitting, key=_badness, default=None)


def _badness(packing: Packing) -> tuple[int, int, int, int, int]:
    return (-packing.lead, -sum(packing.leads), packing.allocation or COLUMNS, packing.used, sum(packing.overlaps))


def pack(request: PackingRequest) -> PackingSearch:
    """Search every order of the segments, overlap of neighbouring accumulators and order in time of accumulators.

    Only overlaps that the shortest packing for some lead can have are tried (`_steps`). An overlap that is at least as
    large everywhere as one that fits is skipped, because its lead is not larger.

    Raises:
        TmemError: more overlaps than `MOST_OVERLAPS`.
    """
    steps = _steps(request)
    pairs = request.stages - 1
    ways = len(steps) ** pairs
    if ways > MOST_OVERLAPS:
        raise TmemError(
            f"{request.stages} accumulators of {len(steps)} subtiles overlap in {ways} ways, more than "
            f"the {MOST_OVERLAPS} that are searched: use a wider subtile than {request.width}, or fewer accumulators"
        )
    orders = list(_orders(request))
    tried = 0
    packings: list[Packing] = []
    fitting: list[tuple[int, ...]] = []
    for overlaps in sorted(itertools.product(steps, repeat=pairs), key=lambda each: (sum(each), each)):
        if len(set(overlaps)) > 1 and any(_covers(overlaps, fit) for fit in fitting):
            continue
        starts, looked = _shortest(request, orders, overlaps)
        tried += looked
        packing = Packing(request, overlaps, starts)
        if packing.fits:
            fitting.append(overlaps)
            packings.append(packing)
        elif len(set(overlaps)) <= 1:
            packings.append(packing)
    return PackingSearch(request, tuple(packings), tried)


def _covers(larger: tuple[int, ...], smaller: tuple[int, ...]) -> bool:
    return all(map(operator.ge, larger, smaller))


def _steps(request: PackingRequest) -> list[int]:
    """Return the overlaps of neighbours that can change a lead.

    The number of subtiles that two accumulators share changes only where their distance passes a multiple of a subtile,
    counted from either side. A lead is therefore a set of minimum distances, also between accumulators that are not
    neighbours. In the shortest packing that respects them, every start is a sum of such distances, so the overlaps are
    the width minus differences of such sums.
    """
    width = request.accumulator.columns
    if request.stages == 1:
        return [0]
    distances = {at for first in range(0, width, request.width) for at in (first, width - first) if at}
    starts = {0}
    for _ in range(request.stages - 1):
        starts |= {start + distance for start in starts for distance in distances}
    if request.stages == 2:
        return sorted(width - start for start in starts if 0 < start <= width)
    return sorted({width - (b - a) for a in starts for b in starts if 0 < b - a <= width})


def _shortest(
    request: PackingRequest, orders: Sequence[tuple[tuple[Segment, bool], ...]], overlaps: Sequence[int]
) -> tuple[Starts, int]:
    """Return the shortest packing with these overlaps, and the number of orders tried."""
    sizes = request.stages * request.accumulator.columns + sum(segment.columns for segment in request.others)
    least = sizes - sum(overlaps)
    best: tuple[int, Starts] | None = None
    for looked, order in enumerate(orders, start=1):
        starts = _place(order, overlaps)
        used = max(start + size for _, start, size in starts)
        if best is None or used < best[0]:
            best = (used, starts)
        if used == least:  # a lower bound for every order
            return starts, looked
    assert best is not None
    return best[1], len(orders)


def best_of(searches: Sequence[PackingSearch]) -> Packing | None:
    """Return the best packing of several searches; of equally good ones, the one with fewer accumulators."""
    best = [search.best for search in searches if search.best is not None]
    return min(best, key=lambda packing: (-packing.lead, packing.request.stages, *_badness(packing)), default=None)


def _orders(request: PackingRequest) -> Iterator[tuple[tuple[Segment, bool], ...]]:
    """Iterate over orders of (segment, whether it is an accumulator); interchangeable segments keep their order."""
    kinds: dict[tuple[bool, int, int], list[Segment]] = {}
    for at in range(request.stages):
        acc = request.accumulator
        kinds.setdefault((True, acc.columns, acc.align), []).append(replace(acc, name=f"{acc.name}{at}"))
    for segment in request.others:
        kinds.setdefault((False, segment.columns, segment.align), []).append(segment)

    def further(left: dict[tuple[bool, int, int], int]) -> Iterator[tuple[tuple[bool, int, int], ...]]:
        if not any(left.values()):
            yield ()
        for kind, count in left.items():
            if count:
                for rest in further({**left, kind: count - 1}):
                    yield (kind, *rest)

    for order in further({kind: len(members) for kind, members in kinds.items()}):
        taken = {kind: iter(members) for kind, members in kinds.items()}
        yield tuple((next(taken[kind]), kind[0]) for kind in order)


def _place(order: Sequence[tuple[Segment, bool]], overlaps: Sequence[int]) -> Starts:
    placed = []
    end, after_accumulator, seen = 0, False, 0
    for segment, accumulator in order:
        least = end - overlaps[seen - 1] if accumulator and after_accumulator else end
        start = -(-max(0, least) // segment.align) * segment.align
        placed.append(PlacedSegment(segment.name, start, segment.columns))
        end, after_accumulator, seen = start + segment.columns, accumulator, seen + accumulator
    return tuple(placed)


def _in_time(request: PackingRequest, starts: Starts) -> tuple[Placement, tuple[int, ...]]:
    """Return the order in time of the accumulators, and their read orders, with the largest leads.

    Tiles cycle through the accumulators, so tile 0 can always be the one at the lowest column.
    """
    by_name = {name: start for name, start, _ in starts}
    first, *rest = (by_name[f"{request.accumulator.name}{at}"] for at in range(request.stages))
    width = request.accumulator.columns
    others = tuple((each.name, (by_name[each.name], by_name[each.name] + each.columns)) for each in request.others)
    best: tuple[tuple[int, int], Placement, tuple[int, ...]] | None = None
    for order in itertools.permutations(rest):
        stages = (first, *order)
        reads = best_order(stages, width=width, subtile=request.width)
        placement = Placement(stages, width, request.width, reads, others)
        leads = best_leads(placement)
        if best is None or (min(leads), sum(leads)) > best[0]:
            best = ((min(leads), sum(leads)), placement, leads)
    assert best is not None
    return best[1], best[2]
