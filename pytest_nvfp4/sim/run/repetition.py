"""Search for a deadlock of warps that run: they poll memory in a loop with barriers of their CTA, and nothing changes.

A warp that polls by itself returns to its own state (``Scheduler``). Where all warps of a CTA meet in each round, as in
``while tl.atomic_add(flag, 0) != n`` of Triton, only all of them together do. If the registers and places of all
resident warps, their shared memory and barriers are what they were, no atomic operation has changed anything since, and
the loops have nothing else that reaches memory which CTAs share, then each CTA repeats what it has done, forever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_nvfp4.sim.lower.table import computing
from pytest_nvfp4.sim.ptx.roles import is_strong
from pytest_nvfp4.sim.ptx.syntax import Instruction, Special
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.named import NamedBarriers

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.scheduler import Scheduler

_ALLOWED = frozenset({"bra", "bar", "barrier", "fence", "membar", "nanosleep", "ld", "atom", "shfl", "vote"})
_APART = frozenset({"local", "async", "cluster", "shared::cluster"})
"""Parts of opcodes with state that is not compared."""


class Repetition:
    """The state of a scheduler's warps after a turn, and whether they have returned to it.

    Args:
        scheduler: The scheduler; all of its clusters that can start have started.
        warp: The warp of the turn.

    Attributes:
        polls: The first instruction of the warps' loops that polls memory; None if there is none, or if a loop may
            change what is not compared.
    """

    def __init__(self, scheduler: Scheduler, warp: Warp) -> None:
        self._scheduler = scheduler
        self._warp = warp
        self._ctas = [cta for cluster in scheduler.resident for cta in cluster.ctas]
        self._place = places(warp)
        self.polls = self._polls()
        if self.polls is not None:
            self._updates = scheduler.grid.machine.updates
            self._order = self._waits()
            self._registers = [list(each.registers) for each in self._warps()]
            self._shared = [(cta.shared.data.copy(), cta.shared.written.copy()) for cta in self._ctas]

    def ended(self, warp: Warp) -> bool:
        """Return whether all warps have returned to the state, for good. Called after each turn of a warp."""
        machine = self._scheduler.grid.machine
        return (
            self.polls is not None
            and warp is self._warp
            and places(warp) == self._place
            and machine.updates == self._updates
            and not machine.asynchronous.pending()
            and self._waits() == self._order
            and all(map(_equal, self._registers, (each.registers for each in self._warps())))
            and all(
                np.array_equal(cta.shared.data, data) and np.array_equal(cta.shared.written, written)
                for cta, (data, written) in zip(self._ctas, self._shared, strict=True)
            )
        )

    def _warps(self) -> Iterator[Warp]:
        return (warp for cta in self._ctas for warp in cta.warps if warp.groups)

    def _waits(self) -> list[Any]:
        return [(cta.unit(NamedBarriers).state(), [places(warp) for warp in cta.warps]) for cta in self._ctas]

    def _polls(self) -> int | None:
        code, flow = self._scheduler.grid.kernel.instructions, self._scheduler.program.flow
        starts = {group.pc for warp in self._warps() for group in warp.groups}
        if max(starts) >= len(code):
            return None
        loops: set[int] = set()
        for start in {flow.block_of(at).number for at in starts}:
            following = _reachable(start, [block.successors for block in flow.blocks])
            loops |= following & _reachable(start, flow.predecessors)
        inside = [ins for number in loops for ins in code[flow.blocks[number].start : flow.blocks[number].stop]]
        if not all(map(_allowed, inside)):
            return None
        return min(
            (ins.index for ins in inside if ins.root == "atom" or (ins.root == "ld" and is_strong(ins))), default=None
        )


def places(warp: Warp) -> list[tuple[int, int, bool]]:
    """Return where the lanes of a warp are, and whether they can run."""
    return sorted((group.pc, group.mask, group.waiting is None) for group in warp.groups)


def difference(one: list[Any], other: list[Any], first: int) -> int:
    """Return an index where two register files differ, or -1. ``first`` is tried first: it differed the last time."""
    if not _same(one[first], other[first]):
        return first
    try:
        if one == other:  # most values are the same objects, or numbers
            return -1
    except ValueError:  # of different arrays
        pass
    return next((index for index, value in enumerate(one) if not _same(value, other[index])), -1)


def _equal(one: list[Any], other: list[Any]) -> bool:
    return not one or difference(one, other, 0) < 0


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, tuple) and isinstance(b, tuple):
        return all(map(_same, a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)


def _reachable(start: int, edges: Sequence[Iterable[int]]) -> set[int]:
    """Return the blocks that can be reached from one, itself among them."""
    found, pending = {start}, [start]
    while pending:
        for other in edges[pending.pop()]:
            if other not in found:
                found.add(other)
                pending.append(other)
    return found


def _allowed(ins: Instruction) -> bool:
    """Return whether all that an instruction changes is in the state, or an update that the machine counts."""
    if not _APART.isdisjoint(ins.parts):
        return False
    if any(isinstance(each, Special) and each.name.startswith(("clock", "globaltimer")) for each in ins.operands):
        return False
    if ins.root == "st":
        return "shared" in ins.parts or "shared::cta" in ins.parts
    return ins.root in _ALLOWED or computing(ins)
