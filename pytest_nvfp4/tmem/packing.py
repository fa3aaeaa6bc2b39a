"""Pack accumulators and other segments into TMEM: every order, alignment and overlap of accumulators, *exhaustive*.

A packing is an order of the segments by their first column. For one order, and one bound on how far an accumulator may
reach into the one before it, no packing is shorter than the one that puts every segment at the lowest column that its
alignment allows: each start only grows with the ones before it. So trying every order leaves nothing out; orders that
differ by segments of equal size and alignment are one order.

Accumulators that overlap cost the epilogue its freedom: the next MMA waits until the shared columns were read. What is
left of that freedom, the *lead*, is what packings that fit are ranked by (see `pytest_nvfp4.tmem.phases`).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from pytest_nvfp4.tmem.columns import COLUMNS, MmaTile, TmemError, allocation, columns
from pytest_nvfp4.tmem.phases import Disjoint, Placement, best_leads, best_order, prove_disjoint

SCALES_ALIGN = 4
"""Columns that ``tcgen05.cp.4x32x128b`` writes at once: where scale factors begin, unless told otherwise."""
MOST_ORDERS = 20_000
MOST_OVERLAPS = 20_000

Starts: TypeAlias = tuple[tuple[str, int, int], ...]
"""Name, first column and number of columns of each segment."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Columns that lie side by side.

    Attributes:
        name: What they are.
        columns: How many.
        align: The first is a multiple of this.
    """

    name: str
    columns: int
    align: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.columns <= COLUMNS:
            raise TmemError(f"segment {self.name}: {self.columns} columns; there are 1 to {COLUMNS}")
        if self.align < 1:
            raise TmemError(f"segment {self.name}: an alignment of {self.align} columns; the least is 1")


@dataclass(frozen=True)
class Request:
    """What is to be packed.

    Attributes:
        accumulator: One accumulator stage.
        stages: How many of them; 0 for none.
        others: Everything else, live at all times.
        subtile: Columns that the epilogue reads at once.
        capacity: Columns there are.
    """

    accumulator: Segment
    stages: int
    others: tuple[Segment, ...] = ()
    subtile: int = 32
    capacity: int = COLUMNS

    def __post_init__(self) -> None:
        names = [segment.name for segment in self.others]
        if len({*names, self.accumulator.name}) != len(names) + 1:
            raise TmemError(f"two segments have one name: {', '.join([self.accumulator.name, *names])}")
        if self.stages < 1:
            raise TmemError(f"{self.stages} accumulators: at least 1 is needed")
        if self.subtile < 1:
            raise TmemError(f"a subtile of {self.subtile} columns: the epilogue reads at least 1 at once")
        if not 1 <= self.capacity <= COLUMNS:
            raise TmemError(f"a capacity of {self.capacity} columns: an SM has {COLUMNS}")
        if (orders := self.orders) > MOST_ORDERS:
            raise TmemError(
                f"{self.stages} accumulators and {len(self.others)} other segments have {orders} orders, more than the "
                f"{MOST_ORDERS} that are tried: join segments that are always used together"
            )

    @property
    def width(self) -> int:
        """Columns of one subtile, no wider than the accumulator."""
        return min(self.subtile, self.accumulator.columns)

    @property
    def orders(self) -> int:
        """How many orders there are; segments of equal size and alignment are alike."""
        alike = Counter((segment.columns, segment.align) for segment in self.others)
        total = math.factorial(self.stages + len(self.others)) // math.factorial(self.stages)
        return total // math.prod(math.factorial(count) for count in alike.values())

    @classmethod
    def of(cls, tile: MmaTile, *, subtile: int = 32, capacity: int = COLUMNS, align: int = SCALES_ALIGN) -> Request:
        """The accumulators and scale factors of a tile.

        Raises:
            TmemError: a tile whose single accumulator is wider than TMEM.
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
    """A packing.

    Attributes:
        request: What was packed.
        overlaps: For each accumulator but the first, in the order of the columns, the most columns that it may reach
            into the one before it.
        starts: Each segment's name, first column and number of columns, in the order of the columns; accumulators are
            ``acc0``, ``acc1``, ...
    """

    request: Request
    overlaps: tuple[int, ...]
    starts: Starts

    @cached_property
    def _timed(self) -> tuple[Placement, tuple[int, ...]]:
        return _in_time(self.request, self.starts)

    @property
    def placement(self) -> Placement:
        """The same for the proof: accumulators in the order of their tiles, and how each is read."""
        return self._timed[0]

    @property
    def leads(self) -> tuple[int, ...]:
        """For each accumulator in the order of tiles, how many subtiles may be unread when an MMA into it starts."""
        return self._timed[1]

    @property
    def overlap(self) -> int:
        """The most columns that two accumulators share."""
        stages = sorted(self.placement.stages)
        return max((max(0, self.placement.width - (b - a)) for a, b in itertools.pairwise(stages)), default=0)

    @property
    def used(self) -> int:
        """Columns from the first to the last."""
        return max(start + size for _, start, size in self.starts)

    @property
    def allocation(self) -> int | None:
        """What to allocate; None where it does not fit an SM."""
        return allocation(self.used)

    @property
    def fits(self) -> bool:
        """Whether its allocation fits the capacity."""
        return self.allocation is not None and self.allocation <= self.request.capacity

    @property
    def slack(self) -> int:
        """Columns of the capacity that nothing uses; negative: how many it lacks."""
        return self.request.capacity - self.used

    @property
    def lead(self) -> int:
        """The least lead."""
        return min(self.leads)

    @property
    def waits_for(self) -> int:
        """Subtiles of the tile before that must be read before an MMA may start, at worst."""
        return max(0, self.placement.subtiles - self.lead)

    def prove(self) -> Disjoint:
        """The proof that no two live segments overlap in any phase."""
        return prove_disjoint(self.placement, self.leads)


