"""Scheduler of warps, with the detection of deadlocks.

Clusters run one after the other. When every resident warp waits, or provably spins on memory that does not change, the
next cluster starts, as long as it fits on the device; a CTA that waits for a later one can then continue. If no cluster
can start and warps still wait, the launch is deadlocked.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_nvfp4.finding import Where
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lower.compiler import Program
from pytest_nvfp4.sim.lower.control import SPLIT

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cluster
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.warp import Group, Warp

_SLICE = 4000
"""Basic blocks that a warp runs in one turn."""
_PATIENCE = 256
"""Blocks that the first group of a diverged warp runs before another group: a lane that spins on a lock must not block
the lane that holds it."""
_CYCLE = 20_000
"""Blocks within which a warp must return to the same state to be recognised as spinning forever."""


class Scheduler:
    """Scheduler of the clusters of a grid."""

    def __init__(self, grid: Grid, program: Program) -> None:
        self.grid = grid
        self.program = program
        self.ready: deque[Warp] = deque()
        self.running: Warp | None = None
        self.resident: list[Cluster] = []
        self.spinning: list[Warp] = []
        """Warps that provably return to the same state until memory changes."""
        self._spun_at = -1
        self._idle_turns: Counter[Warp] = Counter()
        self._idle_blocks: Counter[Warp] = Counter()
        self._forced: Counter[tuple[Group, int]] = Counter()
        self._forced_at = -1

    def run(self) -> None:
        """Run all clusters of the grid. Raises Fault with the place of the error."""
        machine = self.grid.machine
        schedule = machine.asynchronous
        for _ in range(max(self.grid.started_together, schedule.together()) - 1):
            self._more()
        while True:
            if self.ready:
                if schedule.shuffles:
                    schedule.between_turns()
                    self.ready.rotate(-schedule.turn(self.ready))
                warp = self.ready.popleft()
                warp.queued = False
                if not warp.groups:
                    continue  # woken and ended in the same turn
                self._turn(warp)
                if self.spinning and machine.changes != self._spun_at:
                    self._unspin()
                continue
            if machine.asynchronous.step():
                continue
            self._retire()
            if self.spinning and machine.changes != self._spun_at:
                self._unspin()
            elif self._more() or self._force():
                continue
            elif not self.resident:
                return
            else:
                from pytest_nvfp4.sim.run.deadlock import deadlock

                raise deadlock(self)

    def _queue(self, warp: Warp) -> None:
        if not warp.queued:
            warp.queued = True
            self.ready.append(warp)

    # ---- one warp ------------------------------------------------------------------------------------------------

    def _turn(self, warp: Warp) -> None:
        self.running = warp
        before = self.grid.machine.changes
        trace = self.grid.machine.trace
        if trace is not None:
            trace.turn_begins(warp)
        blocks = self.grid.machine.asynchronous.blocks(_SLICE, warp)
        try:
            left = self._run(warp, blocks)
            idle = left <= 0 and before == self.grid.machine.changes
            spins = idle and self._suspect(warp, blocks) and self._spins(warp)
        except Fault as fault:
            if fault.where is None:
                fault.where = self._where(warp, fault)
            raise
        except Exception as error:
            internal = Fault("internal", f"the simulator itself failed: {type(error).__name__}: {error}")
            internal.where = self._where(warp, error)
            raise internal from error
        finally:
            self.running = None
            if trace is not None:
                trace.turn_ends(warp)
        if not warp.groups:
            self._ended(warp)
        elif warp.select() is not None:
            if spins:
                self._spun_at = before
                self.spinning.append(warp)
            else:
                self._queue(warp)

    def _where(self, warp: Warp, error: BaseException) -> Where:
        at, mask = self.program.place_of(error.__traceback__) or (None, None)
        return self.grid.where(warp, at, mask=mask)

    def _run(self, warp: Warp, left: int, *, fairly: bool = False) -> int:
        program, registers = self.program, warp.registers
        alone = program.alone
        schedule = self.grid.machine.asynchronous
        beside = 0 if fairly else schedule.pick(_PATIENCE) if schedule.shuffles else 1
        while left > 0:
            group = warp.select() if beside % _PATIENCE else warp.select_other()
            if group is None:
                if warp.groups:
                    self._check_meeting(warp)
                return left
            warp.current = group
            place, mask = group.pc, group.mask
            if len(warp.groups) == 1:
                while True:
                    block = alone[place]
                    if block is None:
                        block = program.block(place)
                    place = block(registers, warp, mask)
                    left -= 1
                    if place < 0 or left <= 0:
                        break
            else:
                parked = tuple(sorted({other.pc for other in warp.groups if other is not group}))
                place = program.block_beside(place, parked)(registers, warp, mask)
                left -= 1
                beside += 1
            if place >= 0:
                group.pc = place
                group.forced = False
                if len(warp.groups) > 1:
                    warp.join()
            elif place > SPLIT:
                group.pc = ~place
                if len(warp.groups) > 1:
                    warp.join()
            # A block that returns SPLIT or LEFT has replaced the warp's groups.
        return left

    def _check_meeting(self, warp: Warp) -> None:
        if all(group.waiting is warp.meeting for group in warp.groups):
            places = "; ".join(
                f"lanes {group.mask:#010x} at {self.grid.place(group.pc)}"
                for group in sorted(warp.groups, key=lambda g: g.pc)
            )
            fault = Fault(
                "divergence",
                f"lanes of one warp wait for each other at different instructions: {places}",
                hint="an instruction with .sync or .aligned must be reached by all lanes of its mask together",
            )
            fault.where = self.grid.where(warp, warp.groups[0].pc)
            raise fault

    def _ended(self, warp: Warp) -> None:
        cta = warp.cta
        cta.exited += 1
        self.grid.counters[f"instructions.warp{warp.index}"] += warp.executed
        for role in warp.does:
            self.grid.counters[f"warp{warp.index}.{role}"] += 1
        self.grid.counters["instructions"] += warp.executed
        self.grid.products += warp.products
        self.grid.machine.changes += 1
        cta.call_units("warp_exited", warp)
        if cta.exited == len(cta.warps):
            try:
                cta.call_units("at_exit")
            except Fault as fault:
                if fault.where is None:
                    fault.where = self.grid.where_cta(cta)
                raise

    def _retire(self) -> None:
        ended = [c for c in self.resident if all(cta.exited == len(cta.warps) for cta in c.ctas)]
        if ended:
            self.resident = [c for c in self.resident if c not in ended]
            if self.grid.machine.trace is None:  # a trace may refer to CTAs that have ended
                for cluster in ended:
                    cluster.dissolve()

    # ---- when nothing can run ------------------------------------------------------------------------------------

    def _more(self) -> bool:
        if sum(len(c.ctas) for c in self.resident) >= self.grid.capacity:
            return False
        cluster = self.grid.next_cluster(self)
        if cluster is None:
            return False
        self.resident.append(cluster)
        for cta in cluster.ctas:
            for warp in cta.warps:
                self._queue(warp)
        return True

    def _force(self) -> bool:
        """Make one ``try_wait`` return False, at most twice for one state of the machine."""
        if self._forced_at != self.grid.machine.changes:
            self._forced.clear()
            self._forced_at = self.grid.machine.changes
        warps = (warp for cluster in self.resident for cta in cluster.ctas for warp in cta.warps)
        for group in (group for warp in warps for group in warp.groups):
            key = (group, group.pc)
            if getattr(group.waiting, "may_give_up", False) and self._forced[key] < 2:
                self._forced[key] += 1
                group.forced = True
                waiters = group.waiting.waiters  # type: ignore[union-attr]
                if group in waiters:
                    waiters.remove(group)
                group.wake()
                return True
        return False

    def _unspin(self) -> None:
        for warp in self.spinning:
            self._queue(warp)
        self.spinning.clear()

    def _suspect(self, warp: Warp, blocks: int) -> bool:
        """Return whether to check a warp that changed nothing in its turn for spinning.

        The check runs in the 1st, 2nd, 4th, 8th ... such turn, because a long computation must not be checked all the
        time. Turns of a few blocks count together as one.
        """
        if warp.select() is None:
            return False
        if blocks < _SLICE:
            self._idle_blocks[warp] += blocks
            if self._idle_blocks[warp] < _SLICE:
                return False
            self._idle_blocks[warp] = 0
        self._idle_turns[warp] += 1
        turns = self._idle_turns[warp]
        return not turns & (turns - 1)

    def _spins(self, warp: Warp) -> bool:
        """Return whether the warp returns to the same registers and places while no memory changes.

        Execution is deterministic, so a warp that repeats its whole state repeats it forever. A read of the clock
        advances ``tick`` and so counts as a change of state.
        """
        machine = self.grid.machine
        before, ticks = machine.changes, machine.tick()
        state = sorted((g.pc, g.mask, g.waiting is None) for g in warp.groups)
        registers = list(warp.registers)
        differs = 0
        for _ in range(_CYCLE):
            self._run(warp, 1, fairly=True)
            if machine.changes != before or not warp.groups or warp.select() is None:
                return False
            if sorted((g.pc, g.mask, g.waiting is None) for g in warp.groups) == state:
                differs = _difference(warp.registers, registers, differs) if registers else -1
                if differs < 0:
                    return machine.tick() == ticks + 1
        return False


def _difference(one: list[Any], other: list[Any], first: int) -> int:
    """Return an index where two register files differ, or -1. ``first`` is tried first: it differed the last time."""
    if not _same(one[first], other[first]):
        return first
    return next((index for index, value in enumerate(one) if not _same(value, other[index])), -1)


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)
