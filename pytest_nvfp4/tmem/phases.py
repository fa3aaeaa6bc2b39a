"""Proof that no two live TMEM segments overlap in any phase of the accumulator pipeline, by visiting every phase.

The pipeline: tiles 0, 1, 2, ... are computed in order, tile t into accumulator t mod S. The MMA of a tile writes all
columns of its accumulator, from when it starts. The epilogue reads finished tiles in order, subtile by subtile; a
column holds something live from the start of its tile's MMA until its subtile was read. Scale factors (and all other
segments) count as live at all times.

Accumulators may overlap, as CUTLASS does for a tile of 256 columns: then the MMA of a tile starts only when so much of
the earlier tiles was read that what is unread lies outside its columns. A schedule says for each accumulator how many
subtiles may still be unread when an MMA into it starts: its *lead*. Everything else is free: whichever of MMA and
epilogue is faster, every interleaving is a path through the phases.

The phases repeat every S tiles, so there are finitely many, and all that can be reached are visited: *exhaustive*, no
solver is needed.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_nvfp4.tmem.columns import TmemError

Span = tuple[int, int]
"""First column, and one past the last."""


@dataclass(frozen=True)
class Placement:
    """Where everything lies.

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
            raise TmemError("a placement has at least one accumulator of at least one column, each with a read order")
        if not 1 <= self.subtile <= self.width:
            raise TmemError(f"a subtile of {self.subtile} columns: an accumulator has {self.width}")
        if len({name for name, _ in self.others}) != len(self.others):
            raise TmemError(f"segments {', '.join(name for name, _ in self.others)}: two have one name")
        if any(sorted(order) != list(range(self.subtiles)) for order in self.order):
            raise TmemError(f"read orders {self.order}: each names the {self.subtiles} subtiles once")

    @property
    def subtiles(self) -> int:
        """Subtiles of one accumulator."""
        return -(-self.width // self.subtile)

    def stage(self, tile: int) -> Span:
        """The columns of a tile's accumulator."""
        start = self.stages[tile % len(self.stages)]
        return start, start + self.width

    @cached_property
    def _reads(self) -> tuple[tuple[Span, ...], ...]:
        found = []
        for start, order in zip(self.stages, self.order, strict=True):
            ends = [(at * self.subtile, min((at + 1) * self.subtile, self.width)) for at in order]
            found.append(tuple((start + first, start + end) for first, end in ends))
        return tuple(found)

    def reads(self, tile: int) -> tuple[Span, ...]:
        """The subtiles of a tile in the order in which the epilogue reads them."""
        return self._reads[tile % len(self.stages)]


@dataclass(frozen=True, slots=True)
class Phase:
    """One state of the pipeline.

    Attributes:
        tile: The tile the epilogue is at, modulo the number of accumulators.
        read: Its subtiles that were read.
        ahead: Tiles from that one on whose MMA has started.
        running: Whether the last of them is still being computed.
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
    """Two live segments that share columns, and when."""

    phase: Phase
    one: str
    other: str
    shared: Span

    def __str__(self) -> str:
        first, last = self.shared[0], self.shared[1] - 1
        return f"{self.one} and {self.other} share columns {first}..{last}: {self.phase}"


@dataclass(frozen=True, slots=True)
class Disjoint:
    """The result: *proved* (exhaustive) where there is no clash.

    Attributes:
        phases: How many phases can be reached.
        clash: The first in which two live segments overlap; None if there is none.
        most_unread: Most subtiles that are unread in any phase.
    """

    phases: int
    clash: Clash | None
    most_unread: int

    @property
    def proved(self) -> bool:
        """Whether no two live segments overlap in any phase."""
        return self.clash is None


def overlap(one: Span, other: Span) -> Span | None:
    """The columns that two spans share, or None."""
    first, end = max(one[0], other[0]), min(one[1], other[1])
    return (first, end) if first < end else None


def live(placement: Placement, phase: Phase) -> list[tuple[str, Span]]:
    """Everything that is live in a phase, with its columns. Parts of one tile are given one name."""
    found = list(placement.others)
    finished = phase.ahead - phase.running
    for ahead in range(finished):
        tile = phase.tile + ahead
        spans = placement.reads(tile)[phase.read if ahead == 0 else 0 :]
        found += [(f"tile {tile} (unread)", span) for span in spans]
    if phase.running:
        tile = phase.tile + finished
        found.append((f"tile {tile} (MMA)", placement.stage(tile)))
    return found


def prove_disjoint(placement: Placement, leads: Sequence[int]) -> Disjoint:
    """Visit every phase that can be reached and compare all live segments in it.

    Args:
        placement: Where everything lies.
        leads: For each accumulator, how many subtiles of earlier tiles may be unread when an MMA into it starts.

    Raises:
        TmemError: leads that are not one for each accumulator, or negative (the MMA would never start).
    """
    count = len(placement.stages)
    if len(leads) != count or any(lead < 0 for lead in leads):
        raise TmemError(f"leads {tuple(leads)}: one for each of {count} accumulators, none negative")
    start = Phase(0, 0, 0, False)
    seen = {start}
    waiting = deque([start])
    most = 0
    while waiting:
        phase = waiting.popleft()
        most = max(most, _unread(placement, phase))
        if (clash := _clash(placement, phase)) is not None:
            return Disjoint(len(seen), clash, most)
        for following in _steps(placement, phase, leads):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return Disjoint(len(seen), None, most)


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
    """For each accumulator, the most subtiles that may be unread when an MMA into it starts.

    Reading goes in order, so with L subtiles unread these are the last L before the tile: the longest run, backwards
    from it, that stays clear of its columns. The tile before in the same accumulator ends every run.
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
    """The read order of each accumulator that gives the following MMA the largest lead.

    What the next tile's accumulator covers is read first, then what the one after that covers, and so on: the lead of
    a tile is cut most by the tile just before it. Where plain forwards and backwards do as well, they are taken.
    """
    count = len(stages)
    plain = tuple(range(-(-width // subtile)))
    found = []
    for stage, start in enumerate(stages):
        # How many tiles later something is written over each subtile; at the latest by the same accumulator's next.
        needed = [count] * len(plain)
        for later in range(count - 1, 0, -1):
            first = stages[(stage + later) % count] - start
            if abs(first) < width:
                touched = range(max(0, first) // subtile, -(-min(width, first + width) // subtile))
                needed[touched.start : touched.stop] = [later] * len(touched)
        order = tuple(sorted(plain, key=needed.__getitem__))
        classes = [needed[at] for at in order]
        same = (each for each in (plain, plain[::-1]) if [needed[at] for at in each] == classes)
        found.append(next(same, order))
    return tuple(found)
