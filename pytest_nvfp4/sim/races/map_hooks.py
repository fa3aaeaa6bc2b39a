"""The part of the detector that hears of tensor maps: in shared memory, and overwritten while stores may read them.

PTX ISA, "cp.async.bulk.wait_group": with ``.read``, the operations of the groups have read the tensor map, too. So a
map in global memory may be changed only behind a ``wait_group`` for the tensor stores that use it, as the tensor map
managers of NVIDIA's kernels have it. Left out, because those kernels do nothing about it: a map that tensor *loads* may
still read. Whether a change is seen by what uses the map later is checked without the detector (``sync.fences``).

A warp's stores are one, whichever lane waits: CuTe DSL emits stores and waits for the whole warp or for one lane.

In shared memory a map is data, which ``tensormap.replace`` writes and ``tensormap.cp_fenceproxy`` reads. That is an
instruction of the whole warp with a fence of its own: behind it the lanes are ordered, before it they need not be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_nvfp4.sim.monitor import READ, WRITE
from pytest_nvfp4.sim.races.access import ASYNC, Access
from pytest_nvfp4.sim.races.agents import BulkThread, Owner, WarpAgent
from pytest_nvfp4.sim.races.memory_hooks import MemoryHooks

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["MapHooks", "MapReads"]

_BYTES = 128


@dataclass(slots=True)
class MapReads:
    """The reads of tensor maps by a warp's stores: their agent, how many there were, those not known to be complete.

    Attributes:
        number: The agent.
        issued: How many, which is the tick of the last.
        pending: In order: the thread, the number of its store among its bulk stores, and the tick.
    """

    number: int
    issued: int = 0
    pending: list[tuple[BulkThread, int, int]] = field(default_factory=list)

    def done(self, allowed: int) -> int:
        """The tick up to which all are complete when a thread of the warp allows so many groups to be pending."""
        last = 0
        while self.pending:
            thread, store, tick = self.pending[0]
            if thread.done(allowed) < store:
                break
            last = tick
            del self.pending[0]
        return last


class MapHooks(MemoryHooks):
    """The part of the detector that hears of tensor maps."""

    def map_changed(self, w: Warp, mask: int, at: int, address: int, shared: bool) -> None:
        """A field was replaced."""
        if shared:
            memory = w.cta.shared
            self.shared_accessed(w, at, memory, memory.index(address, _BYTES, what=""), _BYTES, WRITE, mask)
        else:
            self._overwritten(w, at, address)

    def map_copied(self, w: Warp, mask: int, at: int, index: int, address: int) -> None:
        """A map in shared memory is read, one in global memory written."""
        self.shared_accessed(w, at, w.cta.shared, index, _BYTES, READ, mask)
        self._warp(w).lanes.meet()
        self._overwritten(w, at, address)

    def map_used(self, w: Warp, at: int, lane: int, address: int) -> None:
        """A store reads a map until its group is waited for."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        if not agent.launch.changes_maps:
            return
        agents = agent.agents
        reads = agents.map_reads.get(agent.number)
        if reads is None:
            owner = Owner("map-read", f"tensor stores of {agent.who}", agent.who)
            reads = agents.map_reads[agent.number] = MapReads(agent.clocks.agent(owner))
        reads.issued += 1
        thread = agents.bulk_thread(agent, lane)
        reads.pending.append((thread, thread.issued, reads.issued))
        agents.maps.setdefault(address, {})[reads.number] = Access(reads.number, reads.issued, ASYNC, at, agent.who)

    def _overwritten(self, w: Warp, at: int, address: int) -> None:
        agent = w.units.get(WarpAgent) or self._warp(w)
        used = agent.agents.maps.pop(address, None)
        for number, old in (used or {}).items():
            if not agent.knows(number, old.tick):
                region = w.cta.launch.machine.memory.find(address)
                name = region.say(address) if region is not None else f"{address:#x}"
                new = Access(agent.number, agent.epoch(), 0, at, agent.who)
                agent.launch.map_conflict(agent, f"tensor map {name}", old, new)
                agent.learn(number, old.tick)
