"""Proof by enumeration that no two live TMEM segments overlap in any phase of the accumulator pipeline.

The pipeline computes tiles 0, 1, 2, ... in order, tile t into accumulator t mod S. The MMA of a tile writes all columns
of its accumulator from its start on. The epilogue reads finished tiles in order, subtile by subtile. A column is live
from the start of its tile's MMA until its subtile is read. Scale factors and all other segments are always live.

Accumulators may overlap, as in CUTLASS for a tile of 256 columns: the MMA of a tile then starts only when all unread
subtiles of earlier tiles lie outside its columns. A schedule gives each accumulator a *lead*: the number of subtiles
that may be unread when an MMA into it starts. Nothing else is constrained: every interleaving of MMA and epilogue is a
path through the phases.

The phases repeat every S tiles, so they are finitely many, and all reachable ones are visited (*exhaustive*, without a
solver).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_nvfp4.tmem.columns import TmemError

Span = tuple[int, int]
"""First column, and one past the last column."""


@dataclass(frozen=True)
class Placement:
    """Columns of every segment.

    Attributes:
        stages: First column of each accumulator.
        width: Columns of one accumulator.
        subtile: Columns that the epilogue reads at once; the last subtile may be narrower.
        order: For each accumulator, its subtiles in the order in which they are read.
        others: Segments that are always live, by name.
    """

    stages: tuple[int, ...]
    width: int
    subtile: int
    order: tuple[tuple[int, ...], ...]
    others: tuple[tuple[str, Span], ...] = ()

    def __post_init__(self) -> None:
        if not self.stages or self.width < 1 or len(self.order) != len(self.stages):
            raise TmemError("a placement needs at least one accumulator of at least one column, each with a read order")
        if not 1 <= self.subtile <= self.width:
            raise TmemError(f"a subtile of {self.subtile} columns: an accumulator has {self.width}")
        if len({name for name, _ in self.others}) != len(self.others):
            raise TmemError(f"segments {', '.join(name for name, _ in self.others)}: two have the same name")
        if any(sorted(order) != list(range(self.subtiles)) for order in self.order):
            raise TmemError(f"read orders {self.order}: each must name the {self.subtiles} subtiles once")

    @property
    def subtiles(self) -> int:
        """Number of subtiles of one accumulator."""
        return -(-self.width // self.subtile)

    def stage(self, tile: int) -> Span:
        """Return the columns of a tile's accumulator."""
        start = self.stages[tile % len(self.stages)]
        return start, start + self.width

    @cached_property
    def _reads(self) -> tuple[tuple[Span, ...], ...]:
        reads = []
        for start, order in zip(self.stages, self.order, strict=True):
            ends = [(at * self.subtile, min((at + 1) * self.subtile, self.width)) for at in order]
            reads.append(tuple((start + first, start + end) for first, end in ends))
        return tuple(reads)

    def reads(self, tile: int) -> tuple[Span, ...]:
        """Return the subtiles of a tile in the epilogue's read order."""
        return self._reads[tile % len(self.stages)]


@dataclass(frozen=True, slots=True)
class Phase:
    """State of the pipeline.

    Attributes:
        tile: The epilogue's tile, modulo the number of accumulators.
        read: Number of its subtiles already read.
        ahead: Number of tiles from that one on whose MMA has started.
        running: Whether the MMA of the last of them is still running.
    """

    tile: int
    read: int
    ahead: int
    running: bool

    def __str__(self) -> str:
        computing = f", the MMA of tile {self.tile + self.ahead - 1} running" if self.running else ""
        waiting = self.ahead - self.running
        return f"epilogue at tile {self.tile}, {self.read} subtiles read, {waiting} tiles finished{computing}"


@dataclass(frozen=True, slots=True)
class Clash:
    """Two live segments that share columns in a phase."""

    phase: Phase
    one: str
    other: str
    shared: Span

    def __str__(self) -> str:
        first, last = self.shared[0], self.shared[1] - 1
        return f"{self.one} and {self.other} share columns {first}..{last}: {self.phase}"


@dataclass(frozen=True, slots=True)
class Disjoint:
    """Result of the proof: *proved* (exhaustive) if there is no clash.

    Attributes:
        phases: Number of reachable phases.
        clash: The first phase with two overlapping live segments; None if there is none.
    """

    phases: int
    clash: Clash | None

    @property
    def proved(self) -> bool:
        """Whether no two live segments overlap in any phase."""
        return self.clash is None


def overlap(one: Span, other: Span) -> Span | None:
    """Return the columns that two spans share, or None."""
    first, end = max(one[0], other[0]), min(one[1], other[1])
    return (first, end) if first < end else None


