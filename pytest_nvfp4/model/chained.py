"""Matrix instructions that multiply what warps computed from other ones' results, as attention does.

A warp that has read results of matrix instructions (from tensor memory, from its own registers, or from another warp
through shared memory) works in a *window* until it reads the next ones. A window that executes many special functions
(ex2, tanh ...) and lets matrix instructions go on feeds them if nothing of it leaves for global memory: an epilogue
with an activation does the same and stores its tile. Which way the data takes does not matter, because only the order
of arrivals and waits is read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pytest_nvfp4.model.recording import INSTRUCTION_CLASSES, Does, Program, Unit, WarpEvents

__all__ = ["special_between", "specials"]

_LEAST = 8
"""Special functions of a warp in a window; a softmax has one for each element of its lanes."""
_HOPS = 3
"""Arrivals through which a result may pass on its way to the warp that stores it."""
_STORES = (Unit.TMA_STORE, Unit.GLOBAL_STORE, Unit.ATOMIC)
_SPECIAL, _SHARED_STORE = (INSTRUCTION_CLASSES.index(name) for name in ("special", "shared_store"))


def specials(program: Program) -> int:
    """Return the number of special functions that the warps of a cluster execute."""
    count = 0
    for warp in program.warps:
        runs = warp.events[warp.events["does"] == Does.RUN]
        count += int((program.mixes[runs["item"], _SPECIAL] * runs["count"].astype(np.int64)).sum())
    return count


def special_between(program: Program) -> int | None:
    """Return the site at which a window that feeds matrix instructions begins; None if there is no such window."""
    if specials(program) < _LEAST:
        return None
    return next(_Windows(program).feeding(), None)


@dataclass(slots=True)
class _Path:
    """One warp: its windows, and the places of what matters in its events.

    Attributes:
        begins: Places at which windows begin.
        loads: Places of loads of tensor memory.
        multiplies, stores: Places of matrix instructions, and of stores to global memory.
        signals, waits: (place, phase).
        special: (place, special functions before it), at each run.
    """

    events: list[tuple[int, int, int, int]]
    begins: list[int] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    multiplies: list[int] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)
    signals: list[tuple[int, int]] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    special: list[tuple[int, int]] = field(default_factory=list)

    def end(self, place: int) -> int:
        """Return the place at which the next window begins."""
        at = bisect_right(self.begins, place)
        return self.begins[at] if at < len(self.begins) else len(self.events)


class _Windows:
    """The windows of a program's warps."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._operations: list[tuple[int, ...]] = program.operations.tolist()
        self._paths = [self._path(warp) for warp in program.warps]
        self._waiters: dict[int, list[tuple[_Path, int]]] = defaultdict(list)
        for path in self._paths:
            for place, phase in path.waits:
                self._waiters[phase].append((path, place))
        results = self._results()
        for path in self._paths:
            path.begins = self._begins(path, results)
        passed = self._passed()
        for path in self._paths:
            if not path.begins:
                path.begins = [place for place, phase in path.waits if phase in passed]

    def feeding(self) -> Iterator[int]:
        """Yield the sites at which windows begin that feed matrix instructions."""
        for path in self._paths:
            for begin in path.begins:
                end = path.end(begin)
                count = sum(number for place, number in path.special if begin <= place < end)
                if count >= _LEAST and not self._stored(path, begin, end) and self._multiplied(path, begin, end):
                    yield path.events[begin][2]

    def _path(self, warp: WarpEvents) -> _Path:
        path = _Path(warp.events.tolist())
        for place, (does, count, _, item) in enumerate(path.events):
            if does == Does.RUN:
                if number := int(self._program.mixes[item, _SPECIAL]) * count:
                    path.special.append((place, number))
            elif does == Does.WAIT:
                path.waits.append((place, item))
            elif does == Does.SIGNAL:
                path.signals.append((place, item))
            elif does == Does.ISSUE:
                unit = self._operations[item][0]
                if unit == Unit.TENSOR:
                    path.multiplies.append(place)
                elif unit in _STORES:
                    path.stores.append(place)
                elif unit == Unit.TMEM_LOAD:
                    path.loads.append(place)
                elif unit == Unit.SHARED_REMOTE:
                    path.signals += [(place, phase) for phase in self._signals(item)]
        return path

    def _signals(self, item: int) -> list[int]:
        return [phase for index in self._operations[item][4:6] if index >= 0 for phase in self._program.signals[index]]

    def _results(self) -> set[int]:
        """Return the phases that matrix instructions complete."""
        units = (Unit.TENSOR, Unit.COMMIT)
        return {
            phase
            for item, operation in enumerate(self._operations)
            if operation[0] in units
            for phase in self._signals(item)
        }

    def _begins(self, path: _Path, results: set[int]) -> list[int]:
        """Return the waits after which a warp reads results: from tensor memory, or from its own registers."""
        begins: list[int] = []
        if path.loads:
            waits = [place for place, _ in path.waits]
            own = self._own(path)
            for load in path.loads:
                at = bisect_right(waits, load) - 1
                while at >= 0 and path.waits[at][1] in own:
                    at -= 1
                place = waits[at] if at >= 0 else load
                if not begins or place > begins[-1]:
                    begins.append(place)
        elif path.multiplies:
            begins = [place for place, phase in path.waits if phase in results and place > path.multiplies[0]]
        return begins

    def _own(self, path: _Path) -> set[int]:
        """Return the phases of a warp's own loads and stores, whose waits begin no window."""
        units = (Unit.TENSOR, Unit.COMMIT, Unit.TMA_LOAD)
        items = {
            item for does, _, _, item in path.events if does == Does.ISSUE and self._operations[item][0] not in units
        }
        return {phase for item in items for phase in self._signals(item)}

    def _passed(self) -> set[int]:
        """Return the phases that warps signal after they have read results and written shared memory."""
        found: set[int] = set()
        for path in self._paths:
            for begin in path.begins:
                end = path.end(begin)
                written = next(
                    (
                        place
                        for place, (does, _, _, item) in enumerate(path.events[begin:end], begin)
                        if does == Does.RUN and self._program.mixes[item, _SHARED_STORE]
                    ),
                    end,
                )
                found.update(phase for place, phase in path.signals if written <= place < end)
        return found

    def _multiplied(self, path: _Path, begin: int, end: int) -> bool:
        """Return whether matrix instructions are issued after a window by its warp, or by one that waits for it."""
        if any(begin < place < end for place in path.multiplies):
            return True
        for _, phase in _between(path.signals, begin, end):
            for other, place in self._waiters[phase]:
                if other is not path and any(place < at < other.end(place) for at in other.multiplies):
                    return True
        return False

    def _stored(self, path: _Path, begin: int, end: int) -> bool:
        """Return whether a window's results are stored, by its warp or by one that waits for it."""
        reached, seen = [(path, begin, end)], {(id(path), begin)}
        for _ in range(_HOPS + 1):
            following: list[tuple[_Path, int, int]] = []
            for own, first, last in reached:
                if any(first < place < last for place in own.stores):
                    return True
                for _, phase in _between(own.signals, first, last):
                    for other, place in self._waiters[phase]:
                        if (other.begins or not other.multiplies) and (id(other), place) not in seen:
                            seen.add((id(other), place))
                            following.append((other, place, other.end(place)))
            reached = following
        return False


def _between(pairs: list[tuple[int, int]], begin: int, end: int) -> list[tuple[int, int]]:
    return pairs[bisect_right(pairs, (begin, 1 << 62)) : bisect_right(pairs, (end, -1))]
