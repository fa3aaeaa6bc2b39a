"""Scheduler of warps, with the detection of deadlocks.

Clusters run one after the other. When every resident warp waits, or provably spins on memory that does not change, the
next cluster starts, as long as it fits on the device; a CTA that waits for a later one can then continue. If no cluster
can start and warps still wait, the launch is deadlocked.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from pytest_nvfp4.finding import Where
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import FULL
from pytest_nvfp4.sim.lower.compiler import Program
from pytest_nvfp4.sim.lower.control import SPLIT
from pytest_nvfp4.sim.run.following import FollowedValues
from pytest_nvfp4.sim.run.gang import Gang
from pytest_nvfp4.sim.run.polling import Polled, polled
from pytest_nvfp4.sim.run.repetition import Repetition, difference, places

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cluster
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.warp import Group, Warp
from pytest_nvfp4.sim.run.wording import worded

_SLICE = 4000
"""Basic blocks that a warp runs in one turn."""
PATIENCE = 256
"""Blocks that the first group of a diverged warp runs before another group: a lane that spins on a lock must not block
the lane that holds it."""
_PROBE = 64
"""Blocks without a change after which a warp is first checked for spinning on memory."""
_POLL = 4
"""The same in a loop that polls memory, and the blocks within which it must return to the same state there."""
_GANG = 128
"""Most warps of a gang."""
_WORTH = 64
"""Fewest instructions for which it pays off to form a gang."""
_CYCLE = 32
"""Fewest blocks within which a warp must return to the same state."""
_PART = 8
"""Longer cycles are searched for in this part (1 / 8) of the blocks that the warp has run without a change."""
_LONG_CYCLE = 20_000
"""Most blocks of a cycle."""
_UNENDING = 1 << 11
"""Turns without the end of a warp after which the others that can do something do it: see ``Scheduler._watch``."""


class Scheduler:
    """Scheduler of the clusters of a grid."""

    def __init__(self, grid: Grid, program: Program) -> None:
        self.grid = grid
        self.program = program
        self.began_s = time.monotonic()
        self.ready: deque[Warp] = deque()
        self.running: Warp | None = None
        self.resident: list[Cluster] = []
        self.spinning: dict[Warp, Polled | None] = {}
        """Warps that provably return to the same state until memory changes; if known, until which memory does."""
        self._spun_at = -1
        trace = grid.machine.trace
        self._entries: frozenset[int] | set[int] = (
            set() if trace is not None or grid.machine.asynchronous.shuffles else program.gangs.entries
        )
        """Places where warps wait for others to form a gang."""
        self._gathered: dict[tuple[int, int], list[Warp]] = {}
        """Warps that wait there, by place and rank of their CTA in its cluster; see ``Gang``."""
        self._alone: set[Warp] = set()
        """Warps that have found no others, or have just left a gang."""
        self._short: Counter[int] = Counter()
        """Gangs that ended early, by entry."""
        self._cycles: dict[Warp, list[int]] = {}
        """Warps that have been spinning when they last ran, with the places of the blocks of one repetition."""
        self._idle: dict[Warp, tuple[int, int]] = {}
        """Blocks that warps have run since they last changed something, and at how many they are checked for spinning.
        """
        self._unending = 0
        """Turns since a warp has ended."""
        self._repetition: Repetition | None = None
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
                if schedule.shuffles:
                    self._unspin()
                self._unending += 1
                if self._unending >= _UNENDING:
                    self._watch(warp)
                continue
            if self._unspin():  # last, when most of what they wait for has come
                continue
            if self._gathered:
                self._run_gang()
                continue
            if machine.asynchronous.step():
                continue
            self._retire()
            if self._unspin() or self._more() or self._force():
                continue
            if not self.resident:
                return
            from pytest_nvfp4.sim.run.deadlock import deadlock

            raise deadlock(self)

    def _queue(self, warp: Warp) -> None:
        if not warp.queued:
            warp.queued = True
            self.ready.append(warp)

    # ---- one warp ------------------------------------------------------------------------------------------------

    def _turn(self, warp: Warp) -> None:
        self.running = warp
        self.spinning.pop(warp, None)
        before = self.grid.machine.changes
        trace = self.grid.machine.trace
        if trace is not None:
            trace.turn_begins(warp)
        blocks = self.grid.machine.asynchronous.blocks(_SLICE, warp)
        try:
            spins = self._run_turn(warp, blocks)
        except Fault as fault:
            self._place(warp, fault)
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
            if not spins and self._joins(warp):
                self._gathered.setdefault((warp.groups[0].pc, warp.cta.rank), []).append(warp)
            elif spins:
                self._spun_at = before
                self.spinning[warp] = polled(
                    warp, set(self._cycles[warp]), self.program.polling, self.grid.machine.memory
                )
            else:
                self._queue(warp)
        self._alone.discard(warp)

    def _run_turn(self, warp: Warp, blocks: int) -> bool:
        """Run a warp for some blocks, and return whether it spins.

        It is checked for spinning when it has run 64, 128, 256 ... blocks without a change: a long computation must not
        be checked all the time. In a loop that polls memory it is checked at once.
        """
        if self._joins(warp):
            return False
        machine = self.grid.machine
        cycle = self._cycles.pop(warp, None)
        if cycle is not None and self._spins(warp, len(cycle)):
            return True
        first = 2 if self.program.polling else _PROBE
        while blocks > 0:
            before = machine.changes
            idle, check = self._idle.get(warp, (0, first))
            part = min(blocks, check - idle)
            if self._run(warp, part) > 0:
                return False
            if warp.select() is None:
                if warp.groups:
                    self._check_meeting(warp)
                return False
            blocks -= part
            idle += part
            if machine.changes != before:
                self._idle.pop(warp, None)
            elif idle < check:
                self._idle[warp] = idle, check
            elif idle < _PROBE:
                if any(group.pc in self.program.polling for group in warp.groups) and self._spins(warp, _POLL):
                    return True
                self._idle[warp] = idle, 2 * check
            elif self._spins(warp, min(max(_CYCLE, idle // _PART), _LONG_CYCLE)):
                return True
            else:
                self._idle[warp] = idle, 2 * check
        return False

    def _place(self, warp: Warp, fault: Fault) -> None:
        if fault.where is None:
            fault.where = self._where(warp, fault)
        fault.hint = worded(fault.hint, self.grid.kernel)

    def _where(self, warp: Warp, error: BaseException) -> Where:
        at, mask = self.program.frames.place_of(error.__traceback__) or (None, None)
        return self.grid.where(warp, at, mask=mask)

    def _run(self, warp: Warp, left: int, *, fairly: bool = False) -> int:
        program, registers = self.program, warp.registers
        alone = program.alone
        schedule = self.grid.machine.asynchronous
        entries = self._entries if warp not in self._alone else ()
        beside = 0 if fairly else schedule.pick(PATIENCE) if schedule.shuffles else 1
        while left > 0:
            group = warp.select() if beside % PATIENCE else warp.select_other()
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
                    if place < 0 or left <= 0 or place in entries:
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
            if place in entries and self._joins(warp):
                return left
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
        self._unending, self._repetition = 0, None
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

    # ---- gangs ---------------------------------------------------------------------------------------------------

    def _joins(self, warp: Warp) -> bool:
        """Return whether a warp may join a gang where it is."""
        groups = warp.groups
        return (
            len(groups) == 1
            and groups[0].pc in self._entries
            and groups[0].waiting is None
            and groups[0].mask == FULL
            and warp not in self._alone
            and FollowedValues not in warp.units
        )

    def _run_gang(self) -> None:
        """Run the warps that wait at one place as a gang, with those of clusters that can start now."""
        (place, rank), warps = next(iter(self._gathered.items()))
        if len(warps) < _GANG and not self.ready:
            if not self.grid.machine.asynchronous.pending():
                self._retire()
            if self._more():
                return
        del self._gathered[place, rank]
        for start in range(0, len(warps), _GANG):
            some = warps[start : start + _GANG]
            if len(some) == 1:
                self._alone.update(some)
            else:
                self._run_together(place, some)
        for warp in warps:
            self._queue(warp)

    def _run_together(self, place: int, warps: list[Warp]) -> None:
        gang = Gang(self, self.program.gangs, warps)
        try:
            gang.run(place)
        except Fault as fault:
            self._place(self.running or gang.first, fault)
            raise
        except Exception as error:
            internal = Fault("internal", f"the simulator itself failed: {type(error).__name__}: {error}")
            internal.where = self._where(self.running or gang.first, error)
            raise internal from error
        finally:
            self.running = None
        if gang.executed < _WORTH:
            self._short[place] += 1
            if self._short[place] > 2:
                self._entries = self._entries - {place}
        if warps[0].groups[0].pc in self._entries:
            self._alone.update(warps)

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

    def _watch(self, warp: Warp) -> None:
        """Do what else is possible while warps run without end, and search for a deadlock if it is nothing.

        Warps that poll memory between barriers of their CTA do not spin as a warp by itself does. What they wait for
        may be written by a warp that has been spinning, by warps that wait for others to form a gang, by a copy, or by
        a cluster that has not started.

        Raises:
            Fault: The warps that run repeat what they did, and nothing else is possible.
        """
        if self._repetition is not None and not self._gathered and self._repetition.ended(warp):
            from pytest_nvfp4.sim.run.deadlock import deadlock

            self.spinning.update(dict.fromkeys(self.ready))
            raise deadlock(self, polls=self._repetition.polls)
        if self._unending % _UNENDING:
            return
        schedule = self.grid.machine.asynchronous
        self._unspin()
        if self._gathered:
            self._run_gang()
        elif not schedule.step():
            started = [self._more() for _ in range(len(self.resident))]
            if not any(started):
                if self._unending.bit_count() == 1 and not schedule.shuffles:
                    self._repetition = Repetition(self, warp)
                return
        self._repetition = None

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

    def _unspin(self) -> bool:
        """Queue the spinning warps again, but for those that would read what they have read; return whether any is."""
        changes = self.grid.machine.changes
        if not self.spinning or changes == self._spun_at:
            return False
        self._spun_at = changes
        for warp, read in list(self.spinning.items()):
            if read is None or warp.queued or any(place != before for place, before in read):
                del self.spinning[warp]
                self._queue(warp)
        return bool(self.ready)

    def _spins(self, warp: Warp, most: int) -> bool:
        """Return whether the warp returns to the same registers and places in some blocks while no memory changes.

        Execution is deterministic, so a warp that repeats its whole state repeats it forever. A read of the clock
        advances ``tick`` and so counts as a change of state.
        """
        machine = self.grid.machine
        before, ticks = machine.changes, machine.tick()
        state = places(warp)
        registers = list(warp.registers)
        differs = 0
        passed: list[int] = []
        for _ in range(most):
            passed += [group.pc for group in warp.groups if group.waiting is None]
            self._run(warp, 1, fairly=True)
            if machine.changes != before or not warp.groups or warp.select() is None:
                return False
            now = places(warp)
            if [waits for *_, waits in now] != [waits for *_, waits in state]:
                # A group has arrived at a barrier meanwhile, and stays there: the loop of the others begins now.
                state, registers, passed = now, list(warp.registers), []
                ticks = machine.tick()
                continue
            if now == state:
                differs = difference(warp.registers, registers, differs) if registers else -1
                if differs < 0:
                    if machine.tick() != ticks + 1:
                        return False
                    self._cycles[warp] = passed
                    return True
        return False
