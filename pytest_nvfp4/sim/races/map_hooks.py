"""The detector's hooks for tensor maps, in shared memory and overwritten in global memory while stores may read them.

PTX ISA, "cp.async.bulk.wait_group": with ``.read``, the operations of the groups have read their tensor maps, too. So a
map in global memory may be changed only behind a ``wait_group`` for the tensor stores that use it; the tensor map
managers of NVIDIA's kernels execute one. A map that tensor *loads* may still read is not checked, because those kernels
do not wait for them either. ``sync.fences`` checks that later users of the map see the change.

A wait of any lane counts for all stores of its warp: CuTe DSL emits both for the whole warp or for one lane.

In shared memory a map is data, which ``tensormap.replace`` writes and ``tensormap.cp_fenceproxy`` reads. The latter is
a warp-wide instruction with a fence: it orders the lanes behind it, but not before it.
"""

from __future__ import annotations

from pytest_nvfp4.sim.memory.access import READ, WRITE
from pytest_nvfp4.sim.races.access import ASYNC, Access
from pytest_nvfp4.sim.races.agents import WarpAgent
from pytest_nvfp4.sim.races.memory_hooks import MemoryHooks
from pytest_nvfp4.sim.run.warp import Warp

_BYTES = 128
"""Size of a tensor map."""


class MapHooks(MemoryHooks):
    """The detector's hooks for tensor maps."""

    def map_changed(self, w: Warp, mask: int, at: int, address: int, shared: bool) -> None:
        """Check and record the replacement of a field."""
        if shared:
            memory = w.cta.shared
            self.shared_accessed(w, at, memory, memory.index(address, _BYTES, what=""), _BYTES, WRITE, mask)
        else:
            self._overwritten(w, at, address)

    def map_copied(self, w: Warp, mask: int, at: int, index: int, address: int) -> None:
        """Check and record a copy from a map in shared memory to one in global memory."""
        self.shared_accessed(w, at, w.cta.shared, index, _BYTES, READ, mask)
        self._warp(w).lanes.synchronise()
        self._overwritten(w, at, address)

    def map_used(self, w: Warp, at: int, lane: int, address: int) -> None:
        """Record a store's read of a map, which lasts until a wait for the store's group."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        if not agent.launch.changes_maps:
            return
        agents = agent.agents
        reads = agents.map_reads[agent]
        tick = reads.add(agents.bulk[agent, lane])
        agents.maps.setdefault(address, {})[reads.number] = Access(reads.number, tick, ASYNC, at, agent.id)

    def _overwritten(self, w: Warp, at: int, address: int) -> None:
        agent = w.units.get(WarpAgent) or self._warp(w)
        used = agent.agents.maps.pop(address, None)
        for number, old in (used or {}).items():
            if not agent.has_seen(number, old.tick):
                region = w.cta.launch.machine.memory.find(address)
                name = region.place(address) if region is not None else f"{address:#x}"
                new = Access(agent.number, agent.epoch(), 0, at, agent.id)
                agent.launch.map_conflict(agent.clocks, f"tensor map {name}", old, new)
                agent.complete(number, old.tick)
