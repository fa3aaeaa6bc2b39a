"""Recordings of launches with many clusters from a few of them.

Some clusters are simulated; the others execute the same programs, and only the footprints differ. A program is taken
to work on ``T`` tiles: cluster ``c`` of ``N`` on the tiles ``c``, ``c + N``, ``c + 2 N`` ... (a static persistent
schedule; without a loop, ``T`` is 1). The ``r``-th footprint of an instruction in tile ``i`` begins at line

    base + D[r] + a (i mod M) + d (i div M)

with one ``M`` for all instructions of the loop, and has a shape that depends on ``r`` and on whether the tile is in the
last row or column of tiles. All constants are inferred from the simulated clusters, exactly. Where these do not decide
(several ``M`` that predict different footprints, the number of tiles, a shape at an edge), the cluster that decides is
simulated too. At last clusters that were drawn at random are simulated and compared with what was derived. What does
not fit may consist of segments (``segments``), such as a grouped GEMM; else the recorder simulates all clusters.

What is derived is not proved: a kernel in which one cluster among many does something else, and neither edge nor end of
the tiles explains it, is seen only if that cluster is simulated. A recording notes how many clusters were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.model.recording import Does, Program

LEAST = 24
"""Fewest clusters of a launch of which only some are simulated."""
_CHECKED = 2
"""Clusters that are simulated only to be compared."""
_ROUNDS = 12
"""Most times that further clusters are simulated because those before do not decide."""

Ints = NDArray[np.int64]
Key = tuple[int, int, int]
"""A stream of footprints: rank of the CTA, warp, instruction."""


class UndecidedError(Exception):
    """The simulated clusters do not decide. Another one does."""

    def __init__(self, cluster: int) -> None:
        super().__init__(f"cluster {cluster} decides")
        self.cluster = cluster


class UnlikeError(Exception):
    """The clusters do not fit the model of this module."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One simulated cluster: its program, and by slot the first line and the shape of its footprint."""

    program: int
    first: Ints
    shape: Ints

    def equals(self, other: Observed) -> bool:
        """Return whether another cluster does the same in the same places."""
        same = self.program == other.program and np.array_equal(self.first, other.first)
        return same and np.array_equal(self.shape, other.shape)


