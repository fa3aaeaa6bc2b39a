"""How many independent matrix products a launch of tcgen05 instructions computes: one if dense, several if grouped.

Tiles of one product share rows of A or columns of B, so that their operands make one connected set; those of different
products share nothing. The tiles of a recording are found in the order of arrivals: a tile begins after a commit that
warps wait for before they load tensor memory, and its first operands are the copies that the warp waits for which then
multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.model.recording import Does, Program, Recording, Unit, WarpEvents

__all__ = ["products_of"]

_STORES = (Unit.TMA_STORE, Unit.GLOBAL_STORE, Unit.ATOMIC)


def products_of(recording: Recording) -> int | None:
    """Return the number of independent products; None if the tiles cannot be told."""
    tiles = [_tiles(program) for program in recording.programs]
    if any(not own or not all(tile.size for tile in own) for own in tiles):
        return None
    single = all(len(own) == 1 for own in tiles)
    sets = _Sets(len(recording.footprints))
    for cluster in recording.clusters:
        program = recording.programs[cluster.program]
        for slots in tiles[cluster.program]:
            sets.join(cluster.footprints[slots])
        if single:  # parts of one tile along K share no operand, and write the same place
            sets.join(cluster.footprints[np.concatenate([tiles[cluster.program][0], _stored(program)])])
    return sets.count() or None


class _Sets:
    """Disjoint sets of footprints."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))
        self._used: set[int] = set()

    def join(self, members: NDArray[np.int32]) -> None:
        """Unite the sets of some footprints; -1 is none."""
        roots = [self._root(member) for member in members.tolist() if member >= 0]
        self._used.update(roots)
        for root in roots[1:]:
            self._parent[self._root(root)] = self._root(roots[0])

    def count(self) -> int:
        """Return the number of sets that were united."""
        return len({self._root(member) for member in self._used})

    def _root(self, member: int) -> int:
        while self._parent[member] != member:
            self._parent[member] = self._parent[self._parent[member]]
            member = self._parent[member]
        return member


def _stored(program: Program) -> NDArray[np.int64]:
    operations = program.operations
    chosen = np.isin(operations["unit"], _STORES) & (operations["slot"] >= 0)
    return operations["slot"][chosen].astype(np.int64)


def _tiles(program: Program) -> list[NDArray[np.int64]]:
    """Return the slots of each tile's first operands; none if no commit ends a tile."""
    operations: list[tuple[int, ...]] = program.operations.tolist()

    def signals(item: int) -> Iterator[int]:
        return (phase for index in operations[item][4:6] if index >= 0 for phase in program.signals[index])

    copied: dict[int, list[int]] = {}
    for item, operation in enumerate(operations):
        if operation[0] == Unit.TMA_LOAD and operation[2] >= 0:
            for phase in signals(item):
                copied.setdefault(phase, []).append(operation[2])
    read = {phase for warp in program.warps for phase in _read_after(warp, operations)}
    last = {
        item
        for item, operation in enumerate(operations)
        if operation[0] == Unit.COMMIT and not read.isdisjoint(signals(item))
    }
    if not last:
        return []
    found: list[NDArray[np.int64]] = []
    for warp in program.warps:
        slots: list[int] = []
        begun = False
        for does, _, _, item in warp.events.tolist():
            if does == Does.WAIT and not begun:
                slots += copied.get(item, ())
            elif does == Does.ISSUE and operations[item][0] == Unit.TENSOR and not begun:
                begun = True
                found.append(np.array(slots, np.int64))
            elif does == Does.ISSUE and item in last:
                begun, slots = False, []
    return found


def _read_after(warp: WarpEvents, operations: list[tuple[int, ...]]) -> Iterator[int]:
    """Yield the phases that a warp waits for next before it loads tensor memory."""
    phase = -1
    for does, _, _, item in warp.events.tolist():
        if does == Does.WAIT:
            phase = item
        elif does == Does.ISSUE and operations[item][0] == Unit.TMEM_LOAD and phase >= 0:
            yield phase