@dataclass(frozen=True)
class Search:
    """Everything that was found.

    Attributes:
        request: What was packed.
        packings: The shortest packing for each overlap: all that are alike for every pair of neighbours, and of the
            others those that fit and that none with less overlap replaces.
        tried: Orders and overlaps that were tried.
    """

    request: Request
    packings: tuple[Packing, ...]
    tried: int

    @property
    def best(self) -> Packing | None:
        """The one that fits and leaves the epilogue most freedom, then the one that uses least; None if none fits."""
        fitting = [packing for packing in self.packings if packing.fits]
        return min(fitting, key=_badness, default=None)


def _badness(packing: Packing) -> tuple[int, int, int, int, int]:
    return (-packing.lead, -sum(packing.leads), packing.allocation or COLUMNS, packing.used, sum(packing.overlaps))


def pack(request: Request) -> Search:
    """Every order of the segments, every overlap of neighbouring accumulators, every order in time of accumulators.

    Of the overlaps only those are tried that the shortest packing for some lead can have (``_steps``). An overlap that
    is larger everywhere than one that fits has no larger lead.

    Raises:
        TmemError: more overlaps than are tried.
    """
    steps = _steps(request)
    pairs = request.stages - 1
    ways = len(steps) ** pairs
    if ways > MOST_OVERLAPS:
        raise TmemError(
            f"{request.stages} accumulators of {len(steps)} subtiles overlap in {ways} ways, more than "
            f"the {MOST_OVERLAPS} that are tried: take a wider subtile than {request.width}, or fewer accumulators"
        )
    orders = list(_orders(request))
    tried = 0
    found: list[Packing] = []
    fitting: list[tuple[int, ...]] = []
    for overlaps in sorted(itertools.product(steps, repeat=pairs), key=lambda each: (sum(each), each)):
        if len(set(overlaps)) > 1 and any(map(lambda one, all_=overlaps: _covers(all_, one), fitting)):  # type: ignore[misc]
            continue
        starts, looked = _shortest(request, orders, overlaps)
        tried += looked
        packing = Packing(request, overlaps, starts)
        if packing.fits:
            fitting.append(overlaps)
            found.append(packing)
        elif len(set(overlaps)) <= 1:
            found.append(packing)
    return Search(request, tuple(found), tried)


def _covers(larger: tuple[int, ...], smaller: tuple[int, ...]) -> bool:
    return all(map(operator.ge, larger, smaller))


def _steps(request: Request) -> list[int]:
    """The overlaps of neighbours that can matter.

    How many subtiles two accumulators share changes where their distance passes a multiple of a subtile, from either
    side. A lead is thus a set of least distances, also of accumulators that are not neighbours, and the shortest
    packing that keeps them all has every start at a sum of such distances: the overlaps are what neighbouring sums
    leave.
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
    request: Request, orders: Sequence[tuple[tuple[Segment, bool], ...]], overlaps: Sequence[int]
) -> tuple[Starts, int]:
    """The shortest packing with these overlaps, and how many orders were looked at."""
    sizes = request.stages * request.accumulator.columns + sum(segment.columns for segment in request.others)
    least = sizes - sum(overlaps)
    best: tuple[int, Starts] | None = None
    for looked, order in enumerate(orders, start=1):
        starts = _place(order, overlaps)
        used = max(start + size for _, start, size in starts)
        if best is None or used < best[0]:
            best = (used, starts)
        if used == least:  # fewer columns no packing has
            return starts, looked
    assert best is not None
    return best[1], len(orders)


def pack_tile(
    tile: MmaTile, *, stages: Sequence[int] | None = None, subtile: int = 32, capacity: int = COLUMNS
) -> list[Search]:
    """A search for each number of accumulators: those given, else 1 to 4 as long as one packing fits."""
    found: list[Search] = []
    for count in stages or range(1, 5):
        request = Request.of(
            MmaTile(tile.m, tile.n, tile.k, tile.ctas, count, tile.sf_vector), subtile=subtile, capacity=capacity
        )
        search = pack(request)
        if stages is None and found and search.best is None:
            break
        found.append(search)
    return found


def best_of(searches: Sequence[Search]) -> Packing | None:
    """The best packing of several searches; of equally good ones the one with fewer accumulators."""
    found = [search.best for search in searches if search.best is not None]
    return min(found, key=lambda one: (-one.lead, one.request.stages, *_badness(one)), default=None)


def _orders(request: Request) -> Iterator[tuple[tuple[Segment, bool], ...]]:
    """Every order, alike segments and accumulators in their own; True marks an accumulator."""
    kinds: dict[tuple[bool, int, int], list[Segment]] = {}
    for at in range(request.stages):
        one = request.accumulator
        kinds.setdefault((True, one.columns, one.align), []).append(Segment(f"{one.name}{at}", one.columns, one.align))
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
        placed.append((segment.name, start, segment.columns))
        end, after_accumulator, seen = start + segment.columns, accumulator, seen + accumulator
    return tuple(placed)


def _in_time(request: Request, starts: Starts) -> tuple[Placement, tuple[int, ...]]:
    """The order in time of the accumulators, and the order of reading, that leave the largest leads.

    Which one is tile 0's does not matter, so the one at the lowest column is.
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