@dataclass(frozen=True, slots=True)
class _Stream:
    """The footprints of one instruction.

    Attributes:
        offsets: ``D``.
        base, a: The constants of the same names.
        steps: By each ``M`` that fits, ``d - a M``.
        observed: The shapes of the tiles that were simulated.
    """

    offsets: Ints
    base: int
    a: int
    steps: Mapping[int, int]
    observed: Mapping[int, tuple[int, ...]]

    def first(self, tiles: Ints, rows: int) -> Ints:
        """Return the first line of the first footprint of each tile."""
        return self.base + self.a * tiles + self.steps[rows] * (tiles // rows)

    def shapes(self, rows: int, tiles: int) -> dict[tuple[bool, bool], tuple[int, ...]]:
        """Return the shapes by edge. Raises UnlikeError."""
        found: dict[tuple[bool, bool], tuple[int, ...]] = {}
        for tile, shape in self.observed.items():
            if found.setdefault(_edge(tile, rows, tiles), shape) != shape:
                raise UnlikeError("the shapes of footprints depend on more than the edges of the tiles' rectangle")
        return found


def _edge(tile: int, rows: int, tiles: int) -> tuple[bool, bool]:
    return tile % rows == rows - 1, tile // rows == (tiles - 1) // rows


def samples(clusters: int) -> list[int]:
    """Return the clusters to simulate first."""
    return [0, 1, 2, clusters - 1]


def streams(program: Program) -> dict[Key, Ints]:
    """Return the slots of each instruction's footprints, in program order."""
    found: dict[Key, list[int]] = {}
    for warp in program.warps:
        issued = warp.events[warp.events["does"] == Does.ISSUE]
        slots = program.operations["slot"][issued["item"]]
        for site, slot in zip(issued["site"].tolist(), slots.tolist(), strict=True):
            if slot >= 0:
                found.setdefault((warp.cta, warp.index, site), []).append(slot)
    return {key: np.array(slots, np.int64) for key, slots in found.items()}


class Derivation:
    """The footprints of all clusters of a launch.

    Args:
        clusters: Number of clusters.
        programs: The launch's programs.
        simulate: Simulates clusters.
    """

    def __init__(self, clusters: int, programs: Sequence[Program], simulate: Callable[[list[int]], None]) -> None:
        self._count = clusters
        self._programs = programs
        self._simulate = simulate
        self._random = random.Random(clusters)

    def derive(self, observed: Callable[[], Mapping[int, Observed]]) -> dict[int, Observed]:
        """Return what all clusters that were not simulated do. Raises UnlikeError."""
        for _ in range(_ROUNDS):
            known = observed()
            try:
                derived = self._derived(known)
            except UndecidedError as missing:
                if missing.cluster in known:
                    raise UnlikeError("the clusters do not decide") from None
                self._simulate([missing.cluster])
                continue
            checked = self._random.sample(sorted(derived), min(_CHECKED, len(derived)))
            self._simulate(checked)
            for number in checked:
                real, own = observed()[number], derived.pop(number)
                if not real.equals(own):
                    raise UnlikeError(f"cluster {number} does not do what the others let expect")
            return derived
        raise UnlikeError("the clusters do not decide")

    def _derived(self, known: Mapping[int, Observed]) -> dict[int, Observed]:
        if any((each.shape < 0).any() for each in known.values()):
            raise UnlikeError("a footprint is outside its tensor")
        used = sorted({each.program for each in known.values()})
        slots = {program: streams(self._programs[program]) for program in used}
        reason = UnlikeError("no number of tiles fits")
        for trips in self._trips(used, slots):
            try:
                return _Fit(self._count, known, slots, trips).clusters()
            except UnlikeError as error:
                reason = error
        raise reason

    def _trips(self, used: list[int], slots: Mapping[int, dict[Key, Ints]]) -> list[dict[int, int]]:
        """Return the numbers of tiles that the programs may have."""
        if len(used) == 1:
            lengths = [len(each) for each in slots[used[0]].values()]
            most = max(lengths, default=1)
            divides = [
                trips for trips in range(1, most + 1) if any(size % trips == 0 and size >= trips for size in lengths)
            ]
            return [{used[0]: trips} for trips in divides if trips <= 4096][:64]
        if len(used) != 2 or slots[used[0]].keys() != slots[used[1]].keys():
            raise UnlikeError(f"{len(used)} programs differ by more than a number of tiles")
        longer, shorter = sorted(used, key=lambda program: -sum(map(len, slots[program].values())))
        trips = set()
        for key, own in slots[longer].items():
            more = len(own) - len(slots[shorter][key])
            if more < 0 or (more and len(own) % more):
                raise UnlikeError("two programs differ by more than one tile")
            if more:
                trips.add(len(own) // more)
        if len(trips) != 1:
            raise UnlikeError("two programs differ by more than one tile")
        (count,) = trips
        return [{longer: count, shorter: count - 1}]


class _Fit:
    """The model's constants for given numbers of tiles of the programs."""

    def __init__(
        self, count: int, known: Mapping[int, Observed], slots: Mapping[int, dict[Key, Ints]], trips: Mapping[int, int]
    ) -> None:
        self._count = count
        self._known = known
        self._slots = slots
        self._trips = trips
        self._tiles = self._number_of_tiles()
        most = max(trips, key=lambda program: trips[program])
        whole = trips[most]
        self._looped = {
            key
            for key, own in slots[most].items()
            if whole == 1
            or (len(own) % whole == 0 and all(len(slots[p][key]) * whole == len(own) * trips[p] for p in trips))
        }
        if not self._looped:
            raise UnlikeError("no instruction works on tiles")

    def clusters(self) -> dict[int, Observed]:
        """Return what the other clusters do. Raises UnlikeError and UndecidedError."""
        low, high = self._tiles
        looped = {key: self._stream(key, looped=True, end=high) for key in self._looped}
        rows = sorted(set.intersection(*(set(stream.steps) for stream in looped.values())))
        others = {key: self._stream(key, looped=False, end=self._count) for key in self._all() - self._looped}
        if not rows or any(not stream.steps for stream in others.values()):
            raise UnlikeError("footprints are not an affine function of a row and a column of tiles")
        tiles = self._exact(low, high, rows)
        chosen = self._decide(looped, rows, tiles)
        columns_of = {key: max(stream.steps) for key, stream in others.items()} | dict.fromkeys(looped, chosen)
        ends = dict.fromkeys(others, self._count) | dict.fromkeys(looped, tiles)
        every = looped | others
        edges = {key: (stream.shapes(columns_of[key], ends[key]), ends[key]) for key, stream in every.items()}
        missing = np.array([number for number in range(self._count) if number not in self._known], np.int64)
        trips = -(-(tiles - missing) // self._count)
        derived: dict[int, Observed] = {}
        for count in np.unique(trips).tolist():
            program = next((each for each, own in self._trips.items() if own == count), None)
            if program is None:
                raise UnlikeError(f"no simulated cluster works on {count} tiles")
            numbers = missing[trips == count]
            slots = self._slots[program]
            size = sum(len(own) for own in slots.values())
            first, shape = (np.zeros((len(numbers), size), np.int64) for _ in range(2))
            for key, own in slots.items():
                stream, columns = every[key], columns_of[key]
                mine = numbers[:, None] + self._count * np.arange(count if key in looped else 1)
                lines = stream.first(mine, columns)[:, :, None] + stream.offsets
                first[:, own] = lines.reshape(len(numbers), -1)
                shape[:, own] = self._shapes(edges[key], mine, columns).reshape(len(numbers), -1)
            for place, number in enumerate(numbers.tolist()):
                derived[number] = Observed(program, first[place], shape[place])
        return derived

    def _all(self) -> set[Key]:
        return {key for own in self._slots.values() for key in own}

    def _number_of_tiles(self) -> tuple[int, int]:
        """Return the fewest and the most tiles that fit the simulated clusters."""
        low, high = 1, 1 << 40
        for number, each in self._known.items():
            trips = self._trips[each.program]
            low = max(low, number + self._count * (trips - 1) + 1)
            high = min(high, number + self._count * trips)
        if low > high:
            raise UnlikeError("the clusters' numbers of tiles are not those of a static schedule")
        return low, high

    def _exact(self, low: int, high: int, rows: list[int]) -> int:
        """Return the number of tiles. While it is open, the cluster with the tile in question decides.

        A whole number of rows of tiles is tried first; if it is right, two clusters show it.
        """
        if low == high:
            return low
        likely = next((count for row in rows if row > 1 for count in range(-(-low // row) * row, high + 1, row)), None)
        tile = (low + high) // 2 if likely is None else likely - 1 if low < likely else likely
        raise UndecidedError(tile % self._count)

    def _decide(self, looped: Mapping[Key, _Stream], rows: list[int], tiles: int) -> int:
        """Return the ``M``; if several differ in what they predict, a cluster in which they do decides."""
        every = np.arange(tiles)
        chosen = next((row for row in rows if row > 1 and not tiles % row), rows[0])
        for stream in looped.values():
            own = stream.first(every, chosen)
            for other in rows:
                differs = np.flatnonzero(stream.first(every, other) != own)
                if differs.size:
                    raise UndecidedError(int(differs[0]) % self._count)
        return chosen

    def _stream(self, key: Key, *, looped: bool, end: int) -> _Stream:
        """Return the constants of one instruction."""
        tiles: list[int] = []
        firsts: list[Ints] = []
        shapes: list[Ints] = []
        for number, each in self._known.items():
            own = self._slots[each.program].get(key)
            if own is None:
                raise UnlikeError("an instruction is executed by some programs only")
            trips = self._trips[each.program] if looped else 1
            tiles += [number + self._count * trip for trip in range(trips)]
            firsts += list(each.first[own].reshape(trips, -1))
            shapes += list(each.shape[own].reshape(trips, -1))
        values, where = np.array(firsts), np.array(tiles, np.int64)
        offsets = values[0] - values[0, 0]
        if (values - values[:, :1] != offsets).any():
            raise UnlikeError("the footprints of a tile depend on the tile")
        heads = values[:, 0]
        place = {tile: n for n, tile in enumerate(tiles)}
        a = int(heads[place[1]] - heads[place[0]])
        rest = heads - a * where
        steps = _steps(where, rest, end)
        table = {tile: tuple(shape.tolist()) for tile, shape in zip(tiles, shapes, strict=True)}
        return _Stream(offsets, int(rest[place[0]]), a, steps, table)

    def _shapes(self, edges: tuple[dict[tuple[bool, bool], tuple[int, ...]], int], tiles: Ints, rows: int) -> Ints:
        """Return the shapes of tiles: ``[cluster][trip][r]``.

        Raises UndecidedError if no tile at the same edges as one of these was simulated.
        """
        shapes, end = edges
        width = len(next(iter(shapes.values())))
        table = np.full((4, width), -1, np.int64)
        for (last_row, last_column), values in shapes.items():
            table[2 * last_row + last_column] = values
        codes = 2 * (tiles % rows == rows - 1) + (tiles // rows == (end - 1) // rows)
        unknown = tiles[(table[codes] < 0).any(axis=-1)]
        if unknown.size:
            raise UndecidedError(int(unknown[0]) % self._count)
        found: Ints = table[codes]
        return found


def _steps(tiles: Ints, rest: Ints, end: int) -> dict[int, int]:
    """Return, by ``M``, the ``e`` for which all values are ``rest[0] + e (i div M)``; tile 0 is the first."""
    rows = np.arange(1, end + 1)
    last = int(np.argmax(np.abs(rest - rest[0])))
    if rest[last] == rest[0]:
        return dict.fromkeys(rows.tolist(), 0)
    columns = tiles[last] // rows
    rows, columns = rows[columns > 0], columns[columns > 0]
    height = rest[last] - rest[0]
    whole = height % columns == 0
    rows, steps = rows[whole], (height // columns)[whole]
    for tile, value in zip(tiles.tolist(), (rest - rest[0]).tolist(), strict=True):
        fits = steps * (tile // rows) == value
        rows, steps = rows[fits], steps[fits]
    return dict(zip(rows.tolist(), steps.tolist(), strict=True))
