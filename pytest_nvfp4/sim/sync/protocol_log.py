"""Recorder of a launch's protocol: what each warp of one cluster waits for, signals, reads and writes, in order.

The barrier log (``barrier_log``) has the operations on mbarriers; this monitor adds the accesses to shared memory and
TMEM between them, and the named barriers. ``proof.pipeline`` derives the protocol of each ring from a recording.
Memory is recorded in units: 16 bytes of shared memory, or one column of 32 lanes of TMEM.
"""

# ruff: noqa: ARG002 - the arguments of a monitor's event
from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytest_nvfp4.sim.memory.access import READ
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.memory.shared import SharedMemory
from pytest_nvfp4.sim.monitor import CopyTarget, CtaAccesses, Monitor, TmemBox
from pytest_nvfp4.sim.ptx.syntax import Kernel
from pytest_nvfp4.sim.run.cta import Cluster
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.source import statement
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.barrier_log import BarrierEvent, BarrierLog
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier
from pytest_nvfp4.sim.sync.rings import rings

if TYPE_CHECKING:
    from pytest_nvfp4.sim.tcgen05.copy_plan import CopyPlan
    from pytest_nvfp4.sim.tcgen05.mma_plan import MmaPlan

UNIT = 16
"""Bytes of a unit of shared memory."""
LANES = 32
"""Lanes of a unit of TMEM."""

Part = tuple[str, int, tuple[tuple[int, int], ...]]
"""Memory space (``smem`` or ``tmem``), rank of the CTA, ranges of units."""


class ProtocolEvent(NamedTuple):
    """One step of a warp.

    Attributes:
        kind: ``wait`` (passed; ``number`` is the phase), ``arrive`` (``number`` arrivals; at a named barrier or the
            cluster barrier ``number`` is the round), ``arrive-async`` (of
            ``cp.async``, once its copies are complete), ``commit`` (of tcgen05, once its operations are complete),
            ``copy`` (writes, and signals a stage), ``read`` and ``write`` (complete at once), ``mma`` (operation of a
            tcgen05 pipe), and ``wgmma``, ``cp.async``, ``bulk`` (``number`` counts the warp's), each with a
            ``...-done`` (``number`` of them are complete).
        at: Index of the instruction.
        array, stage: Array of barriers, and the barrier's place in it; -1 for none.
        number: See ``kind``.
        reads, writes: Numbers of footprints; -1 for none.
    """

    kind: str
    at: int
    array: int = -1
    stage: int = -1
    number: int = 0
    reads: int = -1
    writes: int = -1


class _Access(NamedTuple):
    """An event with the number of barrier events before it; ``barrier`` is what it signals or waits for."""

    position: int
    warp: tuple[int, int]
    event: ProtocolEvent
    barrier: tuple[int, int] | None = None


class _Groups:
    """The asynchronous operations of a warp that complete by groups: ``commit_group``, ``wait_group``."""

    def __init__(self) -> None:
        self.issued = 0
        self.groups: list[int] = []

    def done(self, allowed: int | None) -> int:
        """Return how many operations are complete when so many groups may be pending (None: no operation)."""
        if allowed is None:
            return self.issued
        count = len(self.groups) - allowed
        return self.groups[count - 1] if count > 0 else 0


