"""What one cluster does, as it is recorded: operations and phases by number, and the events on the paths of its warps.

The path of a warp (``Warp.path``) holds numbers of passages, which compiled blocks append, and between them the events
of the instructions in the passage that follows.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.model.recorder_flags import FlagAccess
from pytest_nvfp4.model.recording import Does, Unit
from pytest_nvfp4.sim.run.cta import Cluster, Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier

if TYPE_CHECKING:
    from pytest_nvfp4.model.recorder_launch import LaunchTape

NO_SLOT = -2
"""Footprint of an operation without global memory."""

ISSUE, SIGNAL, WAIT, MARK = int(Does.ISSUE), int(Does.SIGNAL), int(Does.WAIT), int(Does.MARK)
PASSES, REFUSED = 8, 9
"""Entries of a path that are no events: passes of shared memory, and a wait for a phase that returned False."""


Entry = tuple[int, int, int, int]
"""An event on a path: what it does, the instruction, the item, and a count. A plain tuple, because there are many."""


class Operation:
    """An operation.

    Attributes:
        unit: Number of the unit.
        shape: Number of the shape, in the launch.
        pipe: Number of its pipe; -1 for none.
        done, read: Phases that it signals.
        footprint: Number of its footprint in the launch, or ``NO_SLOT``.
        flag: What it is to the launch's flags, if it is a poll or writes one.
    """

    __slots__ = ("done", "flag", "footprint", "pipe", "read", "shape", "unit")

    def __init__(self, unit: int, shape: int, pipe: int, footprint: int) -> None:
        self.unit = unit
        self.shape = shape
        self.pipe = pipe
        self.done: list[int] = []
        self.read: list[int] = []
        self.footprint = footprint
        self.flag: FlagAccess | None = None


class Groups:
    """Operations of a thread or warp that complete by groups. ``groups`` has the phases of each, or -1."""

    __slots__ = ("done", "groups", "open", "read")

    def __init__(self) -> None:
        self.open: list[Operation] = []
        self.groups: list[tuple[int, int]] = []
        self.done = 0
        """Number of groups whose completion was waited for."""
        self.read = 0


class WarpTape:
    """The record of one warp.

    Attributes:
        launch: The record of its launch.
        path: Its path.
        loads, stores: The phase of loads and stores of TMEM that no wait has covered; -1 for none.
        copies: Its ``cp.async``; ``copied`` is the last.
        bulk: Its bulk stores, by lane.
        polled: The loops in which it has polled a flag in vain, by the instruction that loads the flag.
    """

    __slots__ = (
        "_polled_at",
        "bulk",
        "copied",
        "copies",
        "launch",
        "loads",
        "path",
        "polled",
        "stores",
        "tape",
        "warp",
    )

    def __init__(self, warp: Warp, tape: Tape) -> None:
        self.warp = warp
        self.launch = tape.launch
        self.tape = tape
        self.path: list[Any] = warp.path
        self.loads = -1
        self.stores = -1
        self.copies = Groups()
        self.copied: Operation | None = None
        self.bulk: dict[int, Groups] = {}
        self.polled: dict[int, frozenset[int]] = {}
        self._polled_at = 0

    def poll_begins(self, at: int, loop: frozenset[int]) -> None:
        """Drop what vain polls have executed; lanes that have diverged may have executed something else meanwhile."""
        if self.polled:
            vain = frozenset().union(*self.polled.values())
            passages = self.launch.code.program.passages
            since = self.path[self._polled_at :]
            self.path[self._polled_at :] = [
                item for item in since if item.__class__ is not int or not vain.issuperset(passages[item].instructions)
            ]
        self.polled[at] = loop
        self._polled_at = len(self.path)

    def issue(self, at: int, unit: int, shape: int, *, pipe: int = -1, footprint: int = NO_SLOT) -> Operation:
        """Record the issue of an operation."""
        operations = self.tape.operations
        self.path.append((ISSUE, at, len(operations), 1))
        made = Operation(unit, shape, pipe, footprint)
        operations.append(made)
        return made

    def issue_again(self, at: int, operation: Operation) -> None:
        """Record the issue of an operation that signals nothing and is equal to one that was issued before."""
        operations = self.tape.operations
        self.path.append((ISSUE, at, len(operations), 1))
        operations.append(operation)

    def signal(self, at: int, phase: int, count: int = 1) -> None:
        """Record an arrival at a phase."""
        self.tape.counts[phase] += count
        self.path.append((SIGNAL, at, phase, count))

    def wait(self, at: int, phase: int) -> None:
        """Record a wait for a phase."""
        entry = (WAIT, at, phase, 1)
        if not self.path or self.path[-1] != entry:
            self.path.append(entry)

    def issue_and_wait(self, at: int, unit: Unit, shape: int, *, footprint: int = NO_SLOT) -> None:
        """Record an operation that the warp waits for."""
        phase = self.tape.phase()
        self.tape.completes(self.issue(at, unit, shape, footprint=footprint), phase)
        self.wait(at, phase)


class Tape:
    """The record of one cluster.

    Attributes:
        launch: The record of its launch.
        operations: Its operations, in the order of their issue in the simulation.
        counts: By phase, the number of signals so far.
        current: By barrier, the phase that is not complete.
        complete: By barrier, the phase completed last.
        arrivers: By named or cluster barrier, the warps that have arrived in the current round.
        running: Number of CTAs that have not ended.
        known: What hooks have looked up by objects of this cluster.
    """

    def __init__(self, cluster: Cluster, launch: LaunchTape) -> None:
        self.cluster = cluster
        self.launch = launch
        self.operations: list[Operation] = []
        self.counts: list[int] = []
        self.current: dict[Any, int] = {}
        self.complete: dict[Any, int] = {}
        self.arrivers: dict[Any, set[Warp]] = {}
        self.pipes: dict[Hashable, int] = {}
        self.known: dict[Any, Any] = {}
        self.running = len(cluster.ctas)
        self.warps = {warp: WarpTape(warp, self) for cta in cluster.ctas for warp in cta.warps}
        for warp, record in self.warps.items():
            warp.units[WarpTape] = record

    def phase(self) -> int:
        """Return a new phase."""
        self.counts.append(0)
        return len(self.counts) - 1

    def phase_of(self, barrier: Any) -> int:
        """Return the current phase of a barrier."""
        found = self.current.get(barrier)
        if found is None:
            found = self.current[barrier] = self.phase()
        return found

    def completes(self, operation: Operation, phase: int) -> None:
        """Let an operation signal a phase when it is complete."""
        operation.done.append(phase)
        self.counts[phase] += 1

    def end_phase(self, barrier: Any) -> None:
        """Complete the current phase of a barrier."""
        phase = self.current.pop(barrier, None)
        if phase is not None:
            self.complete[barrier] = phase

    def pipe(self, queue: Hashable) -> int:
        """Return the number of a pipe."""
        return self.pipes.setdefault(queue, len(self.pipes))

    def needed(self) -> list[int]:
        """Return, by phase, the signals that it needs: of an incomplete one, more than it has received."""
        needed = list(self.counts)
        for barrier, phase in self.current.items():
            missing = 1
            if isinstance(barrier, Mbarrier):
                missing = max(1, barrier.pending + (barrier.tx > 0))
            needed[phase] += missing
        return needed


class CtaEnd:
    """Unit of a CTA that reports its end to the recorder."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta

    def at_exit(self) -> None:
        """Record the cluster if this was the last of its CTAs."""
        tape: Tape = self.cta.cluster.units[Tape]
        tape.running -= 1
        if not tape.running:
            tape.launch.finish(tape)
            # Reference counting can free the cluster's memory only without cycles.
            tape.warps.clear()
            tape.known.clear()