def live(placement: Placement, phase: Phase) -> list[tuple[str, Span]]:
    """Return all live segments of a phase with their columns; the parts of one tile share a name."""
    segments = list(placement.others)
    finished = phase.ahead - phase.running
    for ahead in range(finished):
        tile = phase.tile + ahead
        spans = placement.reads(tile)[phase.read if ahead == 0 else 0 :]
        segments += [(f"tile {tile} (unread)", span) for span in spans]
    if phase.running:
        tile = phase.tile + finished
        segments.append((f"tile {tile} (MMA)", placement.stage(tile)))
    return segments


def prove_disjoint(placement: Placement, leads: Sequence[int]) -> Disjoint:
    """Visit every reachable phase and compare all of its live segments.

    Args:
        placement: Columns of every segment.
        leads: For each accumulator, the number of subtiles that may be unread when an MMA into it starts.

    Raises:
        TmemError: not one lead per accumulator, or a negative one (the MMA would never start).
    """
    count = len(placement.stages)
    if len(leads) != count or any(lead < 0 for lead in leads):
        raise TmemError(f"leads {tuple(leads)}: one for each of {count} accumulators, none negative")
    start = Phase(0, 0, 0, False)
    seen = {start}
    waiting = deque([start])
    while waiting:
        phase = waiting.popleft()
        if (clash := _clash(placement, phase)) is not None:
            return Disjoint(len(seen), clash)
        for following in _steps(placement, phase, leads):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return Disjoint(len(seen), None)


def _unread(placement: Placement, phase: Phase) -> int:
    return (phase.ahead - phase.running) * placement.subtiles - phase.read


def _steps(placement: Placement, phase: Phase, leads: Sequence[int]) -> Iterator[Phase]:
    count = len(placement.stages)
    if phase.running:
        yield Phase(phase.tile, phase.read, phase.ahead, False)
    elif _unread(placement, phase) <= leads[(phase.tile + phase.ahead) % count]:
        yield Phase(phase.tile, phase.read, phase.ahead + 1, True)
    if phase.ahead - phase.running:
        if phase.read + 1 < placement.subtiles:
            yield Phase(phase.tile, phase.read + 1, phase.ahead, phase.running)
        else:
            yield Phase((phase.tile + 1) % count, 0, phase.ahead - 1, phase.running)


def _clash(placement: Placement, phase: Phase) -> Clash | None:
    for (one, span), (other, against) in itertools.combinations(live(placement, phase), 2):
        if one != other and (shared := overlap(span, against)) is not None:
            return Clash(phase, one, other, shared)
    return None


def best_leads(placement: Placement) -> tuple[int, ...]:
    """Return for each accumulator the most subtiles that may be unread when an MMA into it starts.

    Subtiles are read in order, so L unread subtiles are the last L before the tile. The lead is therefore the longest
    run backwards from the tile that does not touch its columns; the previous tile of the same accumulator ends it.
    """
    count = len(placement.stages)
    return tuple(_run(placement, tile) for tile in range(count, 2 * count))


def _run(placement: Placement, tile: int) -> int:
    target = placement.stage(tile)
    length = 0
    for before in range(tile - 1, tile - len(placement.stages) - 1, -1):
        for span in reversed(placement.reads(before)):
            if overlap(span, target) is not None:
                return length
            length += 1
    return length


def best_order(stages: tuple[int, ...], *, width: int, subtile: int) -> tuple[tuple[int, ...], ...]:
    """Return the read order of each accumulator that gives the following MMA the largest lead.

    Subtiles under the next tile's accumulator are read first, then those under the one after that, and so on, because
    the tile just before limits a lead most. Forward or backward order is preferred where it is equally good.
    """
    count = len(stages)
    plain = tuple(range(-(-width // subtile)))
    orders = []
    for stage, start in enumerate(stages):
        # Number of tiles after which each subtile is overwritten; the same accumulator's next tile is the last chance.
        needed = [count] * len(plain)
        for later in range(count - 1, 0, -1):
            first = stages[(stage + later) % count] - start
            if abs(first) < width:
                touched = range(max(0, first) // subtile, -(-min(width, first + width) // subtile))
                needed[touched.start : touched.stop] = [later] * len(touched)
        order = tuple(sorted(plain, key=needed.__getitem__))
        classes = [needed[at] for at in order]
        same = (each for each in (plain, plain[::-1]) if [needed[at] for at in each] == classes)
        orders.append(next(same, order))
    return tuple(orders)