class ProtocolLog(Monitor):
    """A monitor that records the first cluster of each launch of a machine that also logs barriers."""

    def __init__(self) -> None:
        super().__init__()
        self._recordings: list[dict[str, Any]] = []
        self._begin(None)

    def _begin(self, log: BarrierLog | None) -> None:
        self._log = log
        self._cluster: Cluster | None = None
        self._ranks: dict[int, int] = {}
        self._accesses: list[_Access] = []
        self._footprints: dict[tuple[Part, ...], int] = {}
        self._cached: dict[Hashable, int] = {}
        self._rounds: Counter[Hashable] = Counter()
        self._named: dict[Any, int] = {}
        self._groups: dict[tuple[Warp, str], _Groups] = {}

    def launched(self, grid: Grid, *, stream: int = 0, overlap: object = None, dependent: bool = False) -> bool:
        """Begin the record of a launch; the overlap of launches is not checked."""
        self._end()
        self._begin(grid.machine.barrier_log)
        return False

    def recordings(self) -> list[dict[str, Any]]:
        """Return the recordings of the launches since the last call, as JSON values."""
        self._end()
        self._begin(None)
        found, self._recordings = self._recordings, []
        return found

    # ---- accesses --------------------------------------------------------------------------------------------------

    def shared_accessed(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """Record a warp's access to shared memory."""
        if self._records(w):
            touched = self._shared(shared.rank, index, where)
            if kind == READ:
                self._add(w, ProtocolEvent("read", at, reads=touched))
            else:
                self._add(w, ProtocolEvent("write", at, reads=-1, writes=touched))

    def tmem_accessed(self, w: Warp, at: int, boxes: tuple[TmemBox, ...], write: bool) -> None:
        """Record a ``tcgen05.ld`` or ``tcgen05.st``."""
        if self._records(w):
            touched = self._footprint([("tmem", w.cta.rank, _ranges(_box_units(boxes)))])
            self._add(w, ProtocolEvent("write" if write else "read", at, **{"writes" if write else "reads": touched}))

    def tensor_issued(
        self, w: Warp, at: int, queue: Hashable, touched: tuple[CtaAccesses, ...], plan: MmaPlan | CopyPlan
    ) -> None:
        """Record an operation of a tcgen05 pipe."""
        if not self._records(w):
            return
        key = ("pipe", touched)
        reads = self._cached.get(key, -2)
        if reads == -2:
            parts: list[Part] = []
            for cta, operands in touched:
                if operands.shared.size:
                    parts.append(("smem", cta.rank, _ranges(operands.shared.ravel())))
                only_read = [box for box in operands.reads if box not in operands.writes]
                if only_read:
                    parts.append(("tmem", cta.rank, _ranges(_box_units(only_read))))
            reads = self._cached[key] = self._footprint(parts)
            writes: list[Part] = [
                ("tmem", cta.rank, _ranges(_box_units(operands.writes))) for cta, operands in touched if operands.writes
            ]
            self._cached["written", touched] = self._footprint(writes)
        self._add(w, ProtocolEvent("mma", at, reads=reads, writes=self._cached["written", touched]))

    def wgmma_issued(self, w: Warp, group: Any, operation: Any, at: int) -> None:
        """Record a warp's issue of a ``wgmma``."""
        if self._records(w):
            units = [each for each in (operation.a_units, operation.b_units) if each is not None]
            touched = self._footprint([("smem", w.cta.rank, _ranges(np.concatenate([each.ravel() for each in units])))])
            self._add(w, ProtocolEvent("wgmma", at, number=operation.number + 1, reads=touched))

    def wgmma_waited(self, w: Warp, group: Any, done: int) -> None:
        """Record that operations of a warpgroup are complete."""
        if self._records(w):
            self._add(w, ProtocolEvent("wgmma-done", -1, number=done))

    def async_copied(self, w: Warp, at: int, index: int, target: Pattern, sources: Any) -> None:
        """Record a ``cp.async``."""
        if self._records(w):
            copies = self._of(w, "cp.async")
            copies.issued += 1
            touched = self._shared(w.cta.rank, index, target)
            self._add(w, ProtocolEvent("cp.async", at, number=copies.issued, writes=touched))

    def async_committed(self, w: Warp) -> None:
        """Record a group of ``cp.async``."""
        copies = self._of(w, "cp.async")
        copies.groups.append(copies.issued)

    def async_waited(self, w: Warp, allowed: int | None) -> None:
        """Record that groups of ``cp.async`` are complete."""
        if self._records(w):
            self._add(w, ProtocolEvent("cp.async-done", -1, number=self._of(w, "cp.async").done(allowed)))

    def async_arrives(self, w: Warp, at: int, barrier: Mbarrier) -> None:
        """Record an arrive of ``cp.async``."""
        if self._records(w):
            self._add(w, ProtocolEvent("arrive-async", at, number=1), barrier)

    def copy_in(
        self, w: Warp, at: int, targets: Sequence[CopyTarget], size: int, order: Any = None, box: Any = None
    ) -> None:
        """Record a bulk copy or tensor copy to shared memory."""
        if not self._records(w):
            return
        for cta, index, barrier in targets:
            units = np.arange(index, index + size) // UNIT if order is None else order.ravel() + index // UNIT
            touched = self._footprint([("smem", cta.rank, _ranges(units))])
            self._add(w, ProtocolEvent("copy", at, writes=touched), barrier)

    def copy_out(self, w: Warp, at: int, lane: int, index: int, size: int) -> None:
        """Record a bulk store's read of shared memory."""
        if self._records(w):
            stores = self._of(w, "bulk")
            stores.issued += 1
            touched = self._shared(w.cta.rank, index, size)
            self._add(w, ProtocolEvent("bulk", at, number=stores.issued, reads=touched))

    def bulk_commit(self, w: Warp, mask: int, at: int) -> None:
        """Record a group of bulk stores."""
        stores = self._of(w, "bulk")
        stores.groups.append(stores.issued)

    def bulk_wait(self, w: Warp, mask: int, at: int, allowed: int, read: bool) -> None:
        """Record that bulk stores have read shared memory."""
        if self._records(w):
            self._add(w, ProtocolEvent("bulk-done", at, number=self._of(w, "bulk").done(allowed)))

    # ---- named barriers and the cluster barrier ----------------------------------------------------------------------

    def barrier_arrived(self, w: Warp, mask: int, barrier: Any, at: int) -> None:
        """Record an arrival at the round of a barrier."""
        if self._records(w):
            self._add_named(w, "arrive", at, barrier, self._rounds[barrier])

    def barrier_completed(self, barrier: Any) -> None:
        """Complete the round."""
        self._rounds[barrier] += 1

    def barrier_passed(self, w: Warp, mask: int, barrier: Any, at: int) -> None:
        """Record that a warp passed a barrier."""
        if self._records(w):
            self._add_named(w, "wait", at, barrier, self._rounds[barrier] - 1)

    # ---- the result ------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Add the recording of the launch, if it used an mbarrier."""
        log, ranks = self._log, self._ranks
        if log is None or not ranks:
            return
        instructions = log.grid.kernel.instructions
        arrays: list[dict[str, Any]] = []
        place_of: dict[tuple[int, int], tuple[int, int]] = {}
        for ring in rings(log):
            if ring.cta not in ranks:
                continue
            rank = ranks[ring.cta]
            for stage, byte in enumerate(ring.barriers):
                place_of[rank, byte] = (len(arrays), stage)
            line = ring.made.location if ring.made is not None else None
            arrays.append({
                "cta": rank, "stages": ring.stages, "count": ring.count, "barriers": list(ring.barriers),
                "file": line.file if line else "", "line": line.line if line else 0, "named": False,
            })  # fmt: skip
        if not arrays:
            return
        first_named = len(arrays)
        arrays += [
            # The cluster barrier has no number.
            {
                "cta": -1 if hasattr(named, "cluster") else named.cta.rank,
                "stages": 1,
                "count": 0,
                "barriers": [getattr(named, "number", -1)],
                "file": "",
                "line": 0,
                "named": True,
            }
            for named in self._named
        ]
        # The arrivals of cp.async are counted when its copies are complete.
        counts: dict[tuple[tuple[int, int], int], deque[int]] = {}
        for each in log.events:
            if each.kind == "arrive" and each.by in ranks and _is_async(log, each):
                counts.setdefault(((ranks[each.by], each.warp), each.at), deque()).append(each.amount)
        warps: dict[tuple[int, int], list[ProtocolEvent]] = {}
        for _, warp, event, barrier in self._merged(log, ranks):
            own = event
            if barrier is not None and barrier[0] < 0:
                own = event._replace(array=first_named + barrier[1], stage=0)
            elif barrier is not None:
                if barrier not in place_of:
                    continue
                array, stage = place_of[barrier]
                own = event._replace(array=array, stage=stage)
            if event.kind == "arrive-async" and (left := counts.get((warp, event.at))):
                own = own._replace(number=left.popleft())
            warps.setdefault(warp, []).append(own)
        used = sorted({event.at for events in warps.values() for event in events if event.at >= 0})
        places = {}
        for at in used:
            location = instructions[at].location if at < len(instructions) else None
            if location is not None:
                places[str(at)] = [location.file, location.line, statement(location.file, location.line)]
        self._recordings.append({
            "kernel": log.grid.kernel.name,
            "code": _digest(log.grid.kernel),
            "cluster": len(ranks),
            "truncated": log.truncated,
            "arrays": arrays,
            "footprints": [[list(part) for part in parts] for parts in self._footprints],
            "warps": [{"cta": rank, "warp": warp, "events": warps[rank, warp]} for rank, warp in sorted(warps)],
            "places": places,
        })  # fmt: skip

    def _merged(self, log: BarrierLog, ranks: dict[int, int]) -> Iterable[_Access]:
        """Yield accesses and barrier operations of warps in order of execution."""
        accesses = iter(self._accesses)
        access = next(accesses, None)
        for position, event in enumerate(log.events):
            while access is not None and access.position <= position:
                yield access
                access = next(accesses, None)
            if event.by in ranks and event.cta in ranks and (own := self._barrier_event(log, event)) is not None:
                yield _Access(position, (ranks[event.by], event.warp), own, (ranks[event.cta], event.barrier))
        while access is not None:
            yield access
            access = next(accesses, None)

    @staticmethod
    def _barrier_event(log: BarrierLog, event: BarrierEvent) -> ProtocolEvent | None:
        """Return the event of a warp; None for one that the monitor's hooks record."""
        if event.kind == "wait":
            return ProtocolEvent("wait", event.at, number=event.phase - 1)
        if event.kind == "commit":
            return ProtocolEvent("commit", event.at, number=1)
        if event.kind == "arrive" and not _is_async(log, event):
            return ProtocolEvent("arrive", event.at, number=event.amount)
        return None

    # ---- details ---------------------------------------------------------------------------------------------------

    def _records(self, w: Warp) -> bool:
        if self._cluster is None:
            self._cluster = w.cta.cluster
            self._ranks = {cta.linear: cta.rank for cta in w.cta.cluster.ctas}
        return self._log is not None and w.cta.cluster is self._cluster

    def _add(self, w: Warp, event: ProtocolEvent, barrier: Mbarrier | None = None) -> None:
        assert self._log is not None
        place = None if barrier is None else (barrier.cta.rank, barrier.index)
        self._accesses.append(_Access(len(self._log.events), (w.cta.rank, w.index), event, place))

    def _add_named(self, w: Warp, kind: str, at: int, barrier: Any, number: int) -> None:
        assert self._log is not None
        place = (-1, self._named.setdefault(barrier, len(self._named)))
        event = ProtocolEvent(kind, at, number=number)
        self._accesses.append(_Access(len(self._log.events), (w.cta.rank, w.index), event, place))

    def _of(self, w: Warp, kind: str) -> _Groups:
        return self._groups.setdefault((w, kind), _Groups())

    def _shared(self, rank: int, index: int, where: Pattern | int) -> int:
        key = (rank, index, where)
        found = self._cached.get(key)
        if found is None:
            if isinstance(where, int):
                units = np.arange(index // UNIT, -(-(index + where) // UNIT))
            else:
                units = (where.offsets[:, None] + np.arange(where.size) + index).ravel() // UNIT
            found = self._cached[key] = self._footprint([("smem", rank, _ranges(units))])
        return found

    def _footprint(self, parts: Iterable[Part]) -> int:
        key = tuple(parts)
        return self._footprints.setdefault(key, len(self._footprints)) if key else -1


def _is_async(log: BarrierLog, arrive: BarrierEvent) -> bool:
    """Return whether an arrival is that of a ``cp.async.mbarrier.arrive``."""
    return log.grid.kernel.instructions[arrive.at].opcode.startswith("cp.async")


def _ranges(units: Any) -> tuple[tuple[int, int], ...]:
    """Return the ranges [first, end) of sorted unique units."""
    sorted_units = np.unique(units)
    cuts = np.flatnonzero(np.diff(sorted_units) != 1) + 1
    return tuple((int(run[0]), int(run[-1]) + 1) for run in np.split(sorted_units, cuts) if run.size)


def _box_units(boxes: Iterable[TmemBox]) -> Any:
    """Return the units of rectangles of TMEM: column * 4 + lane // 32."""
    per = 128 // LANES
    units = [
        np.add.outer(np.arange(column, column + columns) * per, np.arange(lane // LANES, -(-(lane + lanes) // LANES)))
        for column, columns, lane, lanes in boxes
    ]
    return np.concatenate([each.ravel() for each in units])


def _digest(kernel: Kernel) -> str:
    """Return a digest of a kernel's instructions, without their positions."""
    code = "\n".join(f"{each.guard} {each.opcode} {each.operands}" for each in kernel.instructions)
    return hashlib.sha256(code.encode()).hexdigest()
